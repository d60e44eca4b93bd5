"""Independent check values of the exported models for the engine's tests.

The target runs in transformers (bf16 weights as float32, eager attention, CPU); the draft chains are
computed here one row at a time from the stored tensors, apart from the training code's unrolling.
Row j of a draft cache holds token j+1 and the target's state j. MTP takes the state after the final
norm and recycles the state after shared_head.norm; EAGLE-3 takes the outputs of its aux layers and
recycles the state before its norm.
"""

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from checkpoint import read_tensors
from corpus import BOS

CASES = ((5, 0), (300, 20))  # tokens, first prompt
GREEDY, DRAFTS, LOGIT_ROWS = 24, 3, 2


def rms(x, weight, eps=1e-6):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def attend(q, k, v):
    """q [h, 1, d] over k, v [h, T, .]: every key precedes the query."""
    p = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1)
    return (p @ v).transpose(0, 1).flatten()


def angles(position, width, theta):
    return position * theta ** (-torch.arange(0, width, 2).float() / width)


class MTPChain:
    """The MTP layer over rows one by one, from the checkpoint's tensors."""

    def __init__(self, config, tensors):
        n = config["num_hidden_layers"]
        prefix = f"model.layers.{n}."
        self.c, self.eps = config, config["rms_norm_eps"]
        self.w = {k.removeprefix(prefix): t.float() for k, t in tensors.items() if k.startswith(prefix)}
        self.embed = tensors["model.embed_tokens.weight"].float()
        self.k, self.v = [], []

    def rotate(self, x, position):
        a = angles(position, self.c["qk_rope_head_dim"], self.c["rope_theta"])
        z = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(z * torch.polar(torch.ones_like(a), a)).flatten(-2)

    def row(self, token, state, position):
        w, c = self.w, self.c
        h, n, r, v = (c[k] for k in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim",
                                     "v_head_dim"))
        x = w["eh_proj.weight"] @ torch.cat((rms(self.embed[token], w["enorm.weight"], self.eps),
                                             rms(state, w["hnorm.weight"], self.eps)))
        a = rms(x, w["input_layernorm.weight"], self.eps)
        q = w["self_attn.q_b_proj.weight"] @ rms(w["self_attn.q_a_proj.weight"] @ a,
                                                 w["self_attn.q_a_layernorm.weight"])
        q = q.view(h, n + r)
        q = torch.cat((q[:, :n], self.rotate(q[:, n:], position)), -1)
        latent = w["self_attn.kv_a_proj_with_mqa.weight"] @ a
        k_pe = self.rotate(latent[-r:], position)
        kv = w["self_attn.kv_b_proj.weight"] @ rms(latent[:-r], w["self_attn.kv_a_layernorm.weight"])
        kv = kv.view(h, n + v)
        self.k.append(torch.cat((kv[:, :n], k_pe.expand(h, r)), -1))
        self.v.append(kv[:, n:])
        heads = attend(q[:, None], torch.stack(self.k, 1), torch.stack(self.v, 1))
        x = x + w["self_attn.o_proj.weight"] @ heads
        x = x + self.moe(rms(x, w["post_attention_layernorm.weight"], self.eps))
        return rms(x, w["shared_head.norm.weight"], self.eps)

    def ffn(self, x, prefix):
        gate, up, down = (self.w[f"{prefix}.{p}_proj.weight"] for p in ("gate", "up", "down"))
        return down @ (torch.nn.functional.silu(gate @ x) * (up @ x))

    def moe(self, x):
        c = self.c
        score = torch.sigmoid(self.w["mlp.gate.weight"] @ x)
        biased = score + self.w["mlp.gate.e_score_correction_bias"]
        groups = biased.view(c["n_group"], -1).topk(2).values.sum(-1).topk(c["topk_group"]).indices
        allowed = torch.full_like(biased.view(c["n_group"], -1), float("-inf"))
        allowed[groups] = biased.view(c["n_group"], -1)[groups]
        chosen = allowed.flatten().topk(c["num_experts_per_tok"]).indices
        weight = score[chosen] / score[chosen].sum() * c["routed_scaling_factor"]
        out = self.ffn(x, "mlp.shared_experts")
        for j, wj in zip(chosen.tolist(), weight):
            out = out + wj * self.ffn(x, f"mlp.experts.{j}")
        return out

    def draft(self, z):
        logits = self.embed @ z
        return logits, int(logits.argmax()), z


