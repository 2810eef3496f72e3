"""Tiny recipes, their undisturbed runs, and the comparison of any other run with these."""

import json
import os
import random
import shutil

from program import Failure, judge

STEPS = 24
WORDS = "the old ship sails over a sea of words and sand now".split()
TIMING = {
    "tokens_per_s",
    "seconds",
    "wall_seconds",
    "scoring_seconds",
    "peak_tensor_bytes",
    "peak_resident_bytes",
    "resident_bytes",
}
# Files of a checkpoint that are the same in every run of a recipe; a classifier has no tokenizer,
# and averaged weights are where the recipe asks for them.
COMPARED = ("weights.h5", "optimizer.h5", "average.h5", "tokenizer.bin")

TEXT = """name: tiny
seed: {seed}
data: {{kind: text, path: text, context: 16, validation_fraction: 0.25, test_fraction: 0.25{data}}}
model: {{kind: decoder, layers: 2, width: 8, heads: 2{model}}}
optim: {{lr: 0.01{optim}}}
train: {{max_steps: {steps}, tokens_per_update: 64, micro_batch: {micro_batch}, log_every_steps: 1}}
evaluate: {{every_steps: 8, batch: 4}}
checkpoint: {{every_steps: 4, keep: 3}}
generate: {{prompt: "the old", tokens: 4}}
"""
# Training moves the running statistics of its norm, which a checkpoint keeps beside the weights.
LISTOPS = """name: tiny
seed: {seed}
data:
  kind: listops
  listops: {{min_length: 3, max_length: 12, max_depth: 3, max_arguments: 3, train_examples: 40,
            validation_examples: 20, test_examples: 10}}
  context: 16
model: {{kind: encoder, layers: 1, width: 8, heads: 2, dropout: 0.1,
        attention: {{name: transnormer_norm, norm: batch}}}}
optim: {{lr: 0.01}}
train: {{max_steps: {steps}, examples_per_update: 12, micro_batch: 5, log_every_steps: 1}}
evaluate: {{every_steps: 8, batch: 8}}
checkpoint: {{every_steps: 4, keep: 2, best: accuracy}}
"""
VARIANTS = {
    "linear": {"model": ", attention: {name: linear}", "optim": ", clip_norm: 1"},
    "softmax": {
        "model": ", dropout: 0.1, attention: {name: softmax}",
        "optim": ", kind: nag, weight_decay: 0.01, schedule: {kind: cosine, warmup_steps: 5, steps: 24}",
        "micro_batch": 1,
    },
    "lavo": {
        "model": ", positions: rotary, attention: {name: lavo, rank: 4, window: 4, basis_train: qr}",
        "optim": ", ema: {decay: 0.9}",
        "micro_batch": 3,
    },
    "words": {
        "data": ", cross_documents: true, tokenizer: {kind: word}",
        "model": ", layer_dropout: 0.2, attention: {name: local, window: 4}",
    },
    "listops": None,
}


def some_text(random_source, count):
    """Sentences of `count` words."""
    words = [random_source.choice(WORDS) for _ in range(count)]
    return "".join(word + (".\n" if i % 9 == 8 else " ") for i, word in enumerate(words))


def recipe_text(variant, seed, steps=STEPS):
    if VARIANTS[variant] is None:
        return LISTOPS.format(seed=seed, steps=steps)
    parts = {"data": "", "model": "", "optim": "", "micro_batch": 4, **VARIANTS[variant]}
    return TEXT.format(seed=seed, steps=steps, **parts)


def write_inputs(folder, variant, seed):
    """The recipe and, where it reads any, its data."""
    os.makedirs(os.path.join(folder, "text"))
    source = random.Random(f"text {seed}")
    for name in "abcdef":
        with open(os.path.join(folder, "text", name + ".txt"), "w", encoding="utf-8") as file:
            file.write(some_text(source, 60))
    with open(os.path.join(folder, "tiny.yaml"), "w", encoding="utf-8") as file:
        file.write(recipe_text(variant, seed))


def train_command(run="run", steps=STEPS):
    command = ["train", "tiny.yaml", "--out", run, "--threads", "1", f"train.max_steps={steps}"]
    # A run that goes on later has no evaluation where it stopped.
    return command if steps == STEPS else [*command, "evaluate.at_end=false"]


def contents(path):
    with open(path, "rb") as file:
        return file.read()


