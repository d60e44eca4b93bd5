#!/usr/bin/env python3
"""Compares our tokenizer with PyPI `tokenizers` and `tiktoken` on random Unicode strings.

    pip install tokenizers tiktoken
    scripts/compare_tokenizer.py --tool build/release/bin/tokenizer_tool [--count 100000]
        [--model DIR]...        real checkpoints' tokenizer.json, beside small ones trained here
        [--only NAME]...        of the small ones, only these (kimi-json-small brings the tiktoken form)
        [--write-vectors DIR]   also write the vectors that the unit tests read
Exits with 1 if anything differs.
"""
import argparse
import base64
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata

import tiktoken
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
LOWER = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + TAIL
KIMI_WORD = r"|[^\r\n\p{L}\p{N}]?[%s&&[^\p{Han}]]%s[%s&&[^\p{Han}]]%s" + CONTRACTIONS + "?"
KIMI = (r"[\p{Han}]+" + KIMI_WORD % (UPPER, "*", LOWER, "+") + KIMI_WORD % (UPPER, "+", LOWER, "*") +
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + TAIL)
GPT4O_WORDS = (rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+%s|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*%s"
               r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*") + TAIL
# The file holds real line ends, not escapes.
DEEPSEEK_V3 = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
               r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
               r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]
DEEPSEEK_V3[2] = DEEPSEEK_V3[2].replace(r"\r", "\r").replace(r"\n", "\n")
DEEPSEEK_V2 = ["[\r\n]", r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕ𐐀-𐑏𞤀-𞥃]+",
               r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", "[一-龥ࠀ-一가-퟿]+", r"\p{N}+"]
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
LING = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
        r"|\s*[\r\n]|\s+(?!\S)|\s+")
YOUTU = ["[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
         GPT4O_WORDS % (CONTRACTIONS + "?", CONTRACTIONS + "?")]
TEKKEN = GPT4O_WORDS % ("", "")


def splits(*patterns):
    return [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]


def chain(steps, **byte_level):
    level = pre_tokenizers.ByteLevel(**{"add_prefix_space": False, "use_regex": False, **byte_level})
    return pre_tokenizers.Sequence(steps + [level])


# name -> (pre-tokenizer, normalizer, ignore_merges)
SMALL = {
    "deepseek-v3-small": (chain(splits(*DEEPSEEK_V3)), None, False),
    "llama3-small": (chain(splits(LLAMA3)), None, True),
    "qwen2-small": (chain(splits(QWEN2)), normalizers.NFC(), False),
    "deepseek-v2-small": (chain(splits(*DEEPSEEK_V2) + [pre_tokenizers.Digits(individual_digits=True)]), None, False),
    "ling-small": (chain(splits(LING)), normalizers.NFC(), False),
    "youtu-small": (chain(splits(*YOUTU)), None, False),
    "tekken-small": (chain(splits(TEKKEN)), None, True),
    "kimi-json-small": (chain(splits(KIMI)), None, True),
    "gpt2-small": (chain([], use_regex=True, add_prefix_space=True), None, False),
    "merged-small": (chain([pre_tokenizers.Split(" ", "merged_with_next"), pre_tokenizers.Split(
        Regex(r"\p{P}"), "merged_with_previous"), pre_tokenizers.Split(Regex(r"[\r\n]+"), "removed")]), None, False),
}
ADDED = [AddedToken("<｜User｜>", special=False, normalized=False), AddedToken("<|end|>", special=True),
         AddedToken("<|endless|>", special=True), AddedToken("<think>", special=False),
         AddedToken("<l>", lstrip=True), AddedToken("<r>", rstrip=True),
         AddedToken("wərd", single_word=True, normalized=False), AddedToken("ё|", normalized=True)]
CONTROL_LOOKALIKES = ["<｜User｜>", "<｜User", "<|end|>", "<|endless|>", "<|end", "<think>", "</think>", " <l> ", "<r>  ",
                      "wərd", "swərd", " wərd,", "<｜begin▁of▁sentence｜>", "<｜Assistant｜>", "<|EOT|>", "<|im_end|>",
                      "[EOS]", "<｜tool▁sep｜>", "ё|", "\u0435\u0308|"]


