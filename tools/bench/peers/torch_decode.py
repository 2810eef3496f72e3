#!/usr/bin/env python3
"""The peer of `linnet bench decode`: the same decoder in PyTorch, one token after the other, batch 1, on the CPU.

Every step reads a decode state of a fixed size in place: softmax attention a cache of all keys and values, linear
attention its sums, LAVO its window and memory. First each state is checked against the definition in definitions.py.
Prints one JSON object: milliseconds of a step (median), eager and with torch.compile unless --no-compile.
"""

import argparse
import json
import os
import statistics
import sys
import time

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError as error:
    sys.exit(f"torch_decode.py: {sys.executable} has no PyTorch ({error}); name another interpreter")

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from definitions import DEFINITIONS  # noqa: E402


class Softmax(nn.Module):
    """Keys and values of all tokens; those to come are masked."""

    def __init__(self, args):
        super().__init__()
        shape = (1, args.heads, args.length, args.width // args.heads)
        self.register_buffer("keys", torch.zeros(shape))
        self.register_buffer("values", torch.zeros(shape))
        self.register_buffer("places", torch.arange(args.length), persistent=False)

    def forward(self, q, k, v, at):
        self.keys.index_copy_(2, at, k)
        self.values.index_copy_(2, at, v)
        seen = (self.places <= at)[None, None, None]
        return F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=seen)


class Linear(nn.Module):
    def __init__(self, args):
        super().__init__()
        size = args.width // args.heads
        self.register_buffer("sums", torch.zeros(1, args.heads, size, size))
        self.register_buffer("keys", torch.zeros(1, args.heads, size, 1))

    def forward(self, q, k, v, at):
        q, k = F.elu(q) + 1, (F.elu(k) + 1).transpose(-1, -2)
        self.sums.add_(k @ v)
        self.keys.add_(k)
        return (q @ self.sums) / (q @ self.keys + 1e-6)


class Lavo(nn.Module):
    """The last `window` keys and values in a ring, the memory of whole windows and the sum of this one."""

    def __init__(self, args):
        super().__init__()
        size, self.window = args.width // args.heads, args.window
        rows = torch.linalg.qr(torch.randn(args.heads, size, args.rank))[0]
        self.basis = nn.Parameter(rows.transpose(-1, -2).contiguous()[None])  # [1, H, r, K]
        self.bias = nn.Parameter(0.1 * torch.randn(args.heads, 2 * args.window - 1))
        for name, shape in (("keys", (args.window, size)), ("values", (args.window, size))):
            self.register_buffer(name, torch.zeros(1, args.heads, *shape))
        self.register_buffer("memory", torch.zeros(1, args.heads, 1, args.rank))
        self.register_buffer("partial", torch.zeros(1, args.heads, 1, size))
        self.register_buffer("places", torch.arange(args.window), persistent=False)

    def forward(self, q, k, v, at):
        slot = at % self.window
        self.keys.index_copy_(2, slot, k)
        self.values.index_copy_(2, slot, v)
        distance = (slot - self.places) % self.window  # of each place of the ring
        scale = q.shape[-1] ** -0.5
        scores = scale * (q @ self.keys.transpose(-1, -2))
        scores = scores + self.bias[:, self.window - 1 - distance][None, :, None]
        scores = scores.masked_fill(distance > at, float("-inf"))
        local = scores.softmax(-1) @ self.values
        projection = self.basis.transpose(-1, -2)
        memory = self.memory / (at - slot).clamp(min=1)
        read = (scale * memory * (q @ projection)).softmax(-1) * memory
        self.partial.add_(local)
        ends = (slot == self.window - 1).to(local.dtype)
        self.memory.add_(ends * (self.partial @ projection))
        self.partial.mul_(1 - ends)
        return 0.5 * (local + read @ self.basis)


STATES = {"softmax": Softmax, "linear": Linear, "lavo": Lavo}


