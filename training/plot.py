"""Draws the loss curves from the training logs into one small PNG."""

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def read(path):
    return [json.loads(line) for line in open(path)] if path.exists() else []


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--logs", required=True, help="folder with target.jsonl, mtp.jsonl, eagle3.jsonl")
    p.add_argument("--out", default="models/tales/loss.png")
    args = p.parse_args()
    logs = Path(args.logs)
    target = read(logs / "target.jsonl")
    fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), dpi=90)
    left.plot([e["tokens"] / 1e6 for e in target], [e["loss"] for e in target], lw=1,
              label="training loss (nats/token)")
    held = [e for e in target if "held_out" in e]
    left.plot([e["tokens"] / 1e6 for e in held], [e["held_out"]["mean"] for e in held], "o-", ms=3,
              lw=1, label="held-out books (bits/byte)")
    left.set(xlabel="million tokens", title="target", ylim=(1, 6))
    for name, style in (("mtp", "-"), ("eagle3", "--")):
        log = read(logs / f"{name}.jsonl")
        for k in range(len(log[0]["agree"]) if log else 0):
            right.plot([e["tokens"] / 1e6 for e in log], [e["agree"][k] for e in log], style, lw=1,
                       color=f"C{k}", label=f"{name}, draft {k + 1}")
    right.set(xlabel="million tokens", title="heads: drafts equal to the target's first choice")
    for axis in (left, right):
        axis.grid(alpha=0.3)
        axis.legend(fontsize=6)
    fig.tight_layout()
    fig.savefig(args.out)


if __name__ == "__main__":
    main()
