"""Batched generation with a key-value cache: text for training the heads, samples, continuations."""

import argparse
import json
import time
from pathlib import Path

import torch

import data
from checkpoint import load_target
from corpus import BOS, EOS, PAD
from model import causal_attention, moe_layers


class Cached:
    """The target with a cache of keys and values; all rows have the same length."""

    def __init__(self, target, rows, length, dtype):
        c, device = target.config, target.embed_tokens.weight.device
        h, n = c["num_attention_heads"], c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
        self.target, self.dtype, self.seq_len = target, dtype, 0
        self.cos, self.sin = target.rope(length, device)
        self.keys = torch.zeros(len(target.layers), rows, h, length, n, device=device, dtype=dtype)
        self.values = torch.zeros(len(target.layers), rows, h, length, c["v_head_dim"],
                                  device=device, dtype=dtype)

    @torch.no_grad()
    def __call__(self, ids):
        """Logits [B, V] after the tokens ids [B, T]: a whole prompt first, then T = 1."""
        start, end = self.seq_len, self.seq_len + ids.shape[1]
        rope = self.cos[start:end], self.sin[start:end]
        x = self.target.embed_tokens(ids)
        for layer, keys, values in zip(self.target.layers, self.keys, self.values):
            q, k, v = layer.qkv(x, rope)
            keys[:, :, start:end], values[:, :, start:end] = k, v
            if start == 0:
                heads = causal_attention(q, k, v)
            else:
                scores = (q @ keys[:, :, :end].mT).float() * q.shape[-1] ** -0.5
                heads = scores.softmax(-1).to(q.dtype) @ values[:, :, :end]
            x = layer.finish(x, heads)
        self.seq_len = end
        return self.target.head(self.target.norm(x[:, -1])).float()


def generate(target, prompts, new_tokens, temperatures, seed, dtype=torch.bfloat16):
    """prompts [B, P] -> [B, P + new_tokens]; temperature 0 is greedy. Rows run on past EOS.

    The target must already be in dtype, its gate bias in float32.
    """
    cache = Cached(target, len(prompts), prompts.shape[1] + new_tokens, dtype)
    g = torch.Generator(prompts.device).manual_seed(seed)
    greedy = temperatures[:, None] == 0
    heat = temperatures[:, None].clamp(min=1e-3)
    out = [prompts]
    for _ in range(new_tokens):
        logits = cache(out[-1])
        logits[:, [BOS, PAD]] = float("-inf")
        noise = -torch.empty_like(logits).exponential_(generator=g).log()
        score = torch.where(greedy, logits, logits / heat + noise)  # Gumbel's way to sample
        out.append(score.argmax(-1, keepdim=True))
    return torch.cat(out, 1)


def in_dtype(target, dtype):
    """Converts a target for generation; the balancing bias stays float32, as it does on disk."""
    bias = [m.e_score_correction_bias for m in moe_layers(target)]
    target = target.to(dtype).eval()
    for moe, b in zip(moe_layers(target), bias):
        moe.e_score_correction_bias = b.float()
    return target


def write_text(args, target, tokens, device):
    """Continuations of training passages at several temperatures: what the heads will draft for."""
    recipe = json.loads(Path(args.config).read_text())["heads"][args.head]["text"]
    rows, n = [], recipe["rows"]
    g = torch.Generator().manual_seed(args.seed)
    heats = torch.tensor(recipe["temperatures"], device=device).repeat(n // len(recipe["temperatures"]))
    for i in range(recipe["batches"]):
        prompt_len = recipe["prompt_tokens"][i % len(recipe["prompt_tokens"])]
        starts = torch.randint(len(tokens["stream"]) - prompt_len, (n,), generator=g).to(device)
        prompts = tokens["stream"][starts[:, None] + torch.arange(prompt_len - 1, device=device)]
        prompts = torch.cat((torch.full_like(prompts[:, :1], BOS), prompts), 1)
        text = generate(target, prompts, recipe["length"] + 1 - prompt_len, heats, args.seed + i)
        rows.append(text.to(torch.int16).cpu())
        print(f"batch {i + 1}: {text.numel():,} tokens, {time.time() - args.started:.0f} s", flush=True)
    torch.save(torch.cat(rows), args.text)


def repeated_4_grams(ids):
    """Share of tokens that end a 4-gram seen before in the same text."""
    seen, repeats = set(), 0
    for i in range(3, len(ids)):
        gram = tuple(ids[i - 3:i + 1])
        repeats += gram in seen
        seen.add(gram)
    return repeats / max(1, len(ids) - 3)


def write_samples(args, target, device):
    """One sample a prompt: text, seed, temperature."""
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(str(Path(args.model) / "tokenizer.json"))
    prompts = [json.loads(line)["prompt"] for line in open(args.prompts, encoding="utf-8")]
    with open(args.samples, "w", encoding="utf-8") as out:
        for i, prompt in enumerate(prompts[::3]):
            ids = [BOS] + tokenizer.encode(prompt, add_special_tokens=False).ids[:48]
            heat = (0.0, 0.7, 0.8, 1.0)[i % 4]
            text = generate(target, torch.tensor([ids], device=device), 200,
                            torch.tensor([heat], device=device), args.seed + i)[0].tolist()
            new = text[len(ids):]
            new = new[:new.index(EOS)] if EOS in new else new
            out.write(json.dumps({
                "seed": args.seed + i, "temperature": heat, "prompt": tokenizer.decode(ids),
                "text": tokenizer.decode(new), "repeated_4_grams": round(repeated_4_grams(new), 3),
            }, ensure_ascii=False) + "\n")


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--model", default="models/tales")
    p.add_argument("--tokens", help="tokens.npz; needed with --text")
    p.add_argument("--config", default="training/configs/tales.json")
    p.add_argument("--text", help="write training text for a head to this file")
    p.add_argument("--head", choices=("mtp", "eagle3"), help="whose recipe for --text")
    p.add_argument("--samples", help="write sample continuations of the prompts to this JSONL file")
    p.add_argument("--prompts", default="training/prompts/held_out.jsonl")
    p.add_argument("--seed", type=int, default=11)
    args = p.parse_args()
    args.started = time.time()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    target = in_dtype(load_target(args.model)[0].to(device), torch.bfloat16)
    if args.text:
        write_text(args, target, data.load_tokens(args.tokens, device), device)
    if args.samples:
        write_samples(args, target, device)


if __name__ == "__main__":
    main()
