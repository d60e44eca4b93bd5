"""Takes 30 passages from the held-out books as prompts: ten a book, evenly spread, 120 words each."""

import argparse
import json

import corpus


def passages(text, count, words):
    """The first `words` words of paragraphs-on at `count` even places of the text."""
    for i in range(count):
        at = text.index("\n\n", len(text) * (2 * i + 1) // (2 * count)) + 2
        piece, n, end = text[at:], 0, 0
        for end, ch in enumerate(piece):
            if ch in " \n" and end and piece[end - 1] not in " \n":
                n += 1
                if n == words:
                    break
        yield piece[:end]


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--corpus", required=True)
    p.add_argument("--out", default="training/prompts/held_out.jsonl")
    args = p.parse_args()
    _, held_out = corpus.split(corpus.read_books(args.corpus))
    with open(args.out, "w", encoding="utf-8") as out:
        for name, text in held_out.items():
            for prompt in passages(text, 10, 120):
                out.write(json.dumps({"book": name, "prompt": prompt}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
