"""Trains one draft head, MTP or EAGLE-3, on the frozen exported target, unrolled over several steps.

Some rows are book text, the others text the target wrote itself (generate.py --text); the loss, at
every step of the unrolling, is the cross entropy to the target's own next-token distribution, plus
what the two distributions do not overlap if the recipe gives that a weight.
"""

import argparse
import json
import time
from pathlib import Path

import torch

import data
from checkpoint import load_target
from drafter_eagle3 import Eagle3
from model import MTP, initialise, moe_layers
from optimiser import Optimiser, lr_scale
from unroll import Eagle3Steps, MTPSteps, unroll


def new_head(kind, config, target, text, tokens, seed):
    """A head started from the target: MTP from its last layer, EAGLE-3's output from its head."""
    if kind == "mtp":
        mtp = MTP(target.config)
        initialise(mtp, seed)
        mtp.layer.load_state_dict(target.layers[-1].state_dict())
        mtp.norm.load_state_dict(target.norm.state_dict())
        return mtp
    eagle = Eagle3(config["eagle3"])
    initialise(eagle, seed)
    size = target.config["vocab_size"]
    counts = torch.bincount(text.flatten().long(), minlength=size).double()
    books = torch.bincount(tokens["stream"].cpu(), minlength=size).double()
    eagle.choose_vocabulary(counts / counts.sum() + 0.5 * books / books.sum())
    eagle.lm_head.weight.data.copy_(target.embed_tokens.weight[eagle.target_ids()])
    eagle.norm.load_state_dict(target.norm.state_dict())
    return eagle


def draft_losses(logits, target_logits, vocabulary, temperatures):
    """(cross entropy, overlaps, agreement of the arg max) of every row, [B, T] (overlaps a list).

    The overlap at a temperature is sum(min(p, q)): how often two such distributions can be made to
    agree. Target mass outside the draft vocabulary counts nothing: no draft can win it.
    """
    logits, target_logits = logits.float(), target_logits.float()
    best, drafted = target_logits.argmax(-1), logits.argmax(-1)

    def target_probability(temperature):
        p = torch.softmax(target_logits / temperature, -1)
        return p if vocabulary is None else p[..., vocabulary]
    if vocabulary is not None:
        drafted = vocabulary[drafted]
    loss = -(target_probability(1.0) * torch.log_softmax(logits, -1)).sum(-1)
    overlaps = [torch.minimum(target_probability(t), torch.softmax(logits / t, -1)).sum(-1)
                for t in temperatures]
    return loss, overlaps, (drafted == best).float()


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--head", choices=("mtp", "eagle3"), required=True)
    p.add_argument("--config", default="training/configs/tales.json")
    p.add_argument("--model", default="models/tales", help="the exported target")
    p.add_argument("--tokens", required=True)
    p.add_argument("--text", required=True, help="made by generate.py --text")
    p.add_argument("--work", required=True)
    p.add_argument("--max-minutes", type=float, default=9)
    p.add_argument("--steps", type=int, help="overrides the recipe")
    args = p.parse_args()
    started = time.time()
    config = json.loads(Path(args.config).read_text())
    recipe, work = config["heads"][args.head], Path(args.work)
    steps = args.steps or recipe["steps"]
    work.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")

    text = torch.load(args.text)
    tokens = data.load_tokens(args.tokens, device)
    book_rows, written_rows = recipe["book_rows"], recipe["written_rows"]
    book_batches = data.Batches(tokens, book_rows, recipe["book_length"] + 1,
                                recipe["dialogue_rows"], recipe["seed"])
    target, _ = load_target(args.model)
    head = new_head(args.head, config, target, text, tokens, recipe["seed"])
    target.to(device).eval().requires_grad_(False)
    head.to(device).train()
    text = text.to(device)
    optimiser, first = Optimiser(head, recipe), 0
    file = work / f"{args.head}.pt"
    if file.exists():
        state = torch.load(file, map_location=device)
        head.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        first = state["step"]
    drafter = (MTPSteps if args.head == "mtp" else Eagle3Steps)(head, target)
    aux_layers = config["eagle3"]["aux_layers"] if args.head == "eagle3" else ()
    count = recipe["draft_steps"]

    def batch(step):
        """Rows of books and rows of the target's own text; one tensor if they are equally long."""
        g = torch.Generator().manual_seed(recipe["seed"] * 1_000_003 + step)
        pick = torch.randint(len(text), (written_rows,), generator=g).to(device)
        books, written = book_batches(step), text[pick].long()
        return [torch.cat((books, written))] if books.shape[1] == written.shape[1] else [books, written]

    def losses(rows):
        """(the loss to minimise, [cross entropy, agreement, overlap] of each draft step)."""
        with torch.autocast(device, torch.bfloat16):
            with torch.no_grad():
                state, aux = target(rows, aux_layers)
                target_logits = target.head(state[:, 1:])
            total, figures = 0.0, []
            for k, logits in enumerate(unroll(drafter, rows, state, aux, count)):
                ce, overlaps, agree = draft_losses(logits, target_logits, drafter.vocabulary,
                                                   recipe["overlap_temperatures"])
                ce, agree = (x[:, count - 1:].mean() for x in (ce, agree))
                overlap = sum(o[:, count - 1:].mean() for o in overlaps) / max(1, len(overlaps))
                loss = recipe["cross_entropy"] * ce + recipe["overlap"] * (1 - overlap)
                total = total + recipe["step_decay"] ** k * loss
                figures.append(torch.stack((ce, agree, torch.as_tensor(overlap, device=device))))
        return total, torch.stack(figures, -1).detach()

    step_losses = torch.compile(losses, dynamic=False, disable=device == "cpu")

    log = open(work / f"{args.head}.jsonl", "a")
    sums, step_tokens = torch.zeros(3, count, device=device), sum(r[:, 1:].numel() for r in batch(0))
    print(f"{args.head}: {sum(p.numel() for p in head.parameters()):,} parameters, "
          f"{text.numel():,} written tokens, steps {first}..{steps}", flush=True)
    step = logged = first
    while step < steps and time.time() - started < args.max_minutes * 60:
        for rows in batch(step):
            share = rows[:, 1:].numel() / step_tokens
            loss, figures = step_losses(rows)
            (share * loss).backward()
            sums += share * figures
        optimiser.step(lr_scale(step, steps, recipe["warmup"], recipe["decay_fraction"]))
        for moe in moe_layers(head):
            moe.balance(recipe["balance_rate"])
        step += 1
        if step % recipe["log_every"] == 0 or step == steps:
            n, logged = step - logged, step
            entry = {"step": step, "tokens": step * step_tokens}
            for name, row in zip(("loss", "agree", "overlap"), (sums / n).tolist()):
                entry[name] = [round(x, 4) for x in row]
            sums.zero_()
            log.write(json.dumps(entry) + "\n")
            log.flush()
            print(args.head, json.dumps(entry), f"{time.time() - started:.1f} s", flush=True)
    torch.save({"model": head.state_dict(), "optimiser": optimiser.state_dict(), "step": step}, file)
    print(f"{args.head}: stopped at step {step} of {steps} after {time.time() - started:.0f} s")


if __name__ == "__main__":
    main()
