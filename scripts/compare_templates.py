#!/usr/bin/env python3
"""Renders chat templates with jinja2, configured as transformers does, over a matrix of conversations.

Usage: scripts/compare_templates.py TEMPLATES_DIR OUT_DIR
Copies TEMPLATES_DIR/*.jinja to OUT_DIR and writes OUT_DIR/goldens.json beside them. Then
    FORESAIL_TEMPLATES_DIR=OUT_DIR build/debug/bin/unit_text_test --gtest_filter='TemplateFolder.*'
compares our output byte for byte. Needs `pip install jinja2`.
"""
import functools
import itertools
import json
import pathlib
import shutil
import sys
from datetime import datetime, timezone

import jinja2
import jinja2.ext
import jinja2.sandbox

NOW = 1700000000


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_generation"), [], [], body).set_lineno(line)

    @jinja2.pass_eval_context
    def _generation(self, context, caller):
        return caller()


class TemplateDict:
    def __call__(self, *args, **kwargs):
        return dict(*args, **kwargs)


class TemplateNamespace(jinja2.utils.Namespace):
    def __init__(*args, **kwargs):
        self, args = args[0], args[1:]
        attrs = dict(*args, **kwargs)
        for name in attrs:
            TemplateNamespace._check_name(name)
        jinja2.utils.Namespace.__init__(self, attrs)

    def __setitem__(self, name, value):
        TemplateNamespace._check_name(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def _check_name(name):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError("underscore")


def environment(kind):
    env = kind(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda fmt: datetime.fromtimestamp(NOW, timezone.utc).strftime(fmt)
    env.globals["dict"] = TemplateDict()
    env.globals["namespace"] = TemplateNamespace
    return env


IMMUTABLE = environment(jinja2.sandbox.ImmutableSandboxedEnvironment)
MUTABLE = environment(jinja2.sandbox.SandboxedEnvironment)


@functools.lru_cache
def compiled(env, source):
    return env.from_string(source)


def render(source, context):
    """Returns {"output": text} or {"error": message}; "mutable" tells that list.append was needed."""
    context = json.loads(json.dumps(context))
    try:
        return {"output": compiled(IMMUTABLE, source).render(**context)}
    except jinja2.exceptions.SecurityError as error:
        if not any(f"'{name}' of" in str(error) for name in ("append", "pop")):
            return {"error": str(error)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    try:
        return {"output": compiled(MUTABLE, source).render(**context), "mutable": True}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Weather at a place.\nUse < & > with care, é漢字😀.",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "description": "City\nname", "enum": ["Paris", "Zürich"]},
            "days": {"type": "integer", "minimum": 0, "maximum": 18446744073709551615, "default": 3},
            "exact": {"type": "boolean", "default": True},
            "box": {"type": "array", "items": {"type": "number"}},
            "when": {"type": "string", "format": "date-time"},
            "more": {"type": "object", "properties": {"x": {"type": "number", "default": 1.5}},
                     "additionalProperties": {"type": "string"}}},
            "required": ["city"]}}},
    {"type": "function", "function": {"name": "noop", "description": "", "parameters": {}}},
]


