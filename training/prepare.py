"""Turns the books into tokens.npz: the training stream, the dialogues and the held-out books."""

import argparse
from pathlib import Path

from tokenizers import Tokenizer

import corpus


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--corpus", required=True, help="folder of .txt books, or a tar archive of them")
    p.add_argument("--tokenizer", default="models/tales/tokenizer.json")
    p.add_argument("--out", required=True)
    args = p.parse_args()
    Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    arrays = corpus.write_tokens(
        args.out, Tokenizer.from_file(args.tokenizer), corpus.read_books(args.corpus))
    for name, a in arrays.items():
        print(f"{name}: {a.size:,} values" if a.ndim else f"{name}: {a}")


if __name__ == "__main__":
    main()
