"""Loads an exported target in transformers and compares its logits with ours, both in float32."""

import argparse

import torch

from checkpoint import load_target
from corpus import BOS


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--model", default="models/tales")
    args = p.parse_args()
    from transformers import AutoModelForCausalLM, AutoTokenizer
    theirs = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=torch.float32, attn_implementation="eager").eval()
    ours, _ = load_target(args.model)
    ours.eval()
    worst = 0.0
    for length in (1, 2, 17, 300):
        g = torch.Generator().manual_seed(length)
        ids = torch.randint(3, 8190, (1, length), generator=g)
        ids[0, 0] = BOS
        with torch.no_grad():
            a = theirs(ids).logits
            b = ours.head(ours(ids)[0])
        error = ((a - b).abs().max() / a.abs().max()).item()
        worst = max(worst, error)
        print(f"{length:4} tokens: largest difference {error:.1e} of the largest logit")
    if worst > 2e-4:
        raise SystemExit("the export does not give the same logits")
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "Once upon a time"}],
                                         add_generation_prompt=True, tokenize=False)
    print("chat template:", chat)
    print("same logits")


if __name__ == "__main__":
    main()
