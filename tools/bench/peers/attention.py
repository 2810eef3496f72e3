#!/usr/bin/env python3
"""Times attention, or a convolution, of PyTorch, FlexAttention or flash-linear-attention on one shape.

tools/bench/gpu_bench talks to it. It says that it has imported the peer, then reads lines and answers
each with a JSON object in a line. "prepare" runs the peer once on the shape, which compiles and tunes it,
and compares it with the mechanism's definition in double, outputs and gradients; "round" times it.
"""

import argparse
import json
import math
import os
import statistics
import sys
import time

try:
    import torch
    import torch.nn.functional as F
except ImportError as error:
    sys.exit(f"attention.py: {sys.executable} has no PyTorch ({error}); name another interpreter")

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import torch_lm  # noqa: E402
from definitions import DEFINITIONS  # noqa: E402

GATE_TOKENS = 256
# Of the largest number of a result: a few roundings of bf16; f32 sums of a few hundred terms.
TOLERANCE = {"bf16": 2e-2, "f32": 1e-4}
BEYOND_ANY_CACHE = 128 << 20  # bytes of inputs that runs take alternately on a GPU
COPIED_BYTES = 1 << 30
ENOUGH_SECONDS = 1.0


def answer(**fields):
    print(json.dumps(fields), flush=True)


# Peers: make(args) returns attention(q, k, v, extra) -> y, causal, all [B, H, T, K], or laid out as
# its "layout" says. What cannot be imported raises ImportError.
LAYOUTS = {"bhtk": None, "bthk": (1, 2), "bhkt": (2, 3)}  # dimensions to exchange, both ways


def laid_out(x, layout):
    return x.transpose(*LAYOUTS[layout]) if LAYOUTS[layout] else x


def sdpa(args):
    return lambda q, k, v, extra: F.scaled_dot_product_attention(q, k, v, is_causal=True)


def flex(args, window=None, biased=False):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    # Compiled, it has no backward pass on a CPU.
    attend = torch.compile(flex_attention, dynamic=False) if args.device == "cuda" else flex_attention
    masks = {}

    def seen(b, h, i, j):
        return (i >= j) if window is None else (i >= j) & (i - j < window)

    def attention(q, k, v, extra):
        length = q.shape[2]
        if length not in masks:
            masks[length] = create_block_mask(seen, None, None, length, length, device=q.device)
        score = None
        if biased:
            bias = extra["bias"]

            def score(s, b, h, i, j):
                return s + bias[h, (j - i).clamp(1 - window, window - 1) + window - 1]

        return attend(q, k, v, score_mod=score, block_mask=masks[length])

    return attention


def fla_linear(args, normalize=True, features=True):
    from fla.ops.linear_attn import chunk_linear_attn

    def attention(q, k, v, extra):
        if features:
            q, k = F.elu(q) + 1, F.elu(k) + 1
        return chunk_linear_attn(q, k, v, scale=1.0, normalize=normalize)[0]

    return attention


def fla_cosformer(args):
    from fla.ops.linear_attn import chunk_linear_attn

    def attention(q, k, v, extra):
        at = torch.arange(q.shape[1], device=q.device, dtype=torch.float32)[:, None, None]
        cos, sin = ((at * (math.pi / 2 / q.shape[1])).cos(), (at * (math.pi / 2 / q.shape[1])).sin())
        q, k = F.relu(q), F.relu(k)
        q, k = (torch.cat([x * cos.to(x.dtype), x * sin.to(x.dtype)], -1) for x in (q, k))
        return chunk_linear_attn(q, k, v, scale=1.0, normalize=True)[0]

    return attention


def fla_abc(args):
    from fla.ops.abc import chunk_abc

    return lambda q, k, v, extra: chunk_abc(q, k, v, extra["slots"].transpose(1, 2))[0]


def conv1d(args):
    def attention(q, k, v, extra):
        batch, heads, width, length = v.shape
        taps = extra["taps"].repeat_interleave(width, 0)[:, None]
        x = v.reshape(batch, heads * width, length)
        y = F.conv1d(x, taps, padding=args.taps - 1, groups=heads * width)
        return y[..., :length].reshape(v.shape)

    return attention


def composition(name, compiled):
    def make(args):
        operation = torch_lm.MECHANISMS[name]
        return torch.compile(operation, dynamic=False) if compiled else operation

    return make


def both_compositions(name):
    return [
        ("PyTorch compiled", composition(name, True), "bhtk", name),
        ("PyTorch eager", composition(name, False), "bhtk", name),
    ]


