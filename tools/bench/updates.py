"""Whole updates in tools/bench/gpu_bench: linnet beside PyTorch, and the memory of a long sequence's."""

import json
import os
import random
import statistics
import time

from peer_processes import Failed, run_json

HERE = os.path.dirname(os.path.abspath(__file__))
MECHANISMS = ["linear", "softmax", "lavo"]
TRAIN_SHAPE = {"layers": 12, "width": 768, "heads": 12, "ffn": 3072, "context": 1024, "batch": 32}
TINY_TRAIN_SHAPE = {"layers": 1, "width": 128, "heads": 2, "ffn": 512, "context": 64, "batch": 2}


def bench_train(args, recipe, context, steps):
    """The command for whole updates of a recipe on a text that is written here."""
    text = os.path.join(args.scratch, "bench_text.txt")
    words = random.Random(1)
    with open(text, "w", encoding="utf-8") as out:
        for _ in range(20000 if args.tiny else 400000):
            out.write(words.choice(["the", "old", "ship", "sails", "over", "a", "sea", "of"]))
            out.write(words.choice([" ", " ", " ", ".\n"]))
    data = f"{{kind: text, path: {json.dumps(text)}, tokenizer: {{kind: byte}}, context: {context}}}"
    own = [args.linnet, "bench", "train", recipe, "data=" + data, "--steps", str(steps), "--json"]
    return own + ["--device", args.device, f"train.precision={args.dtype}"]


def memory_case(args, end):
    """What an update of a long sequence needs: linnet alone."""
    shape = {"layers": 12, "width": 768, "heads": 12, "context": 8192, "batch": 1}
    if args.tiny:
        shape = {"layers": 1, "width": 128, "heads": 2, "context": 64, "batch": 1}
    recipe = os.path.join(os.path.dirname(args.recipe), "gpu_lavo_8k.yaml")
    own = bench_train(args, recipe, shape["context"], 1 if args.tiny else 5)
    own += [f"model.{key}={shape[key]}" for key in ("layers", "width", "heads")]
    result = {"case": "memory", **shape, "dtype": args.dtype}
    try:
        point = run_json(own, min(args.limits["linnet"], end - time.monotonic()))["points"][0]
        result.update({n: point[n] for n in ("tokens_per_s", "peak_bytes", "working_bytes")})
    except Failed as failure:
        result["message"] = str(failure)
    return result


def torch_updates(args, mechanism, steps, seconds):
    """PyTorch's updates of one mechanism, in a process of its own."""
    peer = [args.python, os.path.join(HERE, "peers/torch_lm.py"), "--json", "--operations", ""]
    peer += ["--mechanisms", mechanism, "--steps", str(steps), "--device", args.device]
    peer += ["--gelu", "tanh", "--dtype", args.dtype] + ([] if args.tiny else ["--compile"])
    for key, value in (TINY_TRAIN_SHAPE if args.tiny else TRAIN_SHAPE).items():
        peer += [f"--{key}", str(value)]
    return run_json(peer, min(args.limits["train"], seconds), args.env)


def train_case(args, end, results):
    """Whole updates: linnet, PyTorch, linnet."""
    steps, shape = (1, TINY_TRAIN_SHAPE) if args.tiny else (10, TRAIN_SHAPE)
    own = bench_train(args, args.recipe, shape["context"], steps)
    if args.tiny:
        own += [f"model.{key}={shape[key]}" for key in ("layers", "width", "heads")]
        own += ["train.examples_per_update=2", "train.micro_batch=2"]
    result = {"case": "train", **shape, "dtype": args.dtype, "points": {}}
    turns = {}

    def measure_linnet():
        try:
            points = run_json(own, min(args.limits["train"], end - time.monotonic()))["points"]
        except Failed as failure:
            result["message"] = str(failure)
            return
        for point in points:
            for name in MECHANISMS:
                if point["point"].endswith("=" + name):
                    turns.setdefault(name, []).append(point["tokens_per_s"])
                    found = result["points"].setdefault(name, {})
                    found["linnet_tokens_per_s"] = statistics.median(turns[name])
                    found["linnet_peak_bytes"] = point["peak_bytes"]
        results.record(partial=True, **result)

    measure_linnet()
    for name in MECHANISMS if args.lacks_torch is None else []:
        found = result["points"].setdefault(name, {})
        try:
            report = torch_updates(args, name, steps, end - time.monotonic())
            result["torch"] = report["environment"]["torch"]
            found["torch_tokens_per_s"] = report["train"][0]["tokens_per_s"]
        except Failed as failure:
            found["torch_message"] = str(failure)
    measure_linnet()
    return result
