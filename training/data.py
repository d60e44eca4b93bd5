"""Batches for training and the held-out measure. Every batch is a function of (seed, step)."""

import lzma
import math
from pathlib import Path

import numpy as np
import torch

from corpus import BOS


def load_tokens(path, device):
    """The arrays of tokens.npz (or tokens.npz.xz) as int64 tensors on the device."""
    path = Path(path)
    handle = lzma.open(path) if path.suffix == ".xz" else open(path, "rb")
    with handle, np.load(handle) as arrays:
        return {k: torch.from_numpy(arrays[k].astype(np.int64)).to(device) for k in arrays.files}


class Batches:
    """Rows [BOS] + window: shuffled, non-overlapping windows of the books, shifted anew each epoch;
    the last dialogue_rows of each batch are windows of the dialogue stream instead."""

    def __init__(self, tokens, rows, length, dialogue_rows, seed):
        self.stream, self.dialogues = tokens["stream"], tokens["dialogues"]
        starts = tokens["dialogue_starts"]
        self.dialogue_starts = starts[starts + length < len(self.dialogues)]
        self.book_rows, self.dialogue_rows = rows - dialogue_rows, dialogue_rows
        self.length, self.seed = length, seed
        self.windows = (len(self.stream) - length) // (length - 1)
        self.steps_per_epoch = self.windows // self.book_rows
        self.epoch, self.order = -1, None

    def _start_epoch(self, epoch):
        g = torch.Generator().manual_seed(self.seed * 1000 + epoch)
        shift = int(torch.randint(self.length - 1, (1,), generator=g))
        order = torch.randperm(self.windows, generator=g) * (self.length - 1) + shift
        self.epoch, self.order = epoch, order.to(self.stream.device)

    def __call__(self, step):
        epoch, i = divmod(step, self.steps_per_epoch)
        if epoch != self.epoch:
            self._start_epoch(epoch)
        device = self.stream.device
        starts = self.order[i * self.book_rows:(i + 1) * self.book_rows]
        body = self.stream[starts[:, None] + torch.arange(self.length - 1, device=device)]
        rows = torch.cat((torch.full_like(body[:, :1], BOS), body), 1)
        if self.dialogue_rows:
            g = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
            pick = torch.randint(len(self.dialogue_starts), (self.dialogue_rows,), generator=g)
            starts = self.dialogue_starts[pick.to(device)]
            rows = torch.cat((rows, self.dialogues[starts[:, None]
                                                   + torch.arange(self.length, device=device)]))
        return rows


def held_out_names(tokens):
    return [k.removeprefix("held_out.") for k in tokens if k.startswith("held_out.")]


@torch.no_grad()
def bits_per_byte(token_losses, ids, n_bytes, context, stride, rows=16):
    """Whole-book measure. Windows [BOS] + context tokens, `stride` apart; each token counts once,
    in the first window that holds it, so all but the first have >= context - stride before them.

    token_losses(rows [B, T]) -> [B, T-1] nats of tokens 1.. of each row.
    """
    starts = list(range(0, max(1, len(ids) - context + stride), stride))
    padded = torch.cat((ids, ids.new_full((starts[-1] + context - len(ids) + 1,), BOS)))
    total, done = 0.0, 0
    for i in range(0, len(starts), rows):
        chunk = starts[i:i + rows]
        batch = torch.stack([padded[s:s + context] for s in chunk + [0] * (rows - len(chunk))])
        batch = torch.cat((torch.full_like(batch[:, :1], BOS), batch), 1)
        losses = token_losses(batch)
        for row, s in zip(losses, chunk):
            end = min(s + context, len(ids))
            total += row[done - s:end - s].double().sum().item()
            done = end
    assert done == len(ids)
    return total / math.log(2) / int(n_bytes)
