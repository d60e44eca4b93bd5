"""Trains one draft head, MTP or EAGLE-3, on the frozen exported target, unrolled over several steps.

Half of the rows are book text, half is text the target wrote itself (generate.py --text); the loss
is the cross entropy to the target's own next-token distribution, at every step of the unrolling.
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


def soft_loss(logits, target_logits, vocabulary, first_row):
    """(cross entropy, agreement of the arg max), mean over the rows from first_row on.

    Target mass outside the draft vocabulary counts nothing: no draft can win it.
    """
    p = torch.softmax(target_logits.float(), -1)
    best = target_logits.argmax(-1)
    if vocabulary is None:
        drafted = logits.argmax(-1)
    else:
        p = p[..., vocabulary]
        drafted = vocabulary[logits.argmax(-1)]
    loss = -(p * torch.log_softmax(logits.float(), -1)).sum(-1)
    return loss[:, first_row:].mean(), (drafted == best)[:, first_row:].float().mean()


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
    recipe, work = config["heads"], Path(args.work)
    steps = args.steps or recipe["steps"][args.head]
    work.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    compiled = device == "cuda"
    torch.set_float32_matmul_precision("high")

    text = torch.load(args.text)
    tokens = data.load_tokens(args.tokens, device)
    length = recipe["length"]
    batches = data.Batches(tokens, recipe["rows"] - recipe["written_rows"], length + 1,
                           recipe["dialogue_rows"], recipe["seed"])
    target, _ = load_target(args.model)
    head = new_head(args.head, config, target, text, tokens, recipe["seed"])
    target.to(device).eval().requires_grad_(False)
    head.to(device).train()
    text = text.to(device)
    drafter = (MTPSteps if args.head == "mtp" else Eagle3Steps)(head, target)
    optimiser, first = Optimiser(head, recipe), 0
    file = work / f"{args.head}.pt"
    if file.exists():
        state = torch.load(file, map_location=device)
        head.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        first = state["step"]
        drafter = type(drafter)(head, target)

    def run_target(rows):
        state, aux = target(rows, config["eagle3"]["aux_layers"] if args.head == "eagle3" else ())
        return state, aux, target.head(state[:, 1:])

    if compiled:
        run_target = torch.compile(run_target, dynamic=False)
        for name in ("qkv", "finish"):
            setattr(drafter, name, torch.compile(getattr(drafter, name), dynamic=False))
    loss_of = torch.compile(soft_loss, dynamic=False) if compiled else soft_loss
    weights = [recipe["step_decay"] ** k for k in range(recipe["draft_steps"])]

    log = open(work / f"{args.head}.jsonl", "a")
    sums = torch.zeros(2, len(weights), device=device)
    print(f"{args.head}: {sum(p.numel() for p in head.parameters()):,} parameters, "
          f"{text.numel():,} written tokens, steps {first}..{steps}", flush=True)
    step = logged = first
    while step < steps and time.time() - started < args.max_minutes * 60:
        g = torch.Generator().manual_seed(recipe["seed"] * 1_000_003 + step)
        pick = torch.randint(len(text), (recipe["written_rows"],), generator=g).to(device)
        rows = torch.cat((batches(step), text[pick].long()))
        with torch.autocast(device, torch.bfloat16):
            with torch.no_grad():
                state, aux, target_logits = run_target(rows)
            total = 0.0
            for k, logits in enumerate(unroll(drafter, rows, state, aux, len(weights))):
                loss, agree = loss_of(logits, target_logits, drafter.vocabulary, len(weights) - 1)
                total = total + weights[k] * loss
                sums[:, k] += torch.stack((loss.detach(), agree))
        total.backward()
        optimiser.step(lr_scale(step, steps, recipe["warmup"], recipe["decay_fraction"]))
        for moe in moe_layers(head):
            moe.balance(recipe["balance_rate"])
        step += 1
        if step % recipe["log_every"] == 0 or step == steps:
            n, logged = step - logged, step
            entry = {"step": step, "tokens": step * recipe["rows"] * length,
                     "loss": [round(x, 4) for x in (sums[0] / n).tolist()],
                     "agree": [round(x, 4) for x in (sums[1] / n).tolist()]}
            sums.zero_()
            log.write(json.dumps(entry) + "\n")
            log.flush()
            print(args.head, json.dumps(entry), f"{time.time() - started:.0f} s", flush=True)
    torch.save({"model": head.state_dict(), "optimiser": optimiser.state_dict(), "step": step}, file)
    print(f"{args.head}: stopped at step {step} of {steps} after {time.time() - started:.0f} s")


if __name__ == "__main__":
    main()
