#!/usr/bin/env python3
"""Writes tests/data/template/: expressions.json and goldens.json, both rendered by jinja2.

Usage: scripts/generate_template_vectors.py (needs `pip install jinja2`)
"""
import json
import pathlib

from compare_templates import matrix, render, write_goldens

DATA = pathlib.Path(__file__).resolve().parent.parent / "tests/data/template"
CONTEXT = {
    "s": "Hello, Wörld 😀!", "empty": "", "n": 7, "neg": -3, "f": 2.5, "t": True, "no": False, "nil": None,
    "l": [3, 1, 2], "words": ["b", "A", "c", "a"], "d": {"b": 1, "a": [1, 2, {"x": None}], "C": "é'\"\n"},
    "rows": [{"n": "x", "v": 2, "k": {"z": 1}}, {"n": "Y", "v": 1}, {"n": "x", "v": 3, "k": {"z": 0}}],
    "nested": [[1, 2], [3, [4]]], "big": 18446744073709551615, "items": {"keys": 1, "items": 2},
    "multi": "a\nb\n\n  c\r\nd", "ctl": "\x00\x1f\x7f\u00a0\u200b\u2028\ue000",
}

EXPRESSIONS = r"""
1 + 2 * 3 | 7 // 2 | -7 // 2 | 7 % -3 | -7 % 3 | 7 / 2 | 2 ** 10 | 2 ** -1 | -2 ** 2 | 7.5 // 2 | -7.5 % 2 | 1 / 0 | 1 // 0 | 1 % 0
1.0 | 1e16 | 1e15 | 123456789.123 | 0.1 + 0.2 | 1e-5 | 0.0001 | 1e300 * 1e10 | -0.0 | 1.5e3 | 100000000000000000000 | 1_000 | 0x1f | 0b101 | 0o17
true + 1 | true and 1 | 0 or "x" | "" or none | not 0 | not "a" | none and 1 | 1 < 2 < 3 | 1 < 3 < 2 | 1 == 1.0 | true == 1 | "a" == 1 | [1] == [1.0] | (1,) == [1]
"a" < "b" | "a" < 1 | [1, 2] < [1, 3] | none < 1 | 1 in [1, 2] | "x" not in "abc" | 1 in "abc" | "a" in d | "z" in d | 1 in n | none in l | x in l | x in s
s[0] | s[-1] | s[7:12] | s[::-1] | s[::2] | s[-3:] | s[:-3] | s[100] | s[2:1] | s[::0] | l[0] | l[-1] | l[5] | l[::-1] | l[1:] | l[-2:] | l["a"] | l[:"a"] | l[1:none]
d["b"] | d.b | d.zz | d.zz.y | d["zz"]["y"] | x | x.y | x[0] | x + 1 | x ~ 1 | x|length | x|list | x == y | x is defined | -x | x() | x|upper | none.a | none | n.a | n[0] | 5()
items.keys is callable | items["keys"] | items.items is callable | d.items()|list | d.keys()|list | d.values()|list | d.items() | d.keys() | d.get("b") | d.get("q") | d.get("q", 5) | d.copy() | d.items()[0] | d.items()|length
d | l | [s] | (1,) | () | [] | {} | {1: 2, "a": none, 1.5: true} | {"a": 1}.a | {"a": 1,} | [1, 2,] | (1, "b", none) | ctl | [ctl] | ["it's", 'say "x"', "both ' \""] | ["\n\t\\"] | range(3) | range(1, 10, 3)|list | range(5, 0, -2)|list | range(10**9) | range(3)[1] | range(5)[1:3]
"a" "b" | 'it\'s' | "\u00e9\x41\101\n\q" | "a\
b" | "a" * 3 | 3 * "ab" | "a" * -1 | [1] * 2 | "a" + 1 | "a" + "b" | [1] + [2] | (1,) + (2,) | 1 + "a" | "a" ~ 1 ~ none ~ true ~ 1.0 ~ [1] | "%s-%d" % ("a", 3) | "%5.2f|%-4s|%04d" % (1.5, "x", 42) | "%s" % l | "%s %s" % ("a",) | "%x" % 255 | "%%" % ()
s.upper() | s.lower() | s.title() | s.capitalize() | "x".join(["a", "b"]) | " a ".strip() | "xxaxx".strip("x") | "xxa".lstrip("x") | "axx".rstrip("x") | "a,b,c".split(",") | "a,b,c".split(",", 1) | " a  b ".split() | "a b c".split(none, 1) | "".split() | "".split(",") | "a".split("") | "a,b,c".rsplit(",", 1) | "a b c".rsplit(none, 1)
s.startswith("He") | s.startswith(("x", "H")) | s.endswith("!") | s.endswith(("?",)) | s.replace("l", "L") | s.replace("l", "L", 1) | "ab".replace("", "-") | "aaa".replace("a", "") | s.find("W") | s.find("zz") | s.index("zz") | s.rfind("l") | s.count("l") | "aa".count("") | multi.splitlines() | multi.splitlines(true) | "a=b=c".partition("=") | "abc".removeprefix("a") | "abc".removesuffix("c") | "12".isdigit() | "ab".isalpha() | " ".isspace() | "AB".isupper() | "ab1".islower() | "12".isupper() | "5".zfill(3) | "-5".zfill(4) | "a".ljust(3) ~ "|" | "a".rjust(3) | "ab".center(5) ~ "|" | "straße ǆ".upper() | "ﬁ ß".title() | "İ".lower()
"{} {}".format(1, "a") | "{1}{0}".format(1, 2) | "{a}{b}".format(a=1, b=2) | "{:.2f} {:>5} {:<3}| {:^5}|".format(1.234, 7, "a", "b") | "{{}}".format() | "{0.b} {0[b]}".format(d) | "{}".format() | "{:05d} {:+d} {:,} {:x} {:%}".format(42, 1, 1234567, 255, 0.25) | "{!r}".format("a")
d|tojson | l|tojson | s|tojson | s|tojson(ensure_ascii=true) | d|tojson(indent=2) | {}|tojson(indent=2) | [[], {}, [1]]|tojson(indent=4) | d|tojson(separators=(",", ":")) | d|tojson(sort_keys=true) | "<a&'\">"|tojson | 1.0|tojson | none|tojson | true|tojson | (1, 2)|tojson | {1: 2, none: 3, true: 4}|tojson | ctl|tojson | ctl|tojson(true) | x|tojson | range(3)|tojson | big|tojson | big | big + 1 | d|tojson(indent="\t") | 1e16|tojson | d|tojson(false, 1)
l|length | s|length | n|length | d|count | l|first | l|last | []|first | []|last is undefined | s|first | s|last | l|join | l|join(", ") | rows|join("-", attribute="n") | s|list | d|list | l|sum | []|sum | rows|sum(attribute="v") | l|min | l|max | words|min | []|max
l|sort | l|sort(reverse=true) | words|sort | words|sort(case_sensitive=true) | rows|sort(attribute="v") | rows|sort(attribute="n,v") | [1, "a"]|sort | d|dictsort | d|dictsort(true) | {"a": 2, "b": 1}|dictsort(by="value") | {"a": 2, "b": 1}|dictsort(false, "key", true) | {"a": 1}|dictsort(by="q") | words|unique|list | [1, 1.0, true, 2]|unique|list | rows|unique(attribute="n")|list | l|reverse|list | s|reverse | d|reverse|list | l|reverse|first
l|map("string")|list | words|map("upper")|join | rows|map(attribute="n")|list | rows|map(attribute="k.z")|list | rows|map(attribute="k.z", default=9)|list | rows|map(attribute="q", default="-")|join | nested|map("first")|list | nested|map(attribute=1)|list | nested|map(attribute="0")|list | l|map("nope")|list | l|map()|list | words|map("replace", "a", "z")|list | l|map("default")|list | []|map("upper")|list
l|select|list | [0, 1, "", none]|select|list | [0, 1]|reject|list | l|select("odd")|list | l|select("gt", 1)|list | l|reject("equalto", 2)|list | rows|selectattr("k")|list | rows|selectattr("v", "gt", 1)|map(attribute="n")|list | rows|rejectattr("k")|list | rows|selectattr("n", "equalto", "x")|list|length | rows|selectattr("k.z", "defined")|list|length | l|select("nope")|list | l|select("in", [1, 3])|list | l|map("upper")|length | l|select|first | (l|select) is sequence | (l|select) is iterable | ([]|select) and 1
"  a "|trim | "xax"|trim("x") | s|upper | s|lower | "hello wORLD-foo (bar"|title | "hELLO"|capitalize | 5|string + "a" | "a"|string | s|replace("l", "_") | s|replace("l", "_", 1) | 55|replace(5, 6) | "%s!"|format("a") | "%(k)s"|format(k=1) | multi|indent | multi|indent(2, true) | multi|indent(2, blank=true) | multi|indent("> ") | "a\n"|indent | ""|indent | n|indent
"5"|int | "5.7"|int | "x"|int | "x"|int(9) | "0x1f"|int(0, 16) | "ff"|int(base=16) | 3.9|int | -3.9|int | none|int | " 12 "|int | "1_000"|int | true|int | l|int(4) | x|int | "2.5"|float | "x"|float | "1e3"|float | 3|float | "inf"|float | 2.5|round | 3.5|round | 2.675|round(2) | 2.1|round(0, "ceil") | 2.9|round(method="floor") | 1234|round(-2) | 5|round | -5|abs | 2.5|abs | "a"|abs
x|default("d") | ""|default("d") | ""|default("d", true) | none|default("d") | none|default("d", true) | x|d | x.y|default(1) | 0|default(5, boolean=true) | "<b>"|safe | ("<b>"|safe) + "<i>" | ("<b>"|safe) ~ "<i>" | "<b>"|e | "a'b\"&"|escape | d|items|list | x|items|list | l|items|list | d|attr("b") | s|attr("zz") is undefined | s|nope | s|tojson|safe
n is defined | x is undefined | nil is none | n is none | d is mapping | l is mapping | l is iterable | s is iterable | n is iterable | d is iterable | x is iterable | l is sequence | d is sequence | s is sequence | n is sequence | x is sequence | s is string | n is string | n is number | f is number | t is number | t is boolean | n is boolean | n is integer | t is integer | f is float | t is true | n is true | no is false | 0 is false | n is odd | n is even | 6 is divisibleby 3 | n is divisibleby(2) | n is eq 7 | n is equalto(7) | n is ne 7 | n is gt 3 | n is lt(3) | n is ge 7 | n is le 6 | n is in [7] | n is not in [7] | "a" is lower | "A" is upper | s is sameas s | nil is sameas none | s.upper is callable | n is callable | "x" is escaped | "upper" is filter | "odd" is test | n is nope | n is not none | n is not defined | not n is none | n is defined and n > 3 | x is defined or 1 | n is string or n is number
"a" if t else "b" | "a" if no | ("a" if no) is undefined | "a" if no else "b" if no else "c" | (1, 2)[0] | [1, 2][1] | {"a": {"b": 3}}["a"].b | nested.0.1 | nested[1][1][0] | -n|abs | (-n)|abs | -3|abs | 2 + "3"|int | "a" ~ "b"|upper | not t == no | 1 + 1 == 2 and 3 | "a,b".split(",")[1] | "a".upper().lower() | s.__class__ | s.__class__.__mro__ | d.__init__ | l.sort() | d.update({}) | d.clear | l.append(4) | l.extend([1]) | s.nope | s.nope() | l.count(1) | l.index(2) | l.index(9) | (1, 1).count(1)
dict(a=1, b=2) | dict([("a", 1)]) | dict({"a": 1}, b=2) | dict()|length | namespace(a=1).a | namespace({"b": 2}).b | namespace(_a=1) | namespace().q is undefined | strftime_now("%Y-%m-%d %H:%M:%S") | strftime_now("%d %b %Y") | strftime_now("") | raise_exception("boom") | range() | range(1, 2, 0) | range("a") | dict(1) | [1, [2, {"a": (3,)}]] | [true, none, 1.0, "x"] | "\u12" | 'unclosed | 1 + | (1 | [1 | {1} | {1: } | a b | 1 2 | . | ..a | @ | a..b | a | b | 3 is | l[ | s|  | "a" is string is true
"ａＢ" | "ΑΣ".lower() | "ΟΔΟΣ ΑΣ"|length | "日本語"[1] | "日本語"[::-1] | "e\u0301"|length | "👩‍👩‍👧"|length | "日本"|list | "Ünï"|upper | "ÿ"|upper | "µ"|upper | "日本" * 2 | "日本".find("本") | "a日b".split("日") | "日本" in "大日本" | "　x　".strip() | "x\u2028y".splitlines() | ["日本\u200b"] | "é"|tojson(true) | "😀"|tojson(ensure_ascii=True)
f|string | 1e22 | 1.7976931348623157e308 | 5e-324 | 1e16 + 1 | 3.0 * 2 | 7.0 // 2 | 0.1 | 1/3 | 100.0 | 1e2 | 2.0 ** 0.5 | 10 ** 20 | 10 ** -2 | 5 % 2.5 | -1 // 2.0 | 1.0 == 1 | f in [2.5] | {2.5: "a"}[2.5] | {1: "a"}[true] | {1: "a"}[1.0] | l[true] | l[1.0] | "abc"[true] | true ~ false | -true | +t | --n | +neg | not not n | [n, f]|max | [[1, 2], [1]]|sort | ["b", ["a"]]|sort | [none, 1]|min
""".strip()

