"""One run that trains for minutes: its resident memory must not grow."""

import json
import os

from program import Failure, judge
from runs import train_command, write_inputs

TENTH = 0.1  # of the time: memory may grow in the first, is measured in the second and in the last
MOST_GROWTH = 0.01
CHANGES = (
    "train={max_steps: null, tokens_per_update: 512, micro_batch: 3, log_every_steps: 10}",
    "data.context=64",
    "model.width=32",
    "optim.lr=1e-4",
    "evaluate={every_steps: 200, batch: 4}",
    "checkpoint={every_steps: 500, keep: 2}",
)


def at_rest(rows, begin, end):
    """The least resident memory (bytes) in a part of the run: what it comes back to after saving and scoring."""
    seconds = rows[-1]["wall_seconds"]
    part = [row["resident_bytes"] for row in rows if begin <= row["wall_seconds"] / seconds <= end]
    return min(part, default=0)


def soak(program, folder, minutes):
    """Trains for so long; returns resident memory (bytes) after the warm-up and at the end."""
    write_inputs(folder, "lavo", 1)
    command = [argument for argument in train_command() if not argument.startswith("train.max_steps=")]
    changes = [*CHANGES, f"train.max_minutes={minutes}"]
    outcome = judge(program.run([*command, *changes], folder, limit=minutes * 90 + 60), [0])
    with open(os.path.join(folder, "run", "metrics.jsonl"), encoding="utf-8") as file:
        rows = [row for row in map(json.loads, file) if row["kind"] == "train"]
    seconds = rows[-1]["wall_seconds"]
    first, last = at_rest(rows, TENTH, 2 * TENTH), at_rest(rows, 1 - TENTH, 1)
    if not first or seconds < 0.5 * minutes * 60:
        raise Failure(f"{len(rows)} rows of {seconds:.0f} s say nothing of {minutes} minutes", outcome)
    print(
        f"soak: {rows[-1]['step']} updates in {seconds:.0f} s; resident memory {first / 2**20:.2f} MiB in "
        f"the second tenth, {last / 2**20:.2f} MiB in the last; its peak was "
        f"{rows[-1]['peak_resident_bytes'] / 2**20:.2f} MiB",
        flush=True,
    )
    if not last < first * (1 + MOST_GROWTH):
        raise Failure(f"resident memory grew by {100 * (last / first - 1):.1f} % after the warm-up", outcome)
    return first, last
