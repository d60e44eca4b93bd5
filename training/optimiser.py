"""Muon for the matrices inside the layers, AdamW for everything else, one learning-rate curve."""

import torch


def orthogonalise(g, steps=5):
    """Newton-Schulz iteration towards the nearest semi-orthogonal matrix, for a stack [N, m, n]."""
    x = g.bfloat16()
    wide = x.shape[-2] <= x.shape[-1]
    if not wide:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        a = x @ x.mT
        b = torch.baddbmm(a, a, a, beta=-4.7750, alpha=2.0315)
        x = torch.baddbmm(x, b, x, beta=3.4445)
    return x if wide else x.mT


def muon_update(p, g, momentum, lr, beta, decay):
    """One step for a stack of equal matrices."""
    momentum = torch.lerp(g, momentum, beta)
    update = orthogonalise(torch.lerp(g, momentum, beta)).float()
    update = update * max(1.0, p.shape[-2] / p.shape[-1]) ** 0.5
    return p * (1 - lr * decay) - lr * update, momentum


class Muon:
    def __init__(self, params, decay, beta=0.95):
        self.beta, self.decay, self.groups = beta, decay, {}
        for p in params:
            self.groups.setdefault(tuple(p.shape[-2:]), []).append(p)
        self.momentum = {s: torch.cat([torch.zeros_like(p).view(-1, *s) for p in ps])
                         for s, ps in self.groups.items()}

    @torch.no_grad()
    def step(self, lr):
        for shape, params in self.groups.items():
            stack = torch.cat([p.view(-1, *shape) for p in params])
            grad = torch.cat([p.grad.view(-1, *shape) for p in params])
            new, self.momentum[shape] = muon_update(
                stack, grad, self.momentum[shape], lr, self.beta, self.decay)
            parts = new.split([p.numel() // (shape[0] * shape[1]) for p in params])
            torch._foreach_copy_(params, [n.view_as(p) for n, p in zip(parts, params)])

    def state_dict(self):
        return {str(k): v for k, v in self.momentum.items()}

    def load_state_dict(self, state):
        self.momentum = {k: state[str(k)].to(v.device) for k, v in self.momentum.items()}


class Optimiser:
    """step(scale): scale in [0, 1] multiplies both learning rates."""

    def __init__(self, module, recipe):
        def is_table(name):
            return name.endswith(("embed_tokens.weight", "lm_head.weight", ".gate"))
        named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
        matrices = [p for n, p in named if p.ndim >= 2 and not is_table(n)]
        tables = [p for n, p in named if p.ndim >= 2 and is_table(n)]
        vectors = [p for n, p in named if p.ndim < 2]
        self.muon_lr, self.adam_lr = recipe["muon_lr"], recipe["adam_lr"]
        self.muon = Muon(matrices, recipe["weight_decay"])
        self.adam = torch.optim.AdamW(
            [{"params": tables, "weight_decay": recipe["weight_decay"] / 10},
             {"params": vectors, "weight_decay": 0.0}],
            lr=self.adam_lr, betas=(0.9, 0.95), eps=1e-10, fused=matrices[0].is_cuda)
        self.params = matrices + tables + vectors

    def step(self, scale):
        torch.nn.utils.clip_grad_norm_(self.params, 1.0)
        self.muon.step(self.muon_lr * scale)
        for group in self.adam.param_groups:
            group["lr"] = self.adam_lr * scale
        self.adam.step()
        for p in self.params:
            p.grad = None

    def state_dict(self):
        return {"muon": self.muon.state_dict(), "adam": self.adam.state_dict()}

    def load_state_dict(self, state):
        self.muon.load_state_dict(state["muon"])
        self.adam.load_state_dict(state["adam"])


def lr_scale(step, steps, warmup, decay_fraction):
    """Warm-up, plateau, then a straight line to zero over the last part."""
    decay_steps = max(1, int(steps * decay_fraction))
    return min(1.0, (step + 1) / warmup, (steps - step) / decay_steps)