class Strings:
    """Random strings of all sorts; every string is valid Unicode."""

    BLOCKS = [(0x20, 0x7E)] * 6 + [(0xA0, 0x24F), (0x250, 0x2FF), (0x370, 0x3FF), (0x400, 0x4FF), (0x531, 0x58F),
              (0x590, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x13A0, 0x13FD),
              (0x1C90, 0x1CBF), (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x218F), (0x2190, 0x2BFF),
              (0x3000, 0x30FF), (0x3100, 0x31FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xFB00, 0xFDFF),
              (0xFE30, 0xFE4F), (0xFF00, 0xFFEF), (0x10400, 0x1044F), (0x1D400, 0x1D7FF), (0x1E900, 0x1E95F),
              (0x1F300, 0x1FAFF), (0x20000, 0x20100)]
    WORDS = "the of and Hello WORLD camelCase naïve don't I'LL we'Ve it'S they'ſ für 北京 東京 서울 Москва".split()
    SPACES = [" ", "  ", "    ", "\n", "\r\n", "\n\n", "\t", " \n", "\n ", "\u00a0", "\u3000", "\x0b", "\x0c", "\x85",
              "\u2028", "\u200b", "\r", " \t \n  "]

    def __init__(self, seed, lookalikes=True):
        self.kinds = [0, 1, 2, 3, 4, 5, 7, 8, 9, 10] + [6] * lookalikes
        self.random = random.Random(seed)
        self.marks = [chr(c) for c in range(0x300, 0x370)] + ["\u20dd", "\u093e", "\u0903", "\ufe0f", "\u200d"]
        self.digits = "0123456789" * 3 + "٣४๕５²¼Ⅷ〇𝟗"

    def any_char(self):
        while True:
            c = self.random.randrange(0x30000) if self.random.random() < 0.9 else self.random.randrange(0x110000)
            if not 0xD800 <= c <= 0xDFFF:
                return chr(c)

    def part(self):
        r, kind = self.random, self.random.choice(self.kinds)
        if kind == 0:
            return "".join(self.any_char() for _ in range(r.randint(1, 4)))
        if kind == 1:
            return r.choice(self.WORDS)
        if kind == 2:
            return "".join(r.choice(self.SPACES) for _ in range(r.randint(1, 3)))
        if kind == 3:
            return "".join(r.choice(self.digits) for _ in range(r.randint(1, 9)))
        if kind == 4:
            return "".join(r.choice("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~、。！？“”‘’—…«»") for _ in range(r.randint(1, 5)))
        if kind == 5:
            return r.choice("aeo北ㅎ가é ") + "".join(r.choice(self.marks) for _ in range(r.randint(1, 3)))
        if kind == 6:
            return r.choice(CONTROL_LOOKALIKES)
        if kind == 7:
            return r.choice(["'s", "'S", "'ll", "'LL", "'re", "'d", "'T", "'x", "\u2019s", "'ſ"])
        first, last = r.choice(self.BLOCKS)
        return "".join(chr(r.randint(first, last)) for _ in range(r.randint(1, 8)))

    def make(self):
        text = "".join(self.part() for _ in range(self.random.choice([1, 2, 3, 5, 8, 13])))
        return text + (" " if self.random.random() < 0.2 else "") + ("\n" if self.random.random() < 0.1 else "")


def train(name, vocab_size, corpus):
    pre_tokenizer, normalizer, ignore_merges = SMALL[name]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoders.ByteLevel()
    if normalizer:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False, special_tokens=["<s>", "</s>"])
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_tokens(ADDED)
    tokenizer.add_special_tokens([t for t in ADDED if t.special])
    data = json.loads(tokenizer.to_str())
    assert not any(t.content in data["model"]["vocab"] for t in ADDED)
    data["model"]["ignore_merges"] = ignore_merges
    if ignore_merges:  # this spelling as well
        data["model"]["merges"] = [m if isinstance(m, list) else m.split(" ") for m in data["model"]["merges"]]
    else:
        data["model"]["merges"] = [m if isinstance(m, str) else " ".join(m) for m in data["model"]["merges"]]
    return data


def write_kimi(directory, source):
    """tiktoken.model with the ranks of a trained vocabulary, and Kimi's way to name ids."""
    char_of = {}
    extra = 256
    for b in range(256):
        if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174:
            char_of[chr(b)] = b
        else:
            char_of[chr(extra)] = b
            extra += 1
    vocab = sorted((i, t) for t, i in source["model"]["vocab"].items())
    tokens = [bytes(char_of[c] for c in t) for _, t in vocab if t not in ("<s>", "</s>")]
    tokens = sorted((t for t in tokens if len(t) == 1)) + [t for t in tokens if len(t) > 1]
    ranks = {t: i for i, t in enumerate(tokens)}
    lines = [base64.b64encode(t).decode() + f" {i}" for t, i in ranks.items()]
    (directory / "tiktoken.model").write_text("\n".join(lines) + "\n")
    named = {0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 10: "<think>", 11: "<｜User｜>"}
    base = len(ranks)
    config = {"bos_token": "[BOS]", "eos_token": "[EOS]", "added_tokens_decoder": {
        str(base + i): {"content": name, "special": i < 10} for i, name in named.items()}}
    (directory / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False))
    special = {named.get(i, f"<|reserved_token_{base + i}|>"): base + i for i in range(256)}
    return tiktoken.Encoding("kimi", pat_str=KIMI, mergeable_ranks=ranks, special_tokens=special)


