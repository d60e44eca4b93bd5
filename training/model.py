"""The target: a DeepSeek-V3 transformer (latent attention, sigmoid-gated experts), and its MTP layer.

Module names follow the Hugging Face checkpoint; only the experts are kept stacked for speed and
are taken apart by export.py. Shapes: B rows, T tokens, H hidden, h heads, n/r/v the widths of the
plain, rotated and value parts of a head.
"""

import torch
import torch.nn.functional as F
from torch import nn

LATENT_EPS = 1e-6  # of the norms on the two latents, whatever rms_norm_eps is


class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)
        return (y * self.weight).to(x.dtype)


def rope_table(length, width, theta, device):
    """(cos, sin), each [length, width / 2], float32."""
    inv_freq = theta ** (-torch.arange(0, width, 2, device=device, dtype=torch.float32) / width)
    angle = torch.arange(length, device=device, dtype=torch.float32)[:, None] * inv_freq
    return angle.cos(), angle.sin()


def rotate_adjacent(x, cos, sin):
    """Rotates the pairs (2i, 2i+1) of x [..., T, r] by the angles of its T positions."""
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).to(x.dtype)


def causal_attention(q, k, v):
    """Flash attention wants equal head widths: v is padded to the width of k and cut again."""
    width = v.shape[-1]
    padded = F.pad(v, (0, k.shape[-1] - width))
    return F.scaled_dot_product_attention(q, k, padded, is_causal=True)[..., :width]


class LatentAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        H, h = c["hidden_size"], c["num_attention_heads"]
        self.h, self.rank = h, c["kv_lora_rank"]
        self.n, self.r, self.v = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
        self.q_a_proj = nn.Linear(H, c["q_lora_rank"], bias=False)
        self.q_a_layernorm = RMSNorm(c["q_lora_rank"], LATENT_EPS)
        self.q_b_proj = nn.Linear(c["q_lora_rank"], h * (self.n + self.r), bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(H, self.rank + self.r, bias=False)
        self.kv_a_layernorm = RMSNorm(self.rank, LATENT_EPS)
        self.kv_b_proj = nn.Linear(self.rank, h * (self.n + self.v), bias=False)
        self.o_proj = nn.Linear(h * self.v, H, bias=False)

    def qkv(self, x, rope):
        """q, k [B, h, T, n+r] and v [B, h, T, v], rotated for the positions in rope."""
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        q = q.unflatten(-1, (self.h, self.n + self.r)).transpose(1, 2)
        q_nope, q_pe = q.split((self.n, self.r), -1)
        latent, k_pe = self.kv_a_proj_with_mqa(x).split((self.rank, self.r), -1)
        kv = self.kv_b_proj(self.kv_a_layernorm(latent))
        k_nope, v = kv.unflatten(-1, (self.h, -1)).transpose(1, 2).split((self.n, self.v), -1)
        k_pe = rotate_adjacent(k_pe[:, None], *rope).expand(-1, self.h, -1, -1)
        q = torch.cat((q_nope, rotate_adjacent(q_pe, *rope)), -1)
        return q, torch.cat((k_nope, k_pe), -1), v

    def out(self, heads):
        return self.o_proj(heads.transpose(1, 2).flatten(-2))


class DenseMLP(nn.Module):
    def __init__(self, H, inner):
        super().__init__()
        self.gate_proj = nn.Linear(H, inner, bias=False)
        self.up_proj = nn.Linear(H, inner, bias=False)
        self.down_proj = nn.Linear(inner, H, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def largest(scores, k):
    """1 at the k largest of the last dimension, else 0; ties go to the lower index."""
    i = torch.arange(scores.shape[-1], device=scores.device)
    a, b = scores[..., :, None], scores[..., None, :]
    beaten_by = ((b > a) | ((b == a) & (i[None, :] < i[:, None]))).sum(-1)
    return (beaten_by < k).to(scores.dtype)


class MoE(nn.Module):
    """All experts are computed for all tokens and weighted, zero for those not chosen: at this
    size one wide product beats any gathering."""

    def __init__(self, c):
        super().__init__()
        H, E, I = c["hidden_size"], c["n_routed_experts"], c["moe_intermediate_size"]
        self.E, self.k, self.scale = E, c["num_experts_per_tok"], c["routed_scaling_factor"]
        self.n_group, self.topk_group = c["n_group"], c["topk_group"]
        self.gate = nn.Parameter(torch.empty(E, H))
        self.register_buffer("e_score_correction_bias", torch.zeros(E))
        self.register_buffer("load", torch.zeros(E), persistent=False)  # tokens per expert, last batch
        self.experts_gate = nn.Parameter(torch.empty(E, I, H))
        self.experts_up = nn.Parameter(torch.empty(E, I, H))
        self.experts_down = nn.Parameter(torch.empty(E, H, I))
        self.shared_experts = DenseMLP(H, I * c["n_shared_experts"])

    def route(self, x):
        """Weights [.., E]: sigmoid scores of the chosen experts, summing to the scaling factor."""
        with torch.autocast(x.device.type, enabled=False):
            score = torch.sigmoid(x.float() @ self.gate.float().t())
        with torch.no_grad():
            biased = score + self.e_score_correction_bias
            grouped = biased.unflatten(-1, (self.n_group, -1))
            group_score = (grouped * largest(grouped, 2)).sum(-1)
            keep = largest(group_score, self.topk_group)[..., None].expand_as(grouped).flatten(-2)
            chosen = largest(biased.masked_fill(keep == 0, float("-inf")), self.k)
            if self.training:
                self.load.copy_(chosen.flatten(0, -2).sum(0))
        weight = score * chosen
        return weight / (weight.sum(-1, keepdim=True) + 1e-20) * self.scale

    def forward(self, x):
        weight = self.route(x).to(x.dtype).repeat_interleave(self.experts_up.shape[1], -1)
        inner = F.silu(F.linear(x, self.experts_gate.flatten(0, 1)))
        inner = inner * F.linear(x, self.experts_up.flatten(0, 1)) * weight
        down = self.experts_down.transpose(0, 1).flatten(1)  # [H, E * I]
        return F.linear(inner, down) + self.shared_experts(x)

    @torch.no_grad()
    def balance(self, rate):
        """Auxiliary-loss-free balancing: the bias steps up where load is low, down where high."""
        self.e_score_correction_bias += rate * torch.sign(self.load.mean() - self.load)


class Layer(nn.Module):
    def __init__(self, c, dense):
        super().__init__()
        H, eps = c["hidden_size"], c["rms_norm_eps"]
        self.input_layernorm = RMSNorm(H, eps)
        self.self_attn = LatentAttention(c)
        self.post_attention_layernorm = RMSNorm(H, eps)
        self.mlp = DenseMLP(H, c["intermediate_size"]) if dense else MoE(c)

    def qkv(self, x, rope):
        return self.self_attn.qkv(self.input_layernorm(x), rope)

    def finish(self, x, heads):
        """The rest of the layer, once the attention heads [B, h, T, v] are known."""
        x = x + self.self_attn.out(heads)
        return x + self.mlp(self.post_attention_layernorm(x))

    def forward(self, x, rope):
        return self.finish(x, causal_attention(*self.qkv(x, rope)))


class Target(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.config = c
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])  # also the output head
        self.layers = nn.ModuleList(
            Layer(c, dense=i < c["first_k_dense_replace"]) for i in range(c["num_hidden_layers"]))
        self.norm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])

    def rope(self, length, device):
        c = self.config
        return rope_table(length, c["qk_rope_head_dim"], c["rope_parameters"]["rope_theta"], device)

    def forward(self, ids, aux=()):
        """State after the final norm [B, T, H], and the outputs of the layers named in aux."""
        rope = self.rope(ids.shape[1], ids.device)
        x, kept = self.embed_tokens(ids), []
        for i, layer in enumerate(self.layers):
            x = layer(x, rope)
            if i in aux:
                kept.append(x)
        return self.norm(x), kept

    def head(self, state):
        return F.linear(state, self.embed_tokens.weight.to(state.dtype))


class MTP(nn.Module):
    """The multi-token-prediction layer: model.layers.{num_hidden_layers} of the checkpoint."""

    def __init__(self, c):
        super().__init__()
        H, eps = c["hidden_size"], c["rms_norm_eps"]
        self.enorm, self.hnorm = RMSNorm(H, eps), RMSNorm(H, eps)
        self.eh_proj = nn.Linear(2 * H, H, bias=False)
        self.layer = Layer(c, dense=False)
        self.norm = RMSNorm(H, eps)  # shared_head.norm

    def fuse(self, embedding, state):
        return self.eh_proj(torch.cat((self.enorm(embedding), self.hnorm(state)), -1))


def initialise(module, seed):
    """Normal with deviation fan_in^-1/2, zero for what writes into the residual stream."""
    generator = torch.Generator().manual_seed(seed)
    for name, p in module.named_parameters():
        if p.ndim < 2:
            continue
        if name.endswith(("o_proj.weight", "down_proj.weight", "experts_down")):
            nn.init.zeros_(p)
        else:
            deviation = 0.02 if name.endswith(("embed_tokens.weight", "gate")) else p.shape[-1] ** -0.5
            p.data.copy_(torch.randn(p.shape, generator=generator) * deviation)


def moe_layers(module):
    return [m for m in module.modules() if isinstance(m, MoE)]