def checkpoint_steps(run):
    """Step -> folder of everything that has a checkpoint's name."""
    folder = os.path.join(run, "checkpoints")
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return {int(n[5:]): os.path.join(folder, n) for n in names if n.startswith("step-")}


def metrics_rows(run):
    """Without the figures that depend on time."""
    with open(os.path.join(run, "metrics.jsonl"), encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [{key: value for key, value in row.items() if key not in TIMING} for row in rows]


class Reference:
    """An undisturbed run that keeps the checkpoint of every step."""

    def __init__(self, program, folder, variant, seed):
        self.program, self.folder, self.variant, self.seed = program, folder, variant, seed
        self.scores = {}
        write_inputs(folder, variant, seed)
        keep = ["checkpoint.every_steps=1", "checkpoint.keep=1000"]
        outcome = judge(program.run([*train_command(), *keep], folder), [0])
        # Of a run that saves as often as the disturbed ones.
        plain = judge(program.run(train_command("plain"), folder), [0])
        self.seconds = plain.seconds
        self.run = os.path.join(folder, "run")
        # Who is stopped before the first update saves the initial weights.
        judge(program.run(train_command("initial", 0), folder), [0])
        self.checkpoints = {
            step: {
                name: contents(os.path.join(path, name))
                for name in COMPARED
                if os.path.exists(os.path.join(path, name))
            }
            for run in ("run", "initial")
            for step, path in checkpoint_steps(os.path.join(folder, run)).items()
        }
        if sorted(self.checkpoints) != list(range(STEPS + 1)):
            raise Failure("the undisturbed run does not have a checkpoint for every step", outcome)
        self.rows = metrics_rows(self.run)

    def nll(self, step):
        if step not in self.scores:
            run = self.run if step > 0 else os.path.join(self.folder, "initial")
            path = checkpoint_steps(run)[step]
            outcome = judge(self.program.run(["evaluate", path, "--json"], self.folder), [0])
            self.scores[step] = json.loads(outcome.out)["scores"][0]["nll"]
        return self.scores[step]

    def copy_inputs(self, folder):
        """Not the cache: each step has its own."""
        shutil.copytree(os.path.join(self.folder, "text"), os.path.join(folder, "text"))
        shutil.copy(os.path.join(self.folder, "tiny.yaml"), folder)

    def check_checkpoint(self, path, step, outcome):
        for name, wanted in self.checkpoints[step].items():
            file = os.path.join(path, name)
            if not os.path.exists(file):
                raise Failure(f"{os.path.relpath(file, outcome.folder)} is missing", outcome)
            if contents(file) != wanted:
                raise Failure(
                    f"{os.path.relpath(file, outcome.folder)} differs from the undisturbed run's", outcome
                )

    def check_all_checkpoints(self, run, outcome):
        """Everything that has a checkpoint's name is whole, even after a kill."""
        for step, path in checkpoint_steps(run).items():
            self.check_checkpoint(path, step, outcome)
            for name in ("manifest.json", "manifest.xxh3", "recipe.yaml"):
                if not os.path.exists(os.path.join(path, name)):
                    raise Failure(f"the checkpoint of step {step} lacks {name}", outcome)

    def check_end(self, run, outcome, *, rows=True):
        """The run is as the undisturbed one: weights, optimizer, tokenizer and rows of metrics."""
        steps = checkpoint_steps(run)
        if not steps or max(steps) != STEPS:
            raise Failure(f"the run ends without the checkpoint of step {STEPS}", outcome)
        self.check_checkpoint(steps[STEPS], STEPS, outcome)
        if not rows:
            return
        found = metrics_rows(run)
        if found != self.rows:
            at = next((i for i, (a, b) in enumerate(zip(found, self.rows)) if a != b), len(self.rows))
            raise Failure(
                f"metrics.jsonl has {len(found)} rows, the undisturbed run's {len(self.rows)}; the first "
                f"that differs is row {at + 1}",
                outcome,
            )

    def continue_and_check(self, folder, *, rows=True, whole=True):
        """Trains on without a disturbance; `whole`: no checkpoint was damaged."""
        outcome = judge(self.program.run(train_command(), folder), [0])
        run = os.path.join(folder, "run")
        if whole:
            self.check_all_checkpoints(run, outcome)
        self.check_end(run, outcome, rows=rows)
        return outcome