TEMPLATES = [
    "a\n{% if t %}\nb\n{% endif %}\nc\n", "  {% if t %}x{% endif %}  \n y", "a {%- if t -%} b {%- endif -%} c",
    "a\n  {%+ if t %}b\n  {% endif +%}\nc", "{{ 1 }}\n{{ 2 }}\n\n", "x\n\n", "x\r\ny\rz\r\n", "{# c #}\na\n{#- c -#}\n b {#+ c #} d",
    "a\n   {# c #}\nb", "a {{- ' x ' -}} b", "{% raw %}{{ x }}{% if %}{% endraw %}", "a {%- raw -%} {{ x }} {%- endraw -%} b",
    "{% raw %}\n  a\n  {% endraw %}\n b", "{% raw %}", "{# open", "{{ open", "{% if t %}", "{% endif %}", "{% nope %}", "{{ '}}' }}{{ '%}' }}",
    "{{ {'a': {'b': 1}} }}", "{{ [1,2}} ]", "{ { % } }", "{", "{% for x in l %}{{ x }}{% if not loop.last %},{% endif %}{% endfor %}",
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }};{% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}", "{% for x in l %}{{ loop.previtem is defined }}{{ loop.nextitem.q }}{% endfor %}",
    "{% for x in [] %}a{% else %}none{% endfor %}", "{% for x in l %}a{% else %}none{% endfor %}", "{% for x in u %}a{% else %}e{% endfor %}", "{% for x in n %}{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in d %}{{ k }}{% endfor %}", "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in [(1,)] %}{% endfor %}", "{% for a, b in [(1, 2, 3)] %}{% endfor %}", "{% for a, b in [1] %}{% endfor %}", "{% for c in s %}[{{ c }}]{% endfor %}",
    "{% for x in l if x > 1 %}{{ loop.index }}:{{ x }}/{{ loop.length }} {% endfor %}", "{% for x in l if x > 9 %}a{% else %}b{% endfor %}",
    "{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}", "{% break %}", "{% for x in l %}{% endfor %}{% continue %}",
    "{% for x in l %}{% for y in l %}{% if y == 1 %}{% break %}{% endif %}{{ loop.index }}{% endfor %}{{ loop.index }} {% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for x in [1,1,2] %}{{ loop.changed(x) }}{% endfor %}", "{% set loop = 1 %}{{ loop }}", "{% for loop in l %}{% endfor %}",
    "{% for x in nested recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}@{{ loop.depth }}{% endif %}{% endfor %}", "{% for x in l %}{{ loop(l) }}{% endfor %}",
    "{% set x = 1 %}{% for i in l %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}", "{% for i in l %}{% set y = i %}{% endfor %}{{ y is defined }}", "{% if t %}{% set z = 5 %}{% endif %}{{ z }}",
    "{% set ns = namespace(c=0) %}{% for i in l %}{% set ns.c = ns.c + i %}{% endfor %}{{ ns.c }}", "{% set ns = namespace() %}{% set ns.a, b = 1, 2 %}{{ ns.a }}{{ b }}", "{% set d.q = 1 %}", "{% set ns = namespace() %}{% set ns._q = 1 %}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a = 1, 2 %}{{ a }}", "{% set (a, b) = [3, 4] %}{{ a + b }}", "{% set a, b = 1 %}", "{% set 1 = 2 %}", "{% set x %}a{{ n }}b{% endset %}{{ x }}{{ x is string }}",
    "{% set x | upper | replace('A', 'Z') %}a{{ s }}{% endset %}{{ x }}", "{% set x = 1 %}{% set b %}{% set x = 2 %}{{ x }}{% endset %}{{ b }}{{ x }}",
    "{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(1, c=9) }} {{ m(b=1, a=0) }}", "{% macro m(a) %}[{{ a }}]{% endmacro %}{{ m() }}{{ m(1, 2) }}",
    "{% macro m(a) %}{% endmacro %}{{ m(q=1) }}", "{% macro m(a) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, k=4) }}", "{% macro m(a=1, b) %}{% endmacro %}", "{% macro m(a) %}{{ a.b }}{% endmacro %}{{ m() }}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}", "{% macro m() %}{{ x }}{% endmacro %}{% set x = 4 %}{{ m() }}", "{% macro m(l) %}{% for i in l %}{{ i }}{% endfor %}{% endmacro %}{{ m(l) | length }}",
    "{% for x in l %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}", "{% macro m() %}{{ loop is defined }}{% endmacro %}{% for x in l %}{{ m() }}{% endfor %}", "{% macro m() %}{{ caller() }}!{% endmacro %}{% call m() %}hi{{ n }}{% endcall %}",
    "{% macro m() %}{{ caller(1) }}{% endmacro %}{% call(x) m() %}<{{ x }}>{% endcall %}", "{{ m(*[1, 2]) }}", "{% macro m(a, b) %}{{ a }}-{{ b }}{% endmacro %}{{ m(*[1, 2]) }}{{ m(**{'a': 3, 'b': 4}) }}{{ m(1, *[2]) }}", "{% macro m(a) %}{% endmacro %}{{ m(1, a=2) }}",
    "{% filter upper %}a{{ s }}{% endfilter %}", "{% filter replace('a', 'b') | upper %}aa{% endfilter %}", "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}", "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q }}",
    "{% generation %}a{% set gg = 1 %}{% endgeneration %}{{ gg }}", "{% print 1, 2 %}", "{% if n == 1 %}a{% elif n == 7 %}b{% else %}c{% endif %}", "{% if no %}{% elif no %}{% else %}e{% endif %}", "{% if u.x %}{% endif %}", "{% if u %}a{% else %}b{% endif %}",
    "{% if d.zz is defined and d.zz.q %}a{% else %}b{% endif %}", "{% if not u is defined %}ok{% endif %}", "{% set q = q | default(3) %}{{ q }}", "{% set u2 = u %}{{ u2 is defined }}", "{% do l.append(1) %}", "{% include 'x' %}", 
    "{% set x = [] %}{% for i in l %}{% set _ = x.append(i * 2) %}{% endfor %}{{ x }}{{ x.pop() }}{{ x.pop(0) }}{{ x }}", "{{ [].pop() }}", "{% set g = l | map('string') %}{{ g | list }}{{ g | list }}", "{% set g = l | select('odd') %}{{ g | first }}{{ g | list }}",
    "{% for k, v in d | items %}{{ k }}{% endfor %}", "{% for k, v in d | dictsort %}{{ k }}{% endfor %}", "{% for m in l[::-1] %}{{ m }}{% endfor %}", "{% for a in [1,2,3] %}{% if loop.index is odd %}{{ a }}{% endif %}{% endfor %}",
    "{{ namespace(a=1) }}", "{{ s.upper }}{{ range }}" if False else "{{ n }}", "line1\n{{ x.y }}\n", "{% set a = {'x': 1} %}{{ a.x }}{{ a['x'] }}{{ a.items() | list }}", "{{ 'a' if n > 3 else 'b' }}{{ 'c' if n < 3 }}", "{%set a=1%}{{a}}", "{%-set a=1-%} {{a}} {#-x-#} b",
    "\n\n{% set a = 1 %}\n\n{{ a }}\n\n", "\t{% if t %}\n\t\tx\n\t{% endif %}\n", "x {% if t %}\n y\n {%- endif %}\nz", "{% for x in l -%}\n  {{ x }}\n{%- endfor %}", "{% if t -%}\n\n  a\n{% endif %}", "a\u00a0{%- if t %}b{% endif %}", "\u3000{% if t %}b{% endif %}", "{{- 'a' }}\n{{ 'b' -}}\n c",
    "{% for i in range(3) %}{% for j in range(i) %}{{ i }}{{ j }} {% else %}none {% endfor %}{% endfor %}", "{% if (n > 3 and f) or u.x %}y{% endif %}", "{{ d.b + d.a[0] }}", "{{ ('a', 'b') | join }}", "{{ rows | map(attribute='n') | map('upper') | join(',') }}", "{{ messages }}{{ tools }}",
    "{% for x in l %}{% set ns2 = namespace(v=x) %}{% set ns2.v = ns2.v * 2 %}{{ ns2.v }}{% endfor %}", "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}", "{% set f2 = s.upper %}{{ f2() }}", "{{ (l | sort)[0] }}", "{{ loop }}", "{% for x in l %}{{ x }}{% endfor %}{{ x is defined }}",
]


