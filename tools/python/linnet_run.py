#!/usr/bin/env python3
"""Reads what linnet writes: runs, checkpoints, `evaluate --per-token`, `model run`.
Needs NumPy, h5py and pandas. The layout of the files: recipes/engine/README.md.

    import linnet_run as lr
    weights = lr.weights("runs/lm")               # name -> array, averaged where the run averages
    moments = lr.moments("runs/lm")["m"]          # name -> array
    lr.metrics("runs/lm").query("kind == 'train'").plot("step", "loss")
    lr.per_token("tokens.h5").groupby("document").nll.mean()
    lr.tensors("out.h5")["layers.0.attention"]    # of `linnet model run`"""
import json
import sys
from pathlib import Path
import h5py
import numpy as np
import pandas as pd


def checkpoint(run, step=None):
    """The folder of a run's checkpoint, the newest without `step`; or `run` itself."""
    if (Path(run) / "manifest.json").exists():
        return Path(run)
    found = sorted(Path(run, "checkpoints").glob("step-*" if step is None else f"step-{step:08d}"))
    if not found:
        raise FileNotFoundError(f"no such checkpoint in {run}")
    return found[-1]


def tensors(path):
    """name -> array of an HDF5 file ("group/name" inside groups) or of safetensors."""
    if str(path).endswith(".safetensors"):
        raw = np.memmap(path, dtype=np.uint8, mode="r")
        begin = 8 + int(raw[:8].view("<u8")[0])
        header = json.loads(bytes(raw[8:begin]))
        kinds = {"F64": "f8", "F32": "f4", "I64": "i8", "I32": "i4", "U8": "u1"}
        return {name: raw[begin:][slice(*each["data_offsets"])].view(kinds[each["dtype"]])
                .reshape(each["shape"])
                for name, each in header.items() if name != "__metadata__"}
    names = []
    with h5py.File(path) as file:
        file.visit(names.append)
        return {name: file[name][()] for name in names if isinstance(file[name], h5py.Dataset)}


def moments(run, step=None, file="optimizer.h5"):
    """"m" -> name of a parameter -> array (and "v", "momentum"), "updates" -> their number."""
    state = {}
    for name, array in tensors(checkpoint(run, step) / file).items():
        kind, named, parameter = name.partition("/")
        if named:
            state.setdefault(kind, {})[parameter] = array
        else:  # a counter, or a flat moment of an earlier version
            state[kind] = array
    return state


def weights(run, step=None, averaged=True):
    """Name -> array of parameters and buffers: averaged ones, which evaluations use, if there."""
    folder = checkpoint(run, step)
    found = tensors(folder / "weights.h5")
    if averaged and (folder / "average.h5").exists():
        found.update(moments(folder, file="average.h5")["average"])
    return found


def metrics(run):
    """The lines of metrics.jsonl as a DataFrame: `kind` is "train" or "evaluation"."""
    text = Path(run, "metrics.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.split("\n")[:-1] if line]  # a cut line has no end
    return pd.DataFrame(lines).replace({"nan": np.nan, "inf": np.inf, "-inf": -np.inf})


def per_token(path):
    """A row for each scored token: id, nll in nats, document, position in it."""
    return pd.DataFrame(tensors(path))[["id", "nll", "document", "position"]]


if __name__ == "__main__":
    print("\n".join(f"{name} {array.shape}" for name, array in weights(sys.argv[1]).items()))
    print(metrics(sys.argv[1]).tail())
