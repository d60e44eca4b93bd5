"""The EAGLE-3 head: one Llama layer over (token embedding, fused states of three target layers).

It has no output matrix: its logits come from the rows of the target's that d2t names.
"""

import torch
import torch.nn.functional as F
from torch import nn

from model import DenseMLP, RMSNorm


def rotate_half(x, cos, sin):
    """Rotates the pairs (i, i + r/2) of x [..., T, r], the Llama layout."""
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        H, self.width = c["hidden_size"], c["head_dim"]
        self.h, self.kv = c["num_attention_heads"], c["num_key_value_heads"]
        self.q_proj = nn.Linear(2 * H, self.h * self.width, bias=False)
        self.k_proj = nn.Linear(2 * H, self.kv * self.width, bias=False)
        self.v_proj = nn.Linear(2 * H, self.kv * self.width, bias=False)
        self.o_proj = nn.Linear(self.h * self.width, H, bias=False)

    def qkv(self, x, rope):
        q, k, v = (p(x).unflatten(-1, (-1, self.width)).transpose(1, 2)
                   for p in (self.q_proj, self.k_proj, self.v_proj))
        k, v = (t.repeat_interleave(self.h // self.kv, 1) for t in (rotate_half(k, *rope), v))
        return rotate_half(q, *rope), k, v


class MidLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        H, eps = c["hidden_size"], c["rms_norm_eps"]
        self.hidden_norm, self.input_layernorm = RMSNorm(H, eps), RMSNorm(H, eps)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = RMSNorm(H, eps)
        self.mlp = DenseMLP(H, c["intermediate_size"])


class Eagle3(nn.Module):
    def __init__(self, c):
        super().__init__()
        H, D = c["hidden_size"], c["draft_vocab_size"]
        self.config = c
        self.fc = nn.Linear(3 * H, H, bias=False)
        self.midlayer = MidLayer(c)
        self.norm = RMSNorm(H, c["rms_norm_eps"])
        self.register_buffer("d2t", torch.zeros(D, dtype=torch.int64))  # target id = d + d2t[d]
        self.register_buffer("t2d", torch.zeros(c["vocab_size"], dtype=torch.bool))

    def choose_vocabulary(self, counts):
        """Takes the most frequent target tokens as the draft vocabulary."""
        ids = counts.topk(len(self.d2t)).indices.sort().values
        self.d2t.copy_(ids - torch.arange(len(ids), device=ids.device))
        self.t2d.zero_()
        self.t2d[ids] = True

    def target_ids(self):
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)
