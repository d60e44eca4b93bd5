"""The books: reading them, holding three out, turning them into one token stream."""

import io
import tarfile
from pathlib import Path

import numpy as np

# Never seen by the tokenizer or by any weight; every reported figure comes from these.
HELD_OUT = (
    "l-frank-baum_the-wonderful-wizard-of-oz",
    "arthur-conan-doyle_the-hound-of-the-baskervilles",
    "jane-austen_mansfield-park",
)

BOS, EOS, PAD, USER, ASSISTANT = 0, 1, 2, 8190, 8191


def read_books(path):
    """{name: text} from a folder of .txt files or a tar archive of them, sorted by name."""
    path = Path(path)
    if path.is_dir():
        books = {p.stem: p.read_text(encoding="utf-8") for p in path.glob("*.txt")}
    else:
        with tarfile.open(path) as tar:
            members = [m for m in tar.getmembers() if m.name.endswith(".txt")]
            books = {Path(m.name).stem: io.TextIOWrapper(tar.extractfile(m), "utf-8").read()
                     for m in members}
    missing = [name for name in HELD_OUT if name not in books]
    if missing:
        raise SystemExit(f"{path}: the held-out books are missing: {', '.join(missing)}")
    return dict(sorted(books.items()))


def split(books):
    train = {k: v for k, v in books.items() if k not in HELD_OUT}
    return train, {k: books[k] for k in HELD_OUT}


def encode_stream(tokenizer, books):
    """All books as one stream, each closed by EOS. BOS is set by the batch maker."""
    encoded = tokenizer.encode_batch(list(books.values()), add_special_tokens=False)
    return np.concatenate([np.array(e.ids + [EOS], dtype=np.uint16) for e in encoded])


def encode_dialogues(tokenizer, books, seed, answer_tokens=400, user_tokens=160):
    """(stream, starts): "<User> a passage <Assistant> the passages after it <EOS>".

    Gives the control tokens of the chat template a meaning: the answer carries the story on.
    """
    rng = np.random.default_rng(seed)
    out, starts, size = [], [], 0
    for text in books.values():
        paragraphs = [p for p in text.split("\n\n") if p.strip()]
        ids = [e.ids for e in tokenizer.encode_batch(paragraphs, add_special_tokens=False)]
        breaks = tokenizer.encode("\n\n", add_special_tokens=False).ids
        i = int(rng.integers(0, 6))
        while i + 1 < len(ids):
            user = ids[i][:user_tokens]
            limit, answer, j = int(rng.integers(60, answer_tokens)), [], i + 1
            while j < len(ids) and len(answer) + len(ids[j]) <= limit:
                answer += (breaks if answer else []) + ids[j]
                j += 1
            if answer:
                sample = [BOS, USER, *user, ASSISTANT, *answer, EOS]
                starts.append(size)
                out.append(np.array(sample, dtype=np.uint16))
                size += len(sample)
            i = max(j, i + 1)
    return np.concatenate(out), np.array(starts, dtype=np.int64)


def write_tokens(out, tokenizer, books, seed=1):
    """tokens.npz: the training stream, the dialogue stream and the held-out books."""
    train, held_out = split(books)
    dialogues, starts = encode_dialogues(tokenizer, train, seed)
    arrays = {"stream": encode_stream(tokenizer, train), "dialogues": dialogues,
              "dialogue_starts": starts}
    for name, text in held_out.items():
        arrays["held_out." + name] = encode_stream(tokenizer, {name: text})[:-1]
        arrays["held_out_bytes." + name] = np.array(len(text.encode("utf-8")))
    np.savez(out, **arrays)
    return arrays
