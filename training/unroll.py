"""Several draft steps at all positions at once, as the engine will chain them.

Row p holds token p+1 and, in step 1, the target's state p; it predicts token p+2. In step k > 1 it
takes the drafter's own state from row p-1 of step k-1. The keys that row p of step k sees are the
ones a draft cache would hold: step-1 rows up to p-k+1 (real states), then one row of each later
step, p-k+2 .. p (recycled states). Training on these rows is what keeps steps 2, 3, ... good.
"""

import torch
import torch.nn.functional as F

from model import causal_attention, rope_table


def shift_rows(x, by):
    """x [..., T, d] moved `by` rows down, zeros on top."""
    return F.pad(x, (0, 0, by, 0))[..., :x.shape[-2], :]


def chain_attention(q, keys, values):
    """q [B, h, T, d] of step k against keys and values of steps 1..k, each [B, h, T, .]."""
    k = len(keys)
    if k == 1:
        return causal_attention(q, keys[0], values[0])
    T, scale = q.shape[2], q.shape[3] ** -0.5
    i = torch.arange(T, device=q.device)
    hidden = i[None, :] > i[:, None] - (k - 1)
    scores = (q @ keys[0].mT).float().masked_fill(hidden, float("-inf"))
    chain = [(shift_rows(keys[m], k - 1 - m), shift_rows(values[m], k - 1 - m))
             for m in range(1, k)]
    own = [(q * key).float().sum(-1, keepdim=True) for key, _ in chain]
    p = torch.softmax(torch.cat([scores, *own], -1) * scale, -1).to(q.dtype)
    out = p[..., :T] @ values[0]
    for j, (_, value) in enumerate(chain):
        out = out + p[..., T + j:T + j + 1] * value
    return out


class MTPSteps:
    """What unroll needs to know of the MTP layer."""

    def __init__(self, mtp, target):
        self.module, self.target = mtp, target
        c = target.config
        self.rope_width, self.theta = c["qk_rope_head_dim"], c["rope_parameters"]["rope_theta"]
        self.vocabulary = None  # all target tokens

    def first(self, state, aux):
        return state

    def qkv(self, embedding, g, rope):
        x = self.module.fuse(embedding, g)
        return x, *self.module.layer.qkv(x, rope)

    def finish(self, x, heads):
        """(logits, the state that the next step takes: after shared_head.norm)."""
        z = self.module.norm(self.module.layer.finish(x, heads))
        return self.target.head(z), z


class Eagle3Steps:
    def __init__(self, eagle, target):
        self.module, self.target = eagle, target
        self.rope_width, self.theta = eagle.config["head_dim"], eagle.config["rope_theta"]
        self.vocabulary = eagle.target_ids()
        self.output_rows = target.embed_tokens.weight[self.vocabulary]

    def first(self, state, aux):
        return self.module.fc(torch.cat(aux, -1))

    def qkv(self, embedding, g, rope):
        layer = self.module.midlayer
        x = torch.cat((layer.input_layernorm(embedding), layer.hidden_norm(g)), -1)
        return g, *layer.self_attn.qkv(x, rope)

    def finish(self, x, heads):
        """(logits over the draft vocabulary, the state that the next step takes: before norm)."""
        layer = self.module.midlayer
        y = x + layer.self_attn.o_proj(heads.transpose(1, 2).flatten(-2))
        y = y + layer.mlp(layer.post_attention_layernorm(y))
        return F.linear(self.module.norm(y), self.output_rows), y


def unroll(steps, tokens, state, aux, count):
    """Yields the logits [B, T, .] of each of `count` draft steps; rows p < k-1 of step k are void.

    tokens [B, T+1]; state and aux [B, T+1, H] of the target over them (the last row is unused).
    """
    T = tokens.shape[1] - 1
    embedding = steps.target.embed_tokens(tokens[:, 1:])
    rope = rope_table(T, steps.rope_width, steps.theta, tokens.device)
    g, keys, values = steps.first(state[:, :T], [a[:, :T] for a in aux]), [], []
    for _ in range(count):
        x, q, k, v = steps.qkv(embedding, g, rope)
        keys.append(k)
        values.append(v)
        logits, recycled = steps.finish(x, chain_attention(q, keys, values))
        yield logits
        g = shift_rows(recycled, 1)
