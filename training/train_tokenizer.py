"""Trains the byte-level BPE of 8192 tokens and writes tokenizer.json and tokenizer_config.json."""

import argparse
import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import corpus

VOCAB_SIZE = 8192
FIRST = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"]  # ids 0, 1, 2
LAST = ["<｜User｜>", "<｜Assistant｜>"]  # ids 8190, 8191

# DeepSeek-V3's three splits: digits by threes, CJK runs, then words, punctuation and blanks.
SPLITS = [
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
]

CHAT_TEMPLATE = (
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
    "{{ bos_token }}"
    "{%- for message in messages %}"
    "{%- if message['role'] == 'system' %}{{ message['content'] }}"
    "{%- elif message['role'] == 'user' %}{{ '<｜User｜>' + message['content'] }}"
    "{%- elif message['role'] == 'assistant' %}"
    "{{ '<｜Assistant｜>' + message['content'] + '<｜end▁of▁sentence｜>' }}"
    "{%- endif %}{%- endfor -%}"
    "{% if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}"
)


def train(books):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(p), "isolated") for p in SPLITS]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(LAST), special_tokens=FIRST, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    # By paragraph, each with the blank line after it: pieces like ".\n\n" are worth a token.
    tokenizer.train_from_iterator(
        (p + "\n\n" for t in books.values() for p in t.split("\n\n")), trainer)
    return tokenizer


def as_deepseek(tokenizer):
    """The same JSON structure as DeepSeek-V3's file: merges as strings, post-processor ByteLevel."""
    d = json.loads(tokenizer.to_str())
    vocab = d["model"]["vocab"]
    d["model"]["merges"] = [m if isinstance(m, str) else " ".join(m) for m in d["model"]["merges"]]
    d["model"]["vocab"] = dict(sorted(vocab.items(), key=lambda kv: kv[1]))
    d["normalizer"] = {"type": "Sequence", "normalizers": []}
    d["post_processor"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False,
                           "use_regex": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False}
    d["added_tokens"] = [
        {"id": i, "content": t, **flags, "normalized": False, "special": True}
        for i, t in enumerate(FIRST)
    ] + [
        {"id": VOCAB_SIZE - len(LAST) + i, "content": t, **flags, "normalized": True,
         "special": False}
        for i, t in enumerate(LAST)
    ]
    assert len(vocab) == VOCAB_SIZE - len(LAST), len(vocab)
    return d


def tokenizer_config():
    def token(content):
        return {"__type": "AddedToken", "content": content, "lstrip": False, "normalized": True,
                "rstrip": False, "single_word": False}
    return {
        "add_bos_token": True, "add_eos_token": False,
        "bos_token": token(FIRST[0]), "eos_token": token(FIRST[1]), "pad_token": token(FIRST[2]),
        "clean_up_tokenization_spaces": False, "legacy": True, "model_max_length": 2048,
        "sp_model_kwargs": {}, "unk_token": None, "tokenizer_class": "LlamaTokenizerFast",
        "chat_template": CHAT_TEMPLATE,
    }


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--corpus", required=True, help="folder of .txt books, or a tar archive of them")
    p.add_argument("--out", default="models/tales")
    args = p.parse_args()
    train_books, held_out = corpus.split(corpus.read_books(args.corpus))
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(as_deepseek(train(train_books)), ensure_ascii=False, indent=0)
    (out / "tokenizer.json").write_text(text, encoding="utf-8")
    (out / "tokenizer_config.json").write_text(
        json.dumps(tokenizer_config(), ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    check = Tokenizer.from_file(str(out / "tokenizer.json"))
    for name, book in held_out.items():
        ids = check.encode(book, add_special_tokens=False).ids
        assert check.decode(ids, skip_special_tokens=False) == book
        print(f"{name}: {len(book.encode()) / len(ids):.3f} bytes per token")


if __name__ == "__main__":
    main()