# mechanism: [(peer, make, layout, definition that it must agree with)]
PEERS = {
    "softmax": [
        ("PyTorch SDPA", sdpa, "bhtk", "softmax"),
        ("FlexAttention", flex, "bhtk", "softmax"),
    ],
    "local": [("FlexAttention", lambda args: flex(args, args.window), "bhtk", "local")],
    "linear": [
        ("flash-linear-attention", fla_linear, "bthk", "linear"),
        *both_compositions("linear"),
    ],
    "linear_unnormalized": [
        (
            "flash-linear-attention",
            lambda args: fla_linear(args, normalize=False),
            "bthk",
            "linear_unnormalized",
        ),
        (
            "flash-linear-attention, features given",
            lambda args: fla_linear(args, normalize=False, features=False),
            "bthk",
            "sums_of_products",
        ),
        *both_compositions("linear_unnormalized"),
    ],
    "conv": [("PyTorch conv1d", conv1d, "bhkt", "conv")],
    "cosformer": [
        ("flash-linear-attention, expanded", fla_cosformer, "bthk", "cosformer"),
        *both_compositions("cosformer"),
    ],
    "abc_mlp": [
        ("flash-linear-attention", fla_abc, "bthk", "abc_mlp"),
        *both_compositions("abc_mlp"),
    ],
    "lavo": [
        (
            "FlexAttention, window alone",
            lambda args: flex(args, args.window, biased=True),
            "bhtk",
            "local",
        ),
        *both_compositions("lavo"),
    ],
}


class Inputs:
    """One set of random inputs; with `slots` made of x by a product, as the mechanism makes them."""

    def __init__(self, args, mechanism, batch, heads, length, dtype):
        def rounded(x):
            return x.to(torch.bfloat16 if args.dtype == "bf16" else torch.float32).to(dtype)

        def numbers(*shape, scale=1.0):
            return rounded(torch.randn(*shape, device=args.device) * scale)

        width = args.width
        self.mechanism, self.heads, self.window = mechanism, heads, args.window
        self.sequences = "v" if mechanism == "conv" else "qkv"
        self.tensors = {n: numbers(batch, heads, length, width) for n in self.sequences}
        self.cotangent = numbers(batch, heads, length, width)
        if mechanism == "abc_mlp":
            model = heads * width
            self.tensors["x"] = numbers(batch, length, model)
            self.tensors["control"] = numbers(heads * args.slots, model, scale=model**-0.5)
        if mechanism == "conv":
            self.tensors["taps"] = numbers(heads, args.taps)
        if mechanism == "lavo":
            rows = torch.linalg.qr(torch.randn(heads, width, min(args.rank, width)))[0]
            self.tensors["basis"] = rounded(rows.transpose(-1, -2).to(args.device))
            self.tensors["bias"] = numbers(heads, 2 * args.window - 1, scale=0.1)
        self.take_gradients()

    def take_gradients(self):
        self.tensors = {n: x.contiguous().requires_grad_() for n, x in self.tensors.items()}

    def bytes(self):
        return sum(x.numel() * x.element_size() for x in self.tensors.values())

    def of(self, dtype, layout):
        """The same in another dtype, with q, k and v laid out as a peer wants them."""
        other = Inputs.__new__(Inputs)
        other.__dict__.update(self.__dict__)
        other.tensors = {
            n: (laid_out(x.detach(), layout) if n in self.sequences else x.detach()).to(dtype)
            for n, x in self.tensors.items()
        }
        other.cotangent = laid_out(self.cotangent, layout).contiguous().to(dtype)
        other.take_gradients()
        return other

    def run(self, attention):
        t = self.tensors
        extra = {"causal": True, "window": self.window, **{n: t[n] for n in ("basis", "bias", "taps") if n in t}}
        if "control" in t:
            logits = t["x"] @ t["control"].transpose(0, 1)
            slots = logits.reshape(*logits.shape[:2], self.heads, -1)
            extra["slots"] = slots.transpose(1, 2)
        return attention(t.get("q"), t.get("k"), t["v"], extra)

    def gradients(self, y):
        found = torch.autograd.grad(y, list(self.tensors.values()), self.cotangent, allow_unused=True)
        return dict(zip(self.tensors, found))


def error_of(got, expected):
    got, expected = got.double(), expected.double()
    scale = expected.abs().max().clamp(min=1e-30)
    return ((got - expected).abs().max() / scale).item()


