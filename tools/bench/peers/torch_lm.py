#!/usr/bin/env python3
"""The peer of `linnet bench train`: the same decoder language model, sizes and threads in PyTorch.

Trains on random bytes and prints tokens/s for softmax, linear (elu+1) and LAVO attention, and times
the attention operation alone. Runs with Debian's python3-torch (1.13) and with any later build; says
which build, BLAS and CPU libraries it used. --json prints one JSON object and nothing else on stdout.
"""

import argparse
import json
import math
import os
import platform
import re
import resource
import statistics
import sys
import time

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError as error:
    sys.exit(
        f"torch_lm.py: {sys.executable} has no PyTorch ({error}); install it (Debian: python3-torch) "
        "or name another interpreter"
    )

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from definitions import DEFINITIONS  # noqa: E402

CHUNK = 64


def say(*words):
    print(*words, file=sys.stderr, flush=True)


# Attention operations: q, k, v [B, H, T, K] -> [B, H, T, K], causal (linear and cosformer also not), each
# the fastest eager composition of PyTorch operations that we know.


def softmax_attention(q, k, v, extra):
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    length = q.shape[2]
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5)
    mask = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(mask, float("-inf")).softmax(-1) @ v


def chunks(x, size=CHUNK):
    return x.reshape(*x.shape[:2], x.shape[2] // size, size, x.shape[-1])


def carried(per_chunk):
    """Sum over the chunks before each chunk, along dimension 2; of bf16 made in f32."""
    wide = per_chunk.float() if per_chunk.dtype == torch.bfloat16 else per_chunk
    return (wide.cumsum(2) - wide).to(per_chunk.dtype)


def linear_core(q, k, v, normalized=True):
    """phi(q), phi(k) [B, H, T, F]: sum_{j<=i} (q_i k_j) v_j / sum_{j<=i} q_i k_j, by chunks."""
    q, k, v = chunks(q), chunks(k), chunks(v)
    scores = (q @ k.transpose(-1, -2)).tril()
    top = scores @ v + q @ carried(k.transpose(-1, -2) @ v)
    if not normalized:
        return top.flatten(2, 3)
    keys = carried(k.sum(-2, keepdim=True))
    bottom = scores.sum(-1, keepdim=True) + (q * keys).sum(-1, keepdim=True)
    return (top / (bottom + 1e-6)).flatten(2, 3)


def whole_linear_core(q, k, v):
    """As linear_core, but every query sees every key."""
    top = q @ (k.transpose(-1, -2) @ v)
    return top / (q @ k.sum(-2, keepdim=True).transpose(-1, -2) + 1e-6)


def linear_attention(q, k, v, extra):
    core = linear_core if extra["causal"] else whole_linear_core
    return core(F.elu(q) + 1, F.elu(k) + 1, v)


def linear_unnormalized_attention(q, k, v, extra):
    return linear_core(F.elu(q) + 1, F.elu(k) + 1, v, normalized=False)


def cosformer_attention(q, k, v, extra):
    angle = torch.arange(q.shape[2], device=q.device)[:, None] * (math.pi / 2 / q.shape[2])
    cos, sin = angle.cos().to(q.dtype), angle.sin().to(q.dtype)
    q, k = F.relu(q), F.relu(k)
    core = linear_core if extra["causal"] else whole_linear_core
    return core(torch.cat([q * cos, q * sin], -1), torch.cat([k * cos, k * sin], -1), v)


def abc_attention(q, k, v, extra):
    """Bounded memory; `slots` [B, H, T, N] are the logits of the slots, normalised when read."""
    slots = extra["slots"]
    weight = (slots - slots.amax(2, keepdim=True)).exp()
    total = weight.cumsum(2)
    q, k, v, weight, total = (chunks(x) for x in (q * q.shape[-1] ** -0.5, k, v, weight, total))
    slot_keys = carried(weight.transpose(-1, -2) @ k)
    slot_values = carried(weight.transpose(-1, -2) @ v)
    logits = ((q @ k.transpose(-1, -2)).tril() @ weight + q @ slot_keys.transpose(-1, -2)) / total
    read = logits.softmax(-1) / total
    out = (read @ weight.transpose(-1, -2)).tril() @ v + read @ slot_values
    return out.flatten(2, 3)


def lavo_attention(q, k, v, extra):
    """Banded softmax of the last w tokens, and orthogonal memory read in its factored form."""
    basis, bias = extra["basis"], extra["bias"]  # [H, r, K], [H, 2w-1]
    width = (bias.shape[-1] + 1) // 2
    scale = q.shape[-1] ** -0.5
    batch, heads, length, _ = q.shape
    count = length // width
    own_q, own_k, own_v = (chunks(x, width) for x in (q, k, v))

    def with_previous(x):
        return torch.cat([F.pad(x, (0, 0, 0, 0, 1, 0))[:, :, :count], x], 3)

    row = torch.arange(width, device=q.device)[:, None] + width
    column = torch.arange(2 * width, device=q.device)[None, :]
    distance = column - row
    outside = (distance > 0) | (distance <= -width)
    start = torch.zeros(count, 1, 2 * width, dtype=torch.bool, device=q.device)
    start[0, :, :width] = True
    local_bias = bias[:, (distance.clamp(1 - width, width - 1) + width - 1)]  # [H, w, 2w]
    scores = own_q @ with_previous(own_k).transpose(-1, -2) * scale + local_bias[None, :, None]
    scores = scores.masked_fill(outside | start, float("-inf"))
    local = scores.softmax(-1) @ with_previous(own_v)  # [B, H, n, w, K]
    projection = basis.transpose(-1, -2)[None, :, None]  # [1, H, 1, K, r]
    seen = torch.arange(count, device=q.device).clamp(min=1)[:, None, None] * width
    memory = carried((local.sum(3, keepdim=True)) @ projection) / seen  # [B, H, n, 1, r]
    read = (scale * memory * (own_q @ projection)).softmax(-1) * memory
    return (0.5 * (local + read @ basis[None, :, None])).reshape(batch, heads, length, -1)


MECHANISMS = {
    "softmax": softmax_attention,
    "linear": linear_attention,
    "linear_unnormalized": linear_unnormalized_attention,
    "cosformer": cosformer_attention,
    "abc_mlp": abc_attention,
    "lavo": lavo_attention,
}
WITHOUT_ORDER = ["linear", "cosformer"]  # those that --form noncausal times


class Attention(nn.Module):
    def __init__(self, args, name):
        super().__init__()
        self.name, self.heads, self.slots = name, args.heads, args.slots
        self.qkv = nn.Linear(args.width, 3 * args.width)
        self.out = nn.Linear(args.width, args.width)
        per_head = args.width // args.heads
        if name == "lavo":
            rows = torch.linalg.qr(torch.randn(args.heads, per_head, args.rank))[0]
            self.basis = nn.Parameter(rows.transpose(-1, -2).contiguous())
            self.bias = nn.Parameter(torch.zeros(args.heads, 2 * args.window - 1))
        if name == "abc_mlp":
            self.slot = nn.Linear(args.width, args.heads * args.slots, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        split = self.qkv(x).reshape(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        extra = {"causal": True}
        if self.name == "lavo":
            extra |= {"basis": self.basis, "bias": self.bias}
        if self.name == "abc_mlp":
            slots = self.slot(x).reshape(batch, length, self.heads, self.slots)
            extra |= {"slots": slots.transpose(1, 2)}
        mixed = MECHANISMS[self.name](split[0], split[1], split[2], extra)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, args, name):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(args.width), nn.LayerNorm(args.width)
        self.attention = Attention(args, name)
        self.up, self.down = nn.Linear(args.width, args.ffn), nn.Linear(args.ffn, args.width)
        self.gelu = args.gelu

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate=self.gelu))