def main():
    expressions = []
    for line in EXPRESSIONS.split("\n"):
        # ` | ` separates cases; filters are written without spaces around the bar.
        expressions += ["{{ " + e + " }}" for e in line.split(" | ")]
    vectors = []
    for template in expressions + TEMPLATES:
        result = render(template, {"messages": [], "tools": None, "documents": None,
                                   "add_generation_prompt": False, **CONTEXT})
        vectors.append({"template": template, "context": CONTEXT, **result})
    for vector in vectors:
        del vector["context"]
    text = json.dumps({"context": CONTEXT, "cases": vectors}, ensure_ascii=False, separators=(",", ":"))
    (DATA / "expressions.json").write_text(text + "\n", encoding="utf-8")
    # Tools and flags in turn keep the file small and still meet every pair of features.
    contexts = {case: context for i, (case, context) in enumerate(matrix()) if i % 5 == 0 or "flags" in case and i % 3 == 0}
    goldens = [{"template": path.name, "case": case, **render(path.read_text(encoding="utf-8"), context)}
               for path in sorted(DATA.glob("*.jinja")) for case, context in contexts.items()]
    write_goldens(DATA, contexts, goldens)
    print(f"{len(vectors)} vectors, {len(goldens)} conversations")


if __name__ == "__main__":
    main()
