"""The equations of mechanisms in plain PyTorch operations, differentiable: what peers must agree
with, in double, before they are timed."""

import math

import torch
import torch.nn.functional as F


def weighted(weights, v):
    """Means of v; 0 where no key counts."""
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-30) @ v


def softmax(q, k, v, extra):
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(future, float("-inf")).softmax(-1) @ v


def local(q, k, v, extra):
    """The last `window` keys; `bias` [H, 2 window - 1] by distance where there is one."""
    window, bias = extra["window"], extra.get("bias")
    at = torch.arange(q.shape[2], device=q.device)
    distance = at[None] - at[:, None]
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if bias is not None:
        scores = scores + bias[:, distance.clamp(1 - window, window - 1) + window - 1]
    return scores.masked_fill((distance > 0) | (distance <= -window), float("-inf")).softmax(-1) @ v


def seen(weights, extra):
    """Without those of keys that come later, unless `extra` says that every query sees every key."""
    return weights.tril() if extra.get("causal", True) else weights


def linear(q, k, v, extra):
    return weighted(seen((F.elu(q) + 1) @ (F.elu(k) + 1).transpose(-1, -2), extra), v)


def linear_unnormalized(q, k, v, extra):
    return sums_of_products(F.elu(q) + 1, F.elu(k) + 1, v, extra)


def sums_of_products(q, k, v, extra):
    return (q @ k.transpose(-1, -2)).tril() @ v


def conv(q, k, v, extra):
    """`taps` [H, n], the last one on the token itself."""
    taps, length = extra["taps"], v.shape[2]
    count = taps.shape[-1]
    padded = F.pad(v, (0, 0, count - 1, 0))
    return sum(taps[:, n, None, None] * padded[:, :, n : n + length] for n in range(count))


def cosformer(q, k, v, extra):
    length = q.shape[2]
    at = torch.arange(length, dtype=q.dtype, device=q.device)
    nearness = ((at[:, None] - at[None]) * (math.pi / 2 / length)).cos()
    return weighted(seen(F.relu(q) @ F.relu(k).transpose(-1, -2) * nearness, extra), v)


def abc_mlp(q, k, v, extra):
    """`slots` [B, H, T, N]: the logits with which tokens are written."""
    rows = []
    for t in range(q.shape[2]):
        share = extra["slots"][:, :, : t + 1].softmax(2).transpose(-1, -2)
        keys, values = share @ k[:, :, : t + 1], share @ v[:, :, : t + 1]
        scores = q[:, :, t : t + 1] @ keys.transpose(-1, -2) * q.shape[-1] ** -0.5
        rows.append(scores.softmax(-1) @ values)
    return torch.cat(rows, 2)


def lavo(q, k, v, extra):
    """The mean of a window's softmax and of the memory diag(m) `basis` [H, r, K]."""
    basis, window, scale = extra["basis"], extra["window"], q.shape[-1] ** -0.5
    near = local(q, k, v, extra)
    rows = []
    for t in range(q.shape[2]):
        past = t // window * window
        code = near[:, :, :past].sum(2, keepdim=True) @ basis.transpose(-1, -2) / max(past, 1)
        memory = code.transpose(-1, -2) * basis
        read = (q[:, :, t : t + 1] @ memory.transpose(-1, -2) * scale).softmax(-1) @ memory
        rows.append(0.5 * (near[:, :, t : t + 1] + read))
    return torch.cat(rows, 2)


DEFINITIONS = {
    "softmax": softmax,
    "local": local,
    "linear": linear,
    "linear_unnormalized": linear_unnormalized,
    "sums_of_products": sums_of_products,
    "conv": conv,
    "cosformer": cosformer,
    "abc_mlp": abc_mlp,
    "lavo": lavo,
}
