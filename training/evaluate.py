"""Figures of the exported models by the training code: bits per byte, acceptance per draft step."""

import argparse
import json
from pathlib import Path

import torch

import data
from checkpoint import load_eagle3, load_target
from corpus import BOS
from generate import generate, repeated_4_grams
from train_heads import Wanted, draft_figures
from train_target import held_out, token_losses
from unroll import Eagle3Steps, MTPSteps, unroll


def walk(hits, draft_len):
    """Greedy cycles over one text. hits [rows, steps] bool: row p, step k+1 drafts token p+k+2 right.

    Returns (tokens gained, cycles, tries per step, hits per step).
    """
    p, cycles, tries, right = 0, 0, [0] * draft_len, [0] * draft_len
    while p + draft_len < len(hits):
        accepted = 0
        for k in range(draft_len):
            tries[k] += 1
            if not hits[p + k][k]:
                break
            right[k] += 1
            accepted += 1
        p += accepted + 1
        cycles += 1
    return p, cycles, tries, right


@torch.no_grad()
def acceptance(target, drafter, text, prompt_len, temperature, max_drafts, aux_layers):
    """text [B, L]: prompts and the target's own continuations at this temperature.

    temperature 0: exact greedy acceptance. Else: mean chance per step that the drafter draws the
    text's next token under the target's noise, on the condition that the steps before were accepted.
    """
    state, aux = target(text, aux_layers)
    following = torch.nn.functional.pad(text[:, 2:], (0, 1), value=-1)
    wanted = Wanted(target.head(state[:, 1:]), following, drafter.vocabulary, temperature or 1.0)
    first = prompt_len - 2  # row p drafts token p+2: begin with the second new token
    rates = []
    for logits in unroll(drafter, text, state, aux, max_drafts):
        if temperature == 0:
            rates.append((logits.argmax(-1) == wanted.following)[:, first:-1])
        else:
            rates.append(draft_figures(logits, wanted)[1][:, first:-1])
    rates = torch.stack(rates, -1)  # [B, rows, steps]: step k+1 of the chain that ends in that row
    result = {}
    if temperature == 0:
        for n in range(1, max_drafts + 1):
            total = [walk(r.tolist(), n) for r in rates]
            gained, cycles = (sum(t[i] for t in total) for i in (0, 1))
            result[f"accept_length_{n}"] = round(gained / cycles, 3)
        result["acceptance"] = [round(sum(t[3][k] for t in total) / max(1, sum(t[2][k] for t in total)), 3)
                                for k in range(max_drafts)]
    else:
        rows = rates.shape[1] - max_drafts
        chain = torch.stack([rates[:, k:k + rows, k] for k in range(max_drafts)], -1).cumprod(-1)
        means = chain.mean((0, 1)).tolist()
        for n in range(1, max_drafts + 1):
            result[f"accept_length_{n}"] = round(1 + sum(means[:n]), 3)
        result["acceptance"] = [round(m / (means[k - 1] if k else 1), 3) for k, m in enumerate(means)]
    return result


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--model", default="models/tales")
    p.add_argument("--eagle3", default="models/tales-eagle3")
    p.add_argument("--tokens", help="tokens.npz: measure bits per byte too")
    p.add_argument("--prompts", default="training/prompts/held_out.jsonl")
    p.add_argument("--prompt-tokens", type=int, default=96)
    p.add_argument("--new-tokens", type=int, default=256)
    p.add_argument("--seed", type=int, default=5)
    p.add_argument("--out", help="write the figures to this JSON file")
    args = p.parse_args()
    from tokenizers import Tokenizer
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = Tokenizer.from_file(str(Path(args.model) / "tokenizer.json"))
    target, mtp = load_target(args.model)
    target.to(device).eval().requires_grad_(False)
    figures = {}
    if args.tokens:
        tokens = data.load_tokens(args.tokens, device)

        @torch.no_grad()
        def losses(rows):
            return token_losses(target, rows)
        for context in (512, 1024, 2048):
            figures[f"bits_per_byte_{context}"] = held_out(target, losses, tokens, context, context // 2)
            print(context, figures[f"bits_per_byte_{context}"], flush=True)
        target.eval()
    prompts = []
    for line in open(args.prompts, encoding="utf-8"):
        ids = tokenizer.encode(json.loads(line)["prompt"], add_special_tokens=False).ids
        prompts.append([BOS] + ids[:args.prompt_tokens - 1])
    short = min(map(len, prompts))
    prompts = torch.tensor([ids[:short] for ids in prompts], device=device)
    drafters, aux_layers = {}, ()
    if mtp is not None:
        drafters["mtp"] = MTPSteps(mtp.to(device).eval(), target)
    if (Path(args.eagle3) / "config.json").exists():
        eagle = load_eagle3(args.eagle3).to(device).eval()
        drafters["eagle3"], aux_layers = Eagle3Steps(eagle, target), eagle.config["aux_layers"]
    for temperature in (0.0, 0.8):
        heat = torch.full((len(prompts),), temperature, device=device)
        text = generate(target, prompts, args.new_tokens, heat, args.seed, torch.float32)
        repeats = [repeated_4_grams(t[short:]) for t in text.tolist()]
        entry = {"repeated_4_grams": round(sum(repeats) / len(repeats), 3)}
        for name, drafter in drafters.items():
            entry[name] = acceptance(target, drafter, text, short, temperature, 5, aux_layers)
        figures[f"temperature_{temperature}"] = entry
        print(temperature, json.dumps(entry), flush=True)
    if args.out:
        Path(args.out).write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