class Eagle3Chain:
    def __init__(self, config, tensors, embed):
        self.c, self.embed, self.k, self.v = config, embed, [], []
        self.w = {k: t if k in ("d2t", "t2d") else t.float() for k, t in tensors.items()}
        self.eps = config["rms_norm_eps"]
        # The file has no lm_head.weight: draft d is scored by the target's row d + d2t[d].
        self.head = embed[torch.arange(len(tensors["d2t"])) + tensors["d2t"]]

    def rotate(self, x, position):
        a = angles(position, self.c["head_dim"], self.c["rope_theta"])
        lo, hi = x.chunk(2, -1)
        return torch.cat((lo * a.cos() - hi * a.sin(), hi * a.cos() + lo * a.sin()), -1)

    def row(self, token, g, position):
        w, m, d = self.w, "midlayer.", self.c["head_dim"]
        x = torch.cat((rms(self.embed[token], w[m + "input_layernorm.weight"], self.eps),
                       rms(g, w[m + "hidden_norm.weight"], self.eps)))
        q, k, v = ((w[f"{m}self_attn.{p}_proj.weight"] @ x).view(-1, d) for p in "qkv")
        groups = q.shape[0] // k.shape[0]
        self.k.append(self.rotate(k, position).repeat_interleave(groups, 0))
        self.v.append(v.repeat_interleave(groups, 0))
        heads = attend(self.rotate(q, position)[:, None], torch.stack(self.k, 1),
                       torch.stack(self.v, 1))
        y = g + w[m + "self_attn.o_proj.weight"] @ heads
        a = rms(y, w[m + "post_attention_layernorm.weight"], self.eps)
        gate, up, down = (w[f"{m}mlp.{p}_proj.weight"] for p in ("gate", "up", "down"))
        return y + down @ (torch.nn.functional.silu(gate @ a) * (up @ a))

    def draft(self, y):
        logits = self.head @ rms(y, self.w["norm.weight"], self.eps)
        d = int(logits.argmax())
        return logits, d + int(self.w["d2t"][d]), y


def chain(drafter, ids, following, states):
    """Rows 0..T-1 with the real states, then DRAFTS - 1 more with the drafter's own."""
    tokens = ids[1:] + [following]
    for position, (token, state) in enumerate(zip(tokens, states)):
        y = drafter.row(token, state, position)
    logits, drafts, kept = [], [], []
    for j in range(DRAFTS):
        row, draft, state = drafter.draft(y)
        logits.append(row), drafts.append(draft), kept.append(state)
        if j + 1 < DRAFTS:
            y = drafter.row(draft, state, len(ids) + j)
    return torch.stack(logits), torch.stack(kept), torch.tensor(drafts)


@torch.no_grad()
def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--model", default="models/tales")
    p.add_argument("--eagle3", default="models/tales-eagle3")
    p.add_argument("--prompts", default="training/prompts/held_out.jsonl")
    p.add_argument("--out", default="tests/goldens/tales")
    args = p.parse_args()
    import transformers
    from transformers import AutoModelForCausalLM
    from tokenizers import Tokenizer
    model = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=torch.float32, attn_implementation="eager").eval()
    tokenizer = Tokenizer.from_file(str(Path(args.model) / "tokenizer.json"))
    config = json.loads((Path(args.model) / "config.json").read_text())
    tensors = read_tensors(args.model)
    eagle_config = json.loads((Path(args.eagle3) / "config.json").read_text())
    eagle_tensors = read_tensors(args.eagle3)
    aux_layers = eagle_config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    prompts = [json.loads(line)["prompt"] for line in open(args.prompts, encoding="utf-8")]
    out, notes = {}, []
    captured = {}
    for i in aux_layers:
        model.model.layers[i].register_forward_hook(
            lambda _, __, y, i=i: captured.__setitem__(i, y[0] if isinstance(y, tuple) else y))
    for i, (length, at) in enumerate(CASES):
        text = prompts[at] if length < 150 else "".join(prompts[at:at + 4])
        ids = ([BOS] + tokenizer.encode(text, add_special_tokens=False).ids)[:length]
        assert len(ids) == length
        result = model.model(torch.tensor([ids]))
        final = result.last_hidden_state[0]
        logits = model.lm_head(final)
        aux = torch.cat([captured[j][0] for j in aux_layers], -1)
        states = list(final)
        sequence, margin = list(ids), float("inf")
        for _ in range(GREEDY):
            top = model(torch.tensor([sequence])).logits[0, -1].topk(2)
            margin = min(margin, float(top.values[0] - top.values[1]))
            sequence.append(int(top.indices[0]))
        following = sequence[length]
        prefix = f"p{i}."
        out[prefix + "input_ids"] = torch.tensor(ids)
        out[prefix + "logits"] = logits[-LOGIT_ROWS:].contiguous()
        out[prefix + "greedy"] = torch.tensor(sequence[length:])
        out[prefix + "next"] = torch.tensor([following])
        out[prefix + "hidden_last"] = final[-1].contiguous()
        fused = list(aux @ eagle_tensors["fc.weight"].float().t())
        out[prefix + "eagle3.fc_last"] = fused[-1].contiguous()
        for name, drafter, rows in (
                ("mtp", MTPChain(config, tensors), states),
                ("eagle3", Eagle3Chain(eagle_config, eagle_tensors,
                                       tensors["model.embed_tokens.weight"].float()), fused)):
            draft_logits, draft_state, drafts = chain(drafter, ids, following, rows)
            out[f"{prefix}{name}.draft_logits"] = draft_logits
            out[f"{prefix}{name}.draft_state"] = draft_state
            out[f"{prefix}{name}.drafts"] = drafts
        notes.append({"len": length, "min_margin": margin,
                      "max_abs_logit": float(logits[-LOGIT_ROWS:].abs().max())})
    folder = Path(args.out)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(out, folder / "golden.safetensors")
    (folder / "golden.json").write_text(json.dumps({
        "transformers": transformers.__version__, "torch": torch.__version__,
        "class": "DeepseekV3ForCausalLM + MTP layer + EAGLE-3 head", "aux_output_layers": aux_layers,
        "prompts": notes}, indent=1) + "\n")
    print(json.dumps(notes))


if __name__ == "__main__":
    main()
