"""Trains one draft head, MTP or EAGLE-3, on the frozen exported target, unrolled over several steps.

Some rows are book text, the others text the target wrote itself (generate.py --text). The loss, at
every step of the unrolling, is the cross entropy to the target's own next-token distribution, less
the length of accepted drafts to be expected, drawn and greedy, as the recipe weighs them.
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
from unroll import Eagle3Steps, MTPSteps, shift_rows, unroll

GREEDY_TEMPERATURE = 0.3  # of the smooth form of "both like the same token best"
# Logged of each draft step: cross entropy; shares of rows where both like the same token best, where
# both draw the same token, and where the whole chain up to this step does.
FIGURES = ("loss", "agree", "coupled", "reached")


def new_head(kind, config, target, text, tokens, seed):
    """A head started from the target: MTP from its last layer, EAGLE-3 from its last state."""
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
    hidden_size = target.config["hidden_size"]
    eagle.fc.weight.data.zero_()
    eagle.fc.weight.data[:, -hidden_size:].copy_(torch.eye(hidden_size))
    eagle.norm.load_state_dict(target.norm.state_dict())
    return eagle


class Wanted:
    """What the target says of every row, over the draft vocabulary: its distribution p [B, T, D],
    the text's next token and the target's first choice [B, T] as draft ids (-1: no draft id)."""

    def __init__(self, target_logits, following, vocabulary, temperature):
        self.temperature = temperature
        self.p = torch.softmax(target_logits.float() / temperature, -1)
        self.following, self.best = following, target_logits.argmax(-1)
        if vocabulary is not None:
            self.p = self.p[..., vocabulary]
            draft_id = torch.full_like(target_logits[0, 0], -1, dtype=torch.int64)
            draft_id[vocabulary] = torch.arange(len(vocabulary), device=vocabulary.device)
            self.following = torch.where(following < 0, -1, draft_id[following])
            self.best = draft_id[self.best]


def pick(x, ids):
    """The entry of x [B, T, D] at ids [B, T]; that of id 0 where there is none."""
    return x.gather(-1, ids.clamp(min=0)[..., None])


def draft_figures(logits, wanted):
    """(cross entropy, coupled, greedy, right), each [B, T].

    coupled: the chance that the drafter draws the text's next token too, given that the target drew
    it and both add the same Gumbel noise, as the engine does. If the target drew x, that is
    1 / (1 + sum over y of max(0, p_x q_y / q_x - p_y)), for distributions p of target, q of drafter.
    greedy: a smooth form of right, which is 1 where both like the same token best; neither counts
    where the text does not go on with that token.
    """
    p, following, best = wanted.p, wanted.following, wanted.best
    scaled = logits.float() / wanted.temperature
    ce = -(p * torch.log_softmax(scaled, -1)).sum(-1)
    q_ratio = (scaled - pick(scaled, following)).clamp(max=30).exp()
    excess = torch.relu(pick(p, following) * q_ratio - p).sum(-1)
    coupled = (following >= 0) / (1 + excess)
    sharp = torch.log_softmax(logits.float() / GREEDY_TEMPERATURE, -1)
    greedy = pick(sharp, best).squeeze(-1).exp() * ((best >= 0) & (best == following))
    return ce, coupled, greedy, (logits.argmax(-1) == best).float()


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
        """(the loss to minimise, [cross entropy, right, coupled, reached] of each draft step)."""
        with torch.autocast(device, torch.bfloat16):
            with torch.no_grad():
                state, aux = target(rows, aux_layers)
                following = torch.nn.functional.pad(rows[:, 2:], (0, 1), value=-1)
                wanted = Wanted(target.head(state[:, 1:]), following, drafter.vocabulary,
                                recipe["temperature"])
            total, figures = 0.0, []
            drawn = chosen = torch.ones(rows.shape[0], rows.shape[1] - 1, device=device)
            for k, logits in enumerate(unroll(drafter, rows, state, aux, count)):
                ce, coupled, greedy, right = draft_figures(logits, wanted)
                # Step k counts only where the chain of drafts that leads to it was accepted.
                drawn, chosen = drawn * coupled, chosen * greedy
                parts = [x[:, count - 1:].mean() for x in (ce, drawn, chosen, right, coupled)]
                total = total + (recipe["cross_entropy"] * recipe["step_decay"] ** k * parts[0]
                                 - recipe["coupled"] * parts[1] - recipe["greedy"] * parts[2])
                figures.append(torch.stack((parts[0], parts[3], parts[4], parts[1])))
                drawn, chosen = (shift_rows(x[..., None], 1)[..., 0] for x in (drawn, chosen))
        return total, torch.stack(figures, -1).detach()

    step_losses = torch.compile(losses, dynamic=False, disable=device == "cpu")

    log = open(work / f"{args.head}.jsonl", "a")
    sums = torch.zeros(len(FIGURES), count, device=device)
    step_tokens = sum(r[:, 1:].numel() for r in batch(0))
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
            for name, row in zip(FIGURES, (sums / n).tolist()):
                entry[name] = [round(x, 4) for x in row]
            sums.zero_()
            log.write(json.dumps(entry) + "\n")
            log.flush()
            print(args.head, json.dumps(entry), f"{time.time() - started:.1f} s", flush=True)
    torch.save({"model": head.state_dict(), "optimiser": optimiser.state_dict(), "step": step}, file)
    print(f"{args.head}: stopped at step {step} of {steps} after {time.time() - started:.0f} s")


if __name__ == "__main__":
    main()