class Block(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.heads = args.heads
        self.norm1, self.norm2 = nn.LayerNorm(args.width), nn.LayerNorm(args.width)
        self.qkv, self.out = nn.Linear(args.width, 3 * args.width), nn.Linear(args.width, args.width)
        self.up, self.down = nn.Linear(args.width, args.ffn), nn.Linear(args.ffn, args.width)
        self.attention = STATES[args.attention](args)

    def forward(self, x, at, cos, sin):
        q, k, v = self.qkv(self.norm1(x)).reshape(1, 3, self.heads, 1, -1).unbind(1)
        q, k = (y * cos + torch.cat([-y[..., 1::2], y[..., ::2]], -1) * sin for y in (q, k))
        x = x + self.out(self.attention(q, k, v, at).reshape(1, -1))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    """Pre-norm, rotary positions, tied embeddings: a token [1] at place [1] -> the likeliest next one [1]."""

    def __init__(self, args):
        super().__init__()
        size = args.width // args.heads
        self.embedding = nn.Embedding(args.vocabulary, args.width)
        self.blocks = nn.ModuleList(Block(args) for _ in range(args.layers))
        self.norm = nn.LayerNorm(args.width)
        angle = torch.arange(args.length)[:, None] * 10000.0 ** (-torch.arange(size // 2) * 2 / size)
        self.register_buffer("cos", torch.cat([angle, angle], -1).cos())
        self.register_buffer("sin", torch.cat([angle, angle], -1).sin())

    def forward(self, token, at):
        x = self.embedding(token)
        cos, sin = self.cos[at], self.sin[at]
        for block in self.blocks:
            x = block(x, at, cos, sin)
        return F.linear(self.norm(x), self.embedding.weight).argmax(-1)


def check_states(args):
    """Token by token against the definitions; stops at a difference."""
    torch.manual_seed(2)
    small = argparse.Namespace(**(vars(args) | {"width": 32, "heads": 2, "length": 64, "rank": 7, "window": 16}))
    for name, state in STATES.items():
        step = state(small).double()
        q, k, v = (torch.randn(1, 2, 64, 16, dtype=torch.float64) for _ in range(3))
        extra = {"causal": True, "window": small.window}
        if name == "lavo":
            extra |= {"basis": step.basis[0], "bias": step.bias}
        with torch.no_grad():
            expected = DEFINITIONS[name](q, k, v, extra)
            for t in range(64):
                y = step(*(x[:, :, t : t + 1] for x in (q, k, v)), torch.tensor([t]))
                error = (y[:, :, 0] - expected[:, :, t]).abs().max().item()
                if not error <= 1e-4:  # linear adds 1e-6 to its normaliser
                    sys.exit(f"torch_decode.py: {name} differs from its definition by {error} at token {t}")


def milliseconds(model, args):
    """The median of a step, after as many that are not timed."""
    step = model
    token, times = torch.zeros(1, dtype=torch.long), []
    with torch.inference_mode():
        for t in range(args.length):
            started = time.perf_counter()
            token = step(token, torch.tensor([t]))
            token.item()
            times.append(time.perf_counter() - started)
    return 1e3 * statistics.median(times[args.length // 2 :])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attention", choices=STATES, default="lavo")
    parser.add_argument("--dtype", choices=("f32", "bf16"), default="f32")
    for name, default in (
        ("layers", 4), ("width", 192), ("heads", 3), ("ffn", 768), ("vocabulary", 256), ("rank", 32), ("window", 16),
        ("length", 256), ("threads", 1),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--no-compile", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    check_states(args)
    torch.manual_seed(1)
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[args.dtype]
    result = {"torch": torch.__version__, **{name: getattr(args, name) for name in vars(args) if name != "no_compile"}}
    result["eager_ms"] = milliseconds(Decoder(args).to(dtype).eval(), args)
    if not args.no_compile:
        result["compile_ms"] = milliseconds(torch.compile(Decoder(args).to(dtype).eval()), args)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
