"""Trains the target on the books. Stops at --max-minutes with a checkpoint and resumes from it."""

import argparse
import json
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import data
from corpus import BOS
from model import Target, initialise, moe_layers
from optimiser import Optimiser, lr_scale


def token_losses(model, rows):
    """[B, T-1] nats of each token given those before it; a BOS within a row is not a target."""
    state, _ = model(rows[:, :-1])
    logits = model.head(state)
    return F.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten(), reduction="none",
                           ignore_index=BOS).view(rows.shape[0], -1)


def held_out(model, losses, tokens, context, stride, limit=None):
    model.eval()
    result = {}
    for name in data.held_out_names(tokens):
        ids, n_bytes = tokens["held_out." + name], tokens["held_out_bytes." + name]
        if limit and len(ids) > limit:  # quick figure while training: bytes in proportion
            n_bytes = n_bytes * limit // len(ids)
            ids = ids[:limit]
        result[name] = round(data.bits_per_byte(losses, ids, n_bytes, context, stride), 4)
    model.train()
    result["mean"] = round(sum(result.values()) / len(result), 4)
    return result


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--config", default="training/configs/tales.json")
    p.add_argument("--tokens", required=True, help="tokens.npz made by prepare.py")
    p.add_argument("--work", required=True, help="folder for checkpoint and log")
    p.add_argument("--max-minutes", type=float, default=9)
    p.add_argument("--steps", type=int, help="overrides the recipe")
    args = p.parse_args()
    started = time.time()
    config = json.loads(Path(args.config).read_text())
    recipe = config["target"]
    steps = args.steps or recipe["steps"]
    work = Path(args.work)
    work.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(recipe["seed"])

    tokens = data.load_tokens(args.tokens, device)
    batches = data.Batches(tokens, recipe["rows"], recipe["length"] + 1, recipe["dialogue_rows"],
                           recipe["seed"])
    model = Target(config["model"])
    initialise(model, recipe["seed"])
    model.to(device).train()
    optimiser = Optimiser(model, recipe)
    first = 0
    if (work / "target.pt").exists():
        state = torch.load(work / "target.pt", map_location=device)
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        first = state["step"]

    def losses(rows):
        with torch.autocast(device, torch.bfloat16):
            return token_losses(model, rows)
    train_losses = torch.compile(losses, dynamic=False, disable=device == "cpu")

    log = open(work / "target.jsonl", "a")
    total = torch.zeros((), device=device)
    clock, per_step = None, recipe["rows"] * recipe["length"]
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {batches.windows:,} windows, "
          f"{batches.steps_per_epoch:,} steps an epoch, steps {first}..{steps}", flush=True)
    step = logged = first
    while step < steps and time.time() - started < args.max_minutes * 60:
        loss = train_losses(batches(step)).mean()
        loss.backward()
        optimiser.step(lr_scale(step, steps, recipe["warmup"], recipe["decay_fraction"]))
        for moe in moe_layers(model):
            moe.balance(recipe["balance_rate"])
        total += loss.detach()
        step += 1
        if step == first + 10:
            torch.cuda.synchronize() if device == "cuda" else None
            clock, clock_step = time.time(), step
        if step % recipe["log_every"] == 0 or step == steps:
            entry = {"step": step, "tokens": step * per_step,
                     "loss": round(total.item() / (step - logged), 4)}
            total.zero_()
            logged = step
            if clock and step > clock_step:
                entry["tokens_per_s"] = int((step - clock_step) * per_step / (time.time() - clock))
            if step % recipe["eval_every"] == 0 or step == steps:
                before = time.time()
                final = step == steps
                entry["held_out"] = held_out(
                    model, losses, tokens, recipe["length"], recipe["length"] // 2,
                    None if final else 32 * recipe["length"])
                entry["load"] = [[round(x, 3) for x in (m.load / m.load.sum()).tolist()]
                                 for m in moe_layers(model)] if final else None
                if clock:
                    clock += time.time() - before
            log.write(json.dumps(entry) + "\n")
            log.flush()
            print(json.dumps(entry), f"{time.time() - started:.0f} s", flush=True)
    torch.save({"model": model.state_dict(), "optimiser": optimiser.state_dict(), "step": step},
               work / "target.pt")
    print(f"stopped at step {step} of {steps} after {time.time() - started:.0f} s")


if __name__ == "__main__":
    main()
