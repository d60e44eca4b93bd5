"""About 200 strings with their ids by the `tokenizers` package, no special tokens added."""

import argparse
import json
from pathlib import Path

from tokenizers import Tokenizer

import corpus

FIXED = [
    "", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n ", "\n \n", "   \n\n  x", "a  b   c    d", "x\n\n\n\ny",
    "trailing blanks   ", "   leading blanks", "\u00a0nbsp\u00a0here", "thin\u2009space", "\u3000ideographic",
    "line\u2028separator", "zero\u200bwidth", "tab\tbetween\ttabs", "\r", "a\rb", "\x0b\x0c", "\x85next",
    "0", "7", "42", "123", "1234", "12345", "123456", "1234567890", "3.14159", "1,000,000", "0x1F", "²³½⅓", "Ⅷ Ⅻ",
    "٠١٢٣٤", "१२३४५", "１２３４", "1st 2nd 3rd", "v1.2.3-rc4", "a1b2c3", "$5.00", "50%", "1815–1830", "1e-5",
    "Hello, world!", "don't", "don’t", "I'll I'd we've they're", "DON'T", "“Oh!” he said.", "‘Yes’—“No…”",
    "e.g. i.e. etc.", "Mr. and Mrs. Bennet", "naïve café résumé", "cafe\u0301", "Ångström", "ß ẞ ſ",
    "ﬁ ﬂ ligatures", "Ελληνικά κείμενα", "Русский текст", "עברית", "العربية", "हिन्दी में", "ภาษาไทย", "한국어 문장",
    "日本語のテキスト", "ひらがなカタカナ", "中文文本,混合English", "你好，世界！", "漢字かな交じり文", "龥龦", "一二三",
    "カタカナ・テスト", "ㄅㄆㄇ", "ﾊﾝｶｸ", "𠀀𠀁", "😀", "😀😃😄", "👨‍👩‍👧‍👦", "🇬🇧🇫🇷", "👍🏽", "❤️", "a😀b", "😀 word",
    "♠♣♥♦", "→ ← ↑", "∑∫√", "€£¥₿", "©®™", "•◦‣", "───", "¿Qué? ¡Ay!",
    "!", "!!", "?!?!", "...", "…", "--", "—", "(parens)", "[brackets]", "{braces}", "<tags>", "a_b_c", "__init__",
    "#hash @at &amp;", "path/to/file.txt", "C:\\dir\\file", "https://example.org/a?b=c&d=e#f", "me@example.org",
    "x=y+z*w/(a-b)", "a&&b||!c", "`code`", "~tilde^caret|pipe", "\"quoted\"", "'single'", ".hidden", "-flag --option=1",
    "if (x) {\n  return y;\n}\n", "def f(x):\n\treturn x\n", "SELECT * FROM t;", "{\"a\": [1, 2, null]}", "<!-- c -->",
    "camelCaseWord", "snake_case_word", "SHOUTING", "MiXeD", "aaaaaaaaaaaaaaaa", "ab" * 20, "a" * 100, " " * 33,
    "\n" * 17, "-" * 40, "=" * 7, ".\n\n.", "!\n?", ",\r\n,", ")\n\n(", " ?\n", "\n?", "\u0301", "\u0301a", "a\u0301\u0302",
    "_\u0301x", "\ufeffbom", "\ufffd", "\x00", "\x01\x1f", "\x7f", "\U0010ffff", "\ue000",
    "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>", "<｜User｜>Hello<｜Assistant｜>", "<｜User｜>",
    "a<｜Assistant｜> b", "<|User|>", "<｜user｜>", "<｜begin_of_sentence｜>", "<｜begin▁of▁sentence｜", "｜User｜>",
    "<｜Us<｜User｜>er｜>", "<｜User｜><｜User｜>", "<｜ User｜>", "<think>x</think>", "▁", "Ġword", "ĊĊ",
    "Once upon a time", " Once", "Once", "ONCE", "Dorothy lived in the midst of the great Kansas prairies,",
    "It is a truth universally acknowledged", "The game is afoot.", "Chapter 1", "CHAPTER XII", "I. II. III.",
    "word" + "\u00ad" + "shy", "a\u2060b", "x\u202ey", "1\u00a0000", "12 345", "12\n345", "３４５67", "9" * 10,
]


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--corpus", required=True)
    p.add_argument("--tokenizer", default="models/tales/tokenizer.json")
    p.add_argument("--out", default="tests/goldens/tales/tokenizer_vectors.json")
    args = p.parse_args()
    tokenizer = Tokenizer.from_file(args.tokenizer)
    strings = list(FIXED)
    for text in corpus.split(corpus.read_books(args.corpus))[1].values():
        strings += [text[i:i + 160] for i in range(5000, len(text) - 200, len(text) // 10)]
    vectors = [{"text": s, "ids": tokenizer.encode(s, add_special_tokens=False).ids} for s in strings]
    Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(v, ensure_ascii=True) for v in vectors)
    Path(args.out).write_text("[\n" + lines + "\n]\n")
    print(len(vectors), "strings")


if __name__ == "__main__":
    main()