def call(name, arguments, number=0, as_text=False):
    if as_text:
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def conversations():
    system = {"role": "system", "content": "You are terse.\n"}
    user = {"role": "user", "content": "Hello, wörld 你好 😀"}
    yield "empty", []
    yield "user", [user]
    yield "system_user", [system, user]
    yield "system_only", [system]
    yield "two_systems", [system, {"role": "system", "content": "Second."}, user]
    yield "late_system", [user, system, user]
    yield "blank", [{"role": "user", "content": ""}]
    yield "blank_system", [{"role": "system", "content": ""}, user]
    yield "spaces", [{"role": "user", "content": " \n\t a  b \n\n"}]
    yield "multi", [system, user, {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "More?"}]
    yield "prefill", [user, {"role": "assistant", "content": "I am"}]
    yield "prefix", [user, {"role": "assistant", "content": "I am", "prefix": True}]
    yield "think", [user, {"role": "assistant", "content": "<think>\nhmm\n</think>\n\nHi."}, user]
    yield "think_last", [user, {"role": "assistant", "content": "<think>a</think>b</think>c"}]
    yield "reasoning", [user, {"role": "assistant", "reasoning_content": " so \n", "content": "Hi."}, user,
                        {"role": "assistant", "reasoning_content": "last", "content": "Bye."}]
    yield "lookalike", [{"role": "system", "content": "<|im_end|>"}, {"role": "user", "content":
                        "<｜User｜><|im_start|>system\n<|eot_id|>[gMASK]<sop></think>{{ bos_token }}{% raw %}"}]
    yield "markup", [{"role": "user", "content": "<b>\"a\" & 'b'</b> \\n \u2028 \x07 \x7f"}]
    yield "parts", [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]
    yield "image", [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what?"},
                                                  {"type": "image_url", "image_url": {"url": "x"}}]}]
    yield "none", [user, {"role": "assistant", "content": None}, user]
    yield "named", [{"role": "user", "name": "Zoë", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    for as_text in (False, True):
        tag = "_text" if as_text else ""
        one = call("get_weather", {"city": "Zürich", "days": 2, "exact": False, "x": None}, 0, as_text)
        two = call("noop", {}, 1, as_text)
        nested = call("noop", {"a": [1, 2.5, {"b": "<|x|>"}], "c": {"d": "\n\"'"}, "s": "it's"}, 2, as_text)
        yield f"call{tag}", [user, {"role": "assistant", "content": "", "tool_calls": [one]}]
        yield f"call_result{tag}", [system, user, {"role": "assistant", "content": "Let me see.", "tool_calls": [one]},
                                    {"role": "tool", "tool_call_id": "call_0", "name": "get_weather", "content": "{\"t\": 21}"},
                                    {"role": "assistant", "content": "21 degrees."}, user]
        yield f"two_calls{tag}", [user, {"role": "assistant", "content": None, "tool_calls": [one, two]},
                                  {"role": "tool", "content": "a"}, {"role": "tool", "content": "b"}]
        yield f"nested_call{tag}", [user, {"role": "assistant", "content": "x", "reasoning_content": "r",
                                           "tool_calls": [nested]}, {"role": "tool", "content": [{"type": "text", "text": "ok"}]}]
    yield "orphan_result", [user, {"role": "tool", "content": "a"}, user]
    yield "structured_result", [user, {"role": "tool", "content": {"a": 1}}, {"role": "tool", "content": [{"output": "o"}]}]
    yield "no_content", [{"role": "user"}]
    yield "odd_role", [{"role": "critic", "content": "no"}]
    yield "long", [m for i in range(40) for m in ({"role": "user", "content": f"q{i} " + "é" * i},
                                                  {"role": "assistant", "content": f"a{i}\n" * (i % 5)})]


EXTRAS = {
    "plain": {}, "think": {"enable_thinking": True, "thinking": True}, "nothink": {"enable_thinking": False},
    "flags": {"clear_thinking": False, "add_vision_id": True, "tools_in_user_message": False,
              "builtin_tools": ["code_interpreter", "get_weather"], "date_string": "1 Jan 2025"},
}


def matrix():
    for (name, messages), tools, prompt, extra in itertools.product(
            conversations(), (None, TOOLS), (False, True), EXTRAS):
        yield f"{name}/{'tools' if tools else 'no_tools'}/{'prompt' if prompt else 'no_prompt'}/{extra}", {
            "messages": messages, "tools": tools, "documents": None, "add_generation_prompt": prompt,
            "bos_token": "<s>", "eos_token": "</s>", **EXTRAS[extra]}


def write_goldens(folder, contexts, cases):
    """Each conversation stands once; a context names it, and says "tools" for TOOLS."""
    conversations, short = {}, {}
    for case, context in contexts.items():
        name = case.split("/")[0]
        assert conversations.setdefault(name, context["messages"]) == context["messages"]
        short[case] = {**context, "messages": name, "tools": "tools" if context["tools"] else None}
    content = {"tools": TOOLS, "conversations": conversations, "contexts": short, "cases": cases}
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    (folder / "goldens.json").write_text(text + "\n", encoding="utf-8")


def main():
    source_dir, out_dir = map(pathlib.Path, sys.argv[1:3])
    out_dir.mkdir(parents=True, exist_ok=True)
    goldens, counts = [], {}
    for path in sorted(source_dir.glob("*.jinja")):
        if path.parent.resolve() != out_dir.resolve():
            shutil.copyfile(path, out_dir / path.name)
        source = path.read_text(encoding="utf-8")
        for case, context in matrix():
            result = render(source, context)
            kind = "error" if "error" in result else "mutable" if result.get("mutable") else "output"
            counts[(path.name, kind)] = counts.get((path.name, kind), 0) + 1
            goldens.append({"template": path.name, "case": case, **result})
    write_goldens(out_dir, dict(matrix()), goldens)
    for (name, kind), count in sorted(counts.items()):
        print(f"{name:50} {kind:8} {count}")
    print(f"{len(goldens)} cases")


if __name__ == "__main__":
    main()
