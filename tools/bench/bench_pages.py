"""The rows of report.md that tools/bench/gpu_bench writes."""

import math

# Of an update, besides weights and optimizer state (recipes/bench/gpu_lavo_8k.yaml).
MEMORY_AIM = 2 << 30
ATTENTION_COLUMNS = [
    "case",
    "batch x heads x tokens x width",
    "linnet forward, ms",
    "and backward",
    "peer",
    "forward, ms",
    "and backward",
    "ratio forward",
    "and backward",
]
TRAIN_COLUMNS = ["training", "linnet, tokens/s", "PyTorch, tokens/s", "ratio"]


def milliseconds(figures):
    return [f"{figures[n]:.3f}" for n in ("forward_ms", "forward_backward_ms")]


def attention_rows(result):
    own = result["linnet"] if result["linnet"].get("outcome") == "measured" else None
    start = [result["case"], "{batch} x {heads} x {length} x {width}".format(**result)]
    start += milliseconds(own) if own else ["-", "-"]
    for name, peer in result["peers"].items():
        if "forward_ms" in peer and own:
            ratios = (peer[n] / own[n] for n in ("forward_ms", "forward_backward_ms"))
            late = "" if peer["outcome"] == "measured" else f", then {peer['outcome']}"
            yield [*start, name + late, *milliseconds(peer), *(f"{ratio:.2f}" for ratio in ratios)]
        else:
            why = peer.get("message") or f"(off by {peer.get('error', math.nan):.1e})"
            yield [*start, f"{name}: {peer['outcome']} {why}", "-", "-", "-", "-"]
    if "share_of_copy" in result:
        share = "{forward:.0%} forward, {backward:.0%} backward".format(**result["share_of_copy"])
        yield [*start, f"of a copy's {result['copy_gb_per_s']:.0f} GB/s: {share}", "-", "-", "-", "-"]
    if not result["peers"] or "message" in result:
        yield [*start, result.get("message", "no peers"), "-", "-", "-", "-"]


def train_rows(result):
    for name, point in result["points"].items():
        own, peer = point.get("linnet_tokens_per_s"), point.get("torch_tokens_per_s")
        figures = [f"{figure:.0f}" if figure else "-" for figure in (own, peer)]
        if "torch_message" in point:
            figures[1] = point["torch_message"]
        yield [name, *figures, f"{own / peer:.2f}" if own and peer else "-"]
    if "message" in result:
        yield [result["message"], "-", "-", "-"]


def memory_rows(result):
    """One more row of the table of attention."""
    shape = "{layers} layers, {batch} x {context} tokens, width {width}".format(**result)
    found = result.get("message")
    if found is None:
        found = "besides weights and optimizer state {:.0f} MiB, {:.2f} of the aim; {:.0f} tokens/s".format(
            result["working_bytes"] / 2**20, result["working_bytes"] / MEMORY_AIM, result["tokens_per_s"]
        )
    yield ["memory of a lavo update", shape, "-", "-", found, "-", "-", "-", "-"]