def ours(tool, directory, mode, texts):
    lines = "".join(f"{mode} {t.encode().hex()}\n" for t in texts)
    run = subprocess.run([tool, str(directory)], input=lines, capture_output=True, text=True, check=True)
    for line in run.stdout.splitlines():
        ids, decoded = line.split("|")
        yield [int(i) for i in ids.split()], bytes.fromhex(decoded).decode()


class Comparison:
    def __init__(self, tool, count):
        self.tool, self.count, self.mismatches = tool, count, 0

    def run(self, name, directory, mode, texts, expected, decode):
        bad = 0
        for text, want, (got, decoded) in zip(texts, expected, ours(self.tool, directory, mode, texts), strict=True):
            if got != want or decoded != decode(want):
                bad += 1
                if bad <= 5:
                    print("  MISMATCH", name, ascii(text), "want", want, "got", got, "decoded", ascii(decoded))
        print(f"{name:22} {mode:8} {len(texts):7} strings {bad} mismatches", flush=True)
        self.mismatches += bad

    def run_json(self, name, directory, texts):
        text = (directory / "tokenizer.json").read_text()
        full = Tokenizer.from_str(text)
        plain_json = json.loads(text)
        plain_json["added_tokens"] = []
        plain = Tokenizer.from_str(json.dumps(plain_json))
        result = {}
        for mode, tokenizer in (("control", full), ("plain", plain)):
            want = [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]
            self.run(name, directory, mode, texts, want, lambda ids: full.decode(ids, skip_special_tokens=False))
            result[mode] = want
        return result

    def run_tiktoken(self, name, directory, encoding, texts):
        result = {"control": encoding.encode_batch(texts, allowed_special="all"),
                  "plain": encoding.encode_ordinary_batch(texts)}
        for mode, want in result.items():
            self.run(name, directory, mode, texts, want, encoding.decode)
        return result


def write_list(path, items):
    lines = ",\n".join(json.dumps(item, ensure_ascii=True, separators=(",", ":")) for item in items)
    path.write_text(f"[\n{lines}\n]\n")


def write_vectors(directory, name, model_directory, every_text, texts, result):
    # Rows of [index of the text in texts.json, ids, ids when control tokens are not allowed]; the last
    # is left out when equal.
    directory.mkdir(parents=True, exist_ok=True)
    write_list(directory / "texts.json", every_text)
    for file in ("tokenizer.json", "tiktoken.model", "tokenizer_config.json"):
        if (model_directory / file).exists():
            (directory / name).mkdir(exist_ok=True)
            (directory / name / file).write_text((model_directory / file).read_text())
    index = {text: i for i, text in reversed(list(enumerate(every_text)))}
    rows = [[index[t], control] if control == plain else [index[t], control, plain]
            for t, control, plain in zip(texts, result["control"], result["plain"])]
    write_list(directory / name / "vectors.json", rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tool", required=True)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", type=pathlib.Path, action="append", default=[])
    parser.add_argument("--vocab-size", type=int, default=2500, help="of the tokenizers trained here")
    parser.add_argument("--only", choices=SMALL, action="append")
    parser.add_argument("--write-vectors", type=pathlib.Path)
    args = parser.parse_args()

    strings = Strings(args.seed)
    texts = ["", " ", "a"] + [strings.make() for _ in range(args.count)]
    # tiktoken's Unicode is newer than the tables of `tokenizers`: keep to what both have.
    settled = lambda t: all(unicodedata.category(c) != "Cn" for c in t)
    comparison = Comparison(args.tool, args.count)
    for directory in args.model:
        comparison.run_json(directory.name, directory, texts)
    # An added token that is also an ordinary one never comes out of our plain text: train none.
    training = Strings(args.seed + 1, lookalikes=False)
    corpus = [training.make() for _ in range(20_000)]
    root = pathlib.Path(__file__).parent.parent
    corpus += [p.read_text() for p in sorted(root.glob("src/*/*.h")) + [root / "LICENSE"]] * 4
    with tempfile.TemporaryDirectory() as temporary:
        for name in args.only or SMALL:
            directory = pathlib.Path(temporary) / name
            directory.mkdir()
            trained = train(name, args.vocab_size, corpus)
            (directory / "tokenizer.json").write_text(json.dumps(trained, ensure_ascii=False, separators=(",", ":")))
            result = comparison.run_json(name, directory, texts)
            if args.write_vectors:
                write_vectors(args.write_vectors, name, directory, texts, texts, result)
            if name == "kimi-json-small":
                directory = pathlib.Path(temporary) / "kimi"
                directory.mkdir()
                encoding = write_kimi(directory, trained)
                both = [t for t in texts if settled(t)]
                result = comparison.run_tiktoken("kimi-tiktoken-small", directory, encoding, both)
                if args.write_vectors:
                    write_vectors(args.write_vectors, "kimi-small", directory, texts, both, result)
    print(f"{comparison.mismatches} mismatches")
    return 1 if comparison.mismatches else 0


if __name__ == "__main__":
    sys.exit(main())