class Decoder(nn.Module):
    """Pre-norm decoder with learned positions and tied embeddings."""

    def __init__(self, args, name):
        super().__init__()
        self.embedding = nn.Embedding(args.vocabulary, args.width)
        self.position = nn.Parameter(torch.zeros(args.context, args.width))
        self.blocks = nn.ModuleList(Block(args, name) for _ in range(args.layers))
        self.norm = nn.LayerNorm(args.width)
        nn.init.normal_(self.embedding.weight, std=args.width**-0.5)

    def forward(self, tokens, targets):
        x = self.embedding(tokens) + self.position[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.embedding.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def seconds_of(action, repeats):
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return times


def bench_training(args, name):
    torch.manual_seed(1)
    model = Decoder(args, name).to(args.device)
    parameters = sum(p.numel() for p in model.parameters())
    compiled = torch.compile(model) if args.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    tokens = torch.randint(args.vocabulary, (args.batch, args.context + 1), device=args.device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(args.device, torch.bfloat16, enabled=args.dtype == "bf16"):
            loss = compiled(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    seconds_of(step, args.warmup)
    times = seconds_of(step, args.steps)
    result = {
        "mechanism": name,
        "parameters": parameters,
        "step_s": statistics.median(times),
        "step_s_min": min(times),
        "tokens_per_s": args.batch * args.context / statistics.median(times),
    }
    say(f"train {name:10} {result['tokens_per_s']:10.0f} tokens/s  {result['step_s']:.3f} s a step")
    return result


def bench_operation(args, name):
    torch.manual_seed(1)
    per_head = args.width // args.heads
    shape = (args.op_batch, args.op_heads, args.op_length, per_head)
    q, k, v = (torch.randn(shape, requires_grad=True) for _ in range(3))
    rows = torch.linalg.qr(torch.randn(args.op_heads, per_head, args.rank))[0].transpose(-1, -2)
    extra = {
        "basis": rows.contiguous().requires_grad_(),
        "bias": torch.zeros(args.op_heads, 2 * args.window - 1, requires_grad=True),
    }
    cotangent = torch.randn(shape)
    inputs = [q, k, v, *extra.values()]
    extra["causal"] = args.form == "causal"
    if name == "abc_mlp":  # the control reads the whole token, as part of the mechanism
        x = torch.randn(args.op_batch, args.op_length, args.width, requires_grad=True)
        control = torch.randn(args.op_heads * args.slots, args.width) * args.width**-0.5
        inputs += [x, control.requires_grad_()]

    def operation():
        if name == "abc_mlp":
            logits = F.linear(x, control).reshape(*x.shape[:2], args.op_heads, args.slots)
            extra["slots"] = logits.transpose(1, 2)
        return MECHANISMS[name](q, k, v, extra)

    def forward():
        with torch.no_grad():
            operation()

    def both():  # gradients are written, not added to earlier ones, as linnet's are
        y = operation()
        torch.autograd.grad(y, inputs, cotangent, allow_unused=True)

    seconds_of(both, args.warmup)
    result = {
        "mechanism": name,
        "forward_ms": 1e3 * statistics.median(seconds_of(forward, args.op_repeats)),
        "forward_backward_ms": 1e3 * statistics.median(seconds_of(both, args.op_repeats)),
    }
    say(
        f"op    {name:10} {result['forward_ms']:10.2f} ms forward"
        f"  {result['forward_backward_ms']:.2f} ms with backward"
    )
    return result


def check_operations(args):
    """Every fast composition against its definition at T = 4 chunks; stops at a difference."""
    torch.manual_seed(2)
    length, width = 4 * CHUNK, 16
    q, k, v = (torch.randn(1, 2, length, width, dtype=torch.float64) for _ in range(3))
    slots = torch.randn(1, 2, length, 5, dtype=torch.float64)
    basis = torch.randn(2, 7, width, dtype=torch.float64)
    bias = torch.randn(2, 2 * args.window - 1, dtype=torch.float64)
    extra = {"slots": slots, "basis": basis, "bias": bias}
    extra["window"] = args.window
    for causal, names in ((True, MECHANISMS), (False, WITHOUT_ORDER)):
        extra["causal"] = causal
        for name in names:
            expected = DEFINITIONS[name](q, k, v, extra)
            error = (MECHANISMS[name](q, k, v, extra) - expected).abs().max().item()
            # The compositions add 1e-6 to their normalisers.
            if not error <= 1e-4:
                sys.exit(f"torch_lm.py: {name} differs from its definition by {error}")


def environment(args):
    config = torch.__config__.show()
    mapped = set()
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            found = re.search(r"/\S*(openblas|mkl|blis|dnnl|libblas|gomp|iomp)\S*", line)
            if found:
                mapped.add(os.path.basename(found.group(0)))
    blas = re.search(r"BLAS_INFO=(\w+)", config)
    return {
        "torch": torch.__version__,
        "installed_at": os.path.dirname(torch.__file__),
        "blas": blas.group(1) if blas else "not named by this build",
        "libraries": sorted(mapped),
        "mkl": torch.backends.mkl.is_available(),
        "mkldnn": torch.backends.mkldnn.is_available(),
        "threads": torch.get_num_threads(),
        "compile": args.compile,
        "python": platform.python_version(),
    }


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mechanisms", default="softmax,linear,lavo", help="to train")
    parser.add_argument("--operations", default="linear,cosformer,abc_mlp,lavo", help="to time")
    parser.add_argument("--form", default="causal", choices=["causal", "noncausal"], help="of those")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--steps", type=int, default=5, help="timed updates")
    parser.add_argument("--warmup", type=int, default=2, help="updates before the timed ones")
    parser.add_argument("--compile", action="store_true", help="train through torch.compile")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--device", default="cpu", help="of training: cpu or cuda")
    parser.add_argument("--gelu", default="none", choices=["none", "tanh"], help="approximation")
    parser.add_argument("--dtype", default="f32", choices=["f32", "bf16"], help="bf16: autocast")
    for name, value in {
        "layers": 4, "width": 256, "heads": 4, "ffn": 1024, "context": 1024, "batch": 8,
        "vocabulary": 256, "window": 16, "rank": 64, "slots": 32,
        "op-length": 4096, "op-batch": 1, "op-heads": 4, "op-repeats": 10,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    for name in filter(None, (args.mechanisms + "," + args.operations).split(",")):
        if name not in MECHANISMS:
            parser.error(f"unknown mechanism '{name}'; known: {', '.join(MECHANISMS)}")
    for name in filter(None, args.operations.split(",")):
        if args.form == "noncausal" and name not in WITHOUT_ORDER:
            parser.error(f"{name} is timed causal only; --form noncausal: {', '.join(WITHOUT_ORDER)}")
    return args


def main():
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    check_operations(args)
    trained = [bench_training(args, n) for n in args.mechanisms.split(",") if n]
    operations = [bench_operation(args, n) for n in args.operations.split(",") if n]
    report = {
        "environment": environment(args),
        "sizes": {k: v for k, v in vars(args).items() if isinstance(v, int) and k != "json"},
        "train": trained,
        "operations": operations,
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    if args.json:
        print(json.dumps(report))
    else:
        print(json.dumps(report["environment"], indent=2))


if __name__ == "__main__":
    main()