def gate(args, attention, layout, definition):
    """The worst relative error of a result or a gradient on a short sequence of as many heads."""
    torch.manual_seed(2)
    exact = Inputs(args, args.mechanism, 1, args.heads, GATE_TOKENS, torch.float64)
    dtype = torch.bfloat16 if args.dtype == "bf16" else torch.float32
    own = exact.of(dtype, layout)
    expected = exact.run(DEFINITIONS[definition])
    y = own.run(attention)
    worst = error_of(laid_out(y, layout), expected)
    gradients, exact_gradients = own.gradients(y), exact.gradients(expected)
    for name in [n for n in ("q", "k", "v", "taps") if n in gradients]:
        got = gradients[name] if name == "taps" else laid_out(gradients[name], layout)
        worst = max(worst, error_of(got, exact_gradients[name]))
    return worst


def synchronize(args):
    if args.device == "cuda":
        torch.cuda.synchronize()


def median_ms(args, action):
    times, total = [], 0.0
    action(), synchronize(args)  # warms up
    while len(times) < args.runs and total < ENOUGH_SECONDS:
        started = time.perf_counter()
        action()
        synchronize(args)
        times.append(time.perf_counter() - started)
        total += times[-1]
    return 1e3 * statistics.median(times)


def measure(args, attention, inputs):
    """Medians, runs taking the inputs alternately, so that a GPU's cache does not hold them."""
    turn = [0]

    def following():
        turn[0] += 1
        return inputs[turn[0] % len(inputs)]

    def forward():
        with torch.no_grad():
            following().run(attention)

    def both():
        own = following()
        own.gradients(own.run(attention))

    return {"forward_ms": median_ms(args, forward), "forward_backward_ms": median_ms(args, both)}


def copy_bandwidth(args):
    """Bytes that a copy inside the device's memory reads and writes, 10^9 a second; null on a CPU."""
    if args.device == "cpu":
        return None
    source = torch.zeros(COPIED_BYTES, dtype=torch.uint8, device=args.device)
    target = torch.empty_like(source)
    return 2e-6 * COPIED_BYTES / median_ms(args, lambda: target.copy_(source))


def describe(error):
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


def made_inputs(args, layout):
    dtype = torch.bfloat16 if args.dtype == "bf16" else torch.float32
    first = Inputs(args, args.mechanism, args.batch, args.heads, args.length, dtype)
    sets = 1 if args.device == "cpu" else min(64, BEYOND_ANY_CACHE // first.bytes() + 1)
    return [first.of(dtype, layout) for _ in range(sets)]


def prepare(args, attention, inputs, layout, definition):
    about = {
        "torch": torch.__version__,
        "peer_device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
        "copy_gb_per_s": copy_bandwidth(args),
    }
    with torch.no_grad():
        inputs[0].run(attention)
    inputs[0].gradients(inputs[0].run(attention))
    error = gate(args, attention, layout, definition)
    agrees = error <= TOLERANCE[args.dtype]  # NaN does not
    answer(outcome="agrees" if agrees else "refused", error=error, about=about)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mechanism", choices=sorted(PEERS))
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="bf16", choices=sorted(TOLERANCE))
    parser.add_argument("--peer", required=True, help="its name, as gpu_bench has it")
    for name, value in {
        "batch": 1, "heads": 4, "length": 4096, "width": 64, "slots": 32, "window": 16, "rank": 64,
        "taps": 63, "runs": 20,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    names = [name for name, *_ in PEERS[args.mechanism]]
    if args.peer not in names:
        parser.error(f"unknown peer '{args.peer}'; {args.mechanism} has {', '.join(names)}")
    return args


def main():
    args = parse_arguments()
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("attention.py: PyTorch finds no CUDA device that it can use; see --device")
    _, make, layout, definition = next(peer for peer in PEERS[args.mechanism] if peer[0] == args.peer)
    try:
        attention = make(args)
    except ImportError as error:
        answer(outcome="missing", message=describe(error))
        return
    except Exception as error:  # whatever a library does while it is imported
        answer(outcome="failed", message=describe(error))
        return
    answer(outcome="began")
    inputs = []
    for line in sys.stdin:
        try:
            inputs = inputs or made_inputs(args, layout)
            if line.strip() == "prepare":
                prepare(args, attention, inputs, layout, definition)
            else:
                answer(outcome="measured", **measure(args, attention, inputs))
        except Exception as error:  # out of memory, say
            answer(outcome="failed", message=describe(error))
        if args.device == "cuda":
            torch.cuda.empty_cache()  # linnet and the other peers have their turns


if __name__ == "__main__":
    main()
