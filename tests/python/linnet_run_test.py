#!/usr/bin/env python3
"""tools/python/linnet_run.py on what the program writes. Usage: linnet_run_test.py LINNET SOURCE"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import h5py
    import numpy as np
    import pandas  # noqa: F401
except ImportError as missing:
    print(f"SKIPPED: no {missing.name} for this python3")
    sys.exit(77)

linnet, source = sys.argv[1], Path(sys.argv[2])
sys.path.insert(0, str(source / "tools/python"))
sys.dont_write_bytecode = True
import linnet_run  # noqa: E402

RECIPE = """
name: tiny
seed: 5
data: {kind: text, train: [train.txt], validation: [valid.txt], context: 16, cache: false}
model: {kind: decoder, layers: 2, width: 16, heads: 2, attention: {name: softmax}}
optim: {kind: adamw, lr: 0.01, ema: {decay: 0.5}}
train: {max_steps: 4, tokens_per_update: 64, micro_batch: 4, log_every_steps: 1}
evaluate: {every_steps: 2, batch: 4}
generate: {tokens: 0}
"""


def main(folder):
    def run(*arguments):
        done = subprocess.run([linnet, *arguments], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    (folder / "train.txt").write_text("the old ship sails over a sea of sand now and then\n" * 20)
    (folder / "valid.txt").write_text("a sea of sand and an old ship\n" * 9)
    (folder / "tiny.yaml").write_text(RECIPE)
    run("train", "tiny.yaml", "--out", "run")

    weights = linnet_run.weights(folder / "run", averaged=False)
    averaged = linnet_run.weights(folder / "run")
    moments = linnet_run.moments(folder / "run")
    name = "layers.1.attention.q.weight"
    assert weights[name].shape == (16, 16) and weights[name].dtype == np.float32
    assert set(moments["m"]) == set(moments["v"]) == set(weights) == set(averaged)
    assert moments["updates"] == [4]
    assert all(moments[kind][each].shape == weights[each].shape
               for kind in ("m", "v") for each in weights)
    assert (moments["v"][name] > 0).all() and not np.array_equal(weights[name], averaged[name])
    earlier = linnet_run.weights(linnet_run.checkpoint(folder / "run", step=2))
    assert not np.array_equal(earlier[name], averaged[name])

    metrics = linnet_run.metrics(folder / "run")
    train = metrics[metrics.kind == "train"]
    assert list(train.step) == [1, 2, 3, 4] and train.loss.between(0, 20).all()
    assert list(metrics[metrics.kind == "evaluation"].step)[-1] == 4

    for suffix in ("h5", "safetensors"):
        score = json.loads(run("evaluate", "run", "--stride", "5", "--json",
                               "--per-token", f"tokens.{suffix}"))["scores"][0]
        tokens = linnet_run.per_token(folder / f"tokens.{suffix}")
        assert len(tokens) == score["scored_tokens"]
        assert abs(tokens.nll.mean() - score["nll"]) < 1e-9 * score["nll"]
        text = (folder / "valid.txt").read_bytes()
        known = tokens[tokens.position < len(text)]
        assert list(known.id) == list(text[1:]) and (tokens.document == 0).all()

        run("model", "run", "run", "--ids", "97,32,115", "--out", f"out.{suffix}",
            "--attention", "1:0")
        out = linnet_run.tensors(folder / f"out.{suffix}")
        assert list(out["ids"]) == [97, 32, 115]
        vocabulary = len(averaged["embedding.weight"])
        assert out["logits"].shape == (3, vocabulary)
        # The tied table maps what the head reads to the logits.
        logits = out["final"] @ averaged["embedding.weight"].T
        assert np.allclose(out["logits"], logits, atol=1e-4)
        assert out["layers.1.attention"].shape == (1, 3, 3)
        assert np.allclose(out["layers.1.attention"].sum(-1), 1, atol=1e-5)
    with h5py.File(folder / "out.h5") as file:
        assert file.attrs["step"] in ("4", b"4")
    print("1 passed, 0 failed")


with tempfile.TemporaryDirectory() as made:
    main(Path(made))
