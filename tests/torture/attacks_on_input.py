"""Attacks on what comes from elsewhere: recipes, command lines, cases, tokenizers, data."""

import json
import os
import shutil
import signal

from mutations import mutate_bytes, mutate_recipe, odd_override
from program import Failure, judge
from runs import VARIANTS, contents, recipe_text, some_text, train_command, write_inputs

# Of reading a damaged file of some kilobytes.
READING = {"processor_seconds": 2, "mib": 512}
# The check makes the examples of ListOps that a recipe asks for; by default half a gigabyte.
CHECKING = {"processor_seconds": 20, "mib": 1024}


def write(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)


def train_briefly(step, arguments, name):
    """What a check accepted may be a large model: after 10 s it is asked to stop."""
    asked = [(10, signal.SIGTERM)]
    command = [*arguments, "--out", name, "--threads", "1"]
    outcome = step.program.run(command, step.folder, limit=30, signals=asked)
    judge(outcome, [0, 1, 2, 3], mib=1 << 20)
    shutil.rmtree(step.path(name), ignore_errors=True)
    return outcome


def recipe(step):
    """Recipes and overrides with random edits: checked and, where they pass, trained."""
    write_inputs(step.folder, "linear", 1)
    for i in range(6):
        variant = step.random.choice(list(VARIANTS))
        text = recipe_text(variant, step.random.randrange(10), steps=2)
        shipped = step.random.random() < 0.3
        if shipped:
            text = contents(step.random.choice(step.recipes())).decode()
        arguments = [f"odd{i}.yaml"]
        if step.random.random() < 0.3:
            arguments.append(odd_override(step.random, step.keys()))
        else:
            text = mutate_recipe(step.random, text)
        write(step.path(arguments[0]), text.encode("utf-8", "surrogateescape"))
        step.note(f"{arguments[0]}: {'shipped' if shipped else variant} {arguments[1:]}")
        step.count("recipes")
        if any("\0" in argument for argument in arguments):
            continue
        checked = step.program.run(["recipe", "check", *arguments], step.folder, limit=60)
        judge(checked, [0, 1, 2], **CHECKING)  # 1: data that are not there
        if checked.code == 0 and not shipped:
            step.count("recipes that pass the check")
            trained = train_briefly(step, ["train", *arguments], f"run{i}")
            # The check leaves out how much memory the machine has.
            if trained.code == 2 and " free; " not in trained.err:
                raise Failure("train refuses what the check accepts", trained)
            if trained.code == 2:
                step.count("recipes that pass the check and need more memory than is free")


def case(step):
    """`attention run` on cases with random edits."""
    originals = step.cases()
    for i in range(12):
        original = step.random.choice(originals)
        changed, what = mutate_bytes(step.random, contents(original))
        name = f"case{i}.h5"
        write(step.path(name), changed)
        step.note(f"{name}: {os.path.basename(original)}, {what}")
        step.count("cases")
        mode = step.random.choice(["parallel", "chunked", "recurrent"])
        arguments = ["attention", "run", name, "--out", "out.h5", "--mode", mode]
        judge(step.program.run(arguments, step.folder, limit=20, processor_limit=10), [0, 1, 2], **READING)


def spelling(byte):
    """GPT-2's character for a byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    if byte in printable:
        return chr(byte)
    return chr(256 + [b for b in range(256) if b not in printable].index(byte))


def bpe_files():
    pieces = [spelling(byte) for byte in range(256)]
    merges = [("t", "h"), ("th", "e"), (spelling(32), "s"), (spelling(32) + "s", "a"), ("s", "h")]
    ids = {piece: i for i, piece in enumerate([*pieces, *(a + b for a, b in merges), "<|endoftext|>"])}
    lines = ["#version: 0.2", *(f"{a} {b}" for a, b in merges)]
    return json.dumps(ids).encode(), ("\n".join(lines) + "\n").encode()


def odd_text(random):
    """Text that a book may hold and a parser may not expect."""
    text = some_text(random, 80).encode()
    return random.choice(
        [
            b"",
            b"\n",
            b"a",
            b"\xef\xbb\xbf" + text,
            text.replace(b"\n", b"\r\n"),
            text.replace(b" ", b"\0"),
            b"x" * 100_000,
            random.randbytes(3000),
            b"\n" * 1000,
            ("\u0301\U0001f600\u202e " * 200).encode(),
            text[:7] + b"\xed\xa0\x80\xf8" + text,
            mutate_bytes(random, text)[0],
        ]
    )


def data(step):
    """Tokenizer files, text, ListOps files and their preparation, with random edits."""
    write_inputs(step.folder, "linear", 1)
    kind = step.random.choice(["gpt2", "word", "text", "listops"])
    overrides = []
    chosen = []
    if kind == "gpt2":
        encoder, merges = bpe_files()
        write(step.path("bpe/encoder.json"), encoder)
        write(step.path("bpe/vocab.bpe"), merges)
        overrides = ["data.tokenizer={kind: gpt2, path: bpe}"]
        chosen = ["bpe/encoder.json", "bpe/vocab.bpe"]
    elif kind == "word":
        judge(step.program.run(train_command("words", 1) + ["data.tokenizer={kind: word}"], step.folder), [0])
        shutil.copy(step.path("words/vocabulary.txt"), step.path("vocabulary.txt"))
        overrides = ["data.tokenizer={kind: word, path: vocabulary.txt}"]
        chosen = ["vocabulary.txt"]
    elif kind == "listops":
        write(step.path("tiny.yaml"), recipe_text("listops", 1).encode())
        rows = [f"( ( [MAX {i} ) {9 - i} ) ]\t{max(i, 9 - i)}\n" for i in range(10)]
        for name in ("train", "val", "test"):
            write(step.path(f"lists/basic_{name}.tsv"), "".join(["Source\tTarget\n", *rows]).encode())
        overrides = ["data={kind: listops, path: lists, context: 16}"]
        chosen = [f"lists/basic_{name}.tsv" for name in ("train", "val")]
    command = [*train_command("plain", 2), *overrides]
    judge(step.program.run(command, step.folder), [0])
    for i in range(5):
        if kind == "text":
            for name in step.random.sample("abcdef", 3):
                write(step.path(f"text/{name}.txt"), odd_text(step.random))
            step.note("odd text files")
        else:
            path = step.path(step.random.choice(chosen))
            original = contents(path)
            changed, what = mutate_bytes(step.random, original)
            write(path, changed)
            step.note(f"{os.path.relpath(path, step.folder)}: {what}")
        step.count(f"data, {kind}")
        command = [*train_command(f"run{i}", 2), *overrides]
        outcome = judge(step.program.run(command, step.folder, limit=30), [0, 1, 2], processor_seconds=5)
        if outcome.code == 0:
            reader = ["evaluate", f"run{i}", "--json", "--baselines"]
            judge(step.program.run(reader, step.folder, limit=30), [0, 1, 2], processor_seconds=5)
        inspected = {"gpt2": "bpe", "word": "vocabulary.txt", "listops": "lists", "text": "text"}[kind]
        outcome = step.program.run(["data", "inspect", inspected], step.folder, limit=30)
        judge(outcome, [0, 1, 2], processor_seconds=5)
        if kind != "text":
            write(path, original)
    if kind != "text":
        # The same run as before the damage, from files that are whole again.
        again = [*train_command("again", 2), *overrides]
        outcome = judge(step.program.run(again, step.folder), [0])
        last = "checkpoints/step-00000002/weights.h5"
        if contents(step.path(f"again/{last}")) != contents(step.path(f"plain/{last}")):
            raise Failure("the same data train other weights after files beside them were damaged", outcome)
