"""Attacks on a run: kills, failing file calls, damage, races, signals. Each is continued afterwards and
compared bit for bit with the undisturbed run."""

import json
import os
import random
import re
import shutil
import signal

from mutations import mutate_bytes
from program import Failure, judge
from runs import COMPARED, STEPS, checkpoint_steps, contents, train_command

HALF = STEPS // 2
SAVED = 4
STOPPED = 3
# Seconds from a signal to the end of the program, which promises 1 on a machine of its own.
STOP_LIMIT = 5


def newest(run):
    return max(checkpoint_steps(run), default=0)


def calls_of(log):
    """The calls that faults.cpp noted: (operation, path) each."""
    if not os.path.exists(log):
        return []
    with open(log, encoding="utf-8", errors="replace") as file:
        lines = [line.rstrip("\n").split(" ", 2) for line in file]
    return [(line[1], line[2]) for line in lines if len(line) == 3]


def saved_step(calls):
    """The newest step that was surely saved: its rename was followed by another call."""
    steps = [re.search(r"/checkpoints/step-(\d+)$", p) for o, p in calls[:-1] if o == "rename"]
    return max((int(found.group(1)) for found in steps if found), default=0)


def check_nothing_lost(step, before, log, outcome):
    run = os.path.join(step.folder, "run")
    step.reference.check_all_checkpoints(run, outcome)
    saved = max(before, saved_step(calls_of(log)))
    if newest(run) < saved:
        raise Failure(f"the checkpoint of step {saved} was saved and is lost", outcome)


def check_tidy(step, outcome):
    left = os.listdir(os.path.join(step.folder, "run", "checkpoints"))
    left = [name for name in left if name.startswith(("tmp-", "replaced-"))]
    if left:
        raise Failure(f"checkpoints/{left[0]} is left behind", outcome)


def kill(step):
    """One to four kills of one run, two thirds of them at a file call below checkpoints/: so that at least a
    third are in a save, as some of these calls read and some numbers are beyond the last call."""
    run = os.path.join(step.folder, "run")
    step.copy_inputs()
    for _ in range(step.random.choice([1, 1, 2, 4])):
        before = newest(run)
        log = step.path("calls")
        if os.path.exists(log):
            os.remove(log)
        if step.random.random() < 2 / 3:
            # Calls below checkpoints/ are those of saves, and of the reading when a run goes on.
            at = step.random.randrange(1, 200)
            action = step.random.choice(["9", "9", "torn"])
            below = os.path.join(run, "checkpoints")
            plan = {"FOLDER": below, "LOG": log, "AT": at, "ACTION": action}
            outcome = step.program.run(train_command(), step.folder, fault=plan)
        else:
            pause = step.random.random() * step.reference.seconds
            outcome = step.program.run(
                train_command(), step.folder, signals=[(pause, signal.SIGKILL)], fault={"LOG": log}
            )
        judge(outcome, [0], sent=[signal.SIGKILL])
        step.count("kills" if outcome.signal else "kills that came too late")
        if outcome.signal and any("/checkpoints/tmp-" in path for _, path in calls_of(log)[-1:]):
            step.count("kills in a save")
        check_nothing_lost(step, before, log, outcome)
    check_tidy(step, step.reference.continue_and_check(step.folder))


def fail(step, plan, arguments):
    """A run in which one file call fails; then it goes on without."""
    run = os.path.join(step.folder, "run")
    before = newest(run)
    log = step.path("calls")
    outcome = step.program.run(arguments, step.folder, fault={"LOG": log, **plan})
    judge(outcome, [0, 1, 2])
    calls = calls_of(log)
    if len(calls) > plan["AT"]:
        step.count(f"failed calls, {plan['ACTION']}")
    check_nothing_lost(step, before, log, outcome)
    if outcome.code == 0 and f"train.max_steps={STEPS}" in arguments:
        step.reference.check_end(run, outcome)
    step.reference.continue_and_check(step.folder)


def fault(step):
    """The n-th file call of a whole run fails, alone or with all that follow."""
    step.copy_inputs()
    plan = {"AT": step.random.randrange(500), "ACTION": step.random.choice(["ENOSPC", "EIO", "short"])}
    if step.random.random() < 0.3:
        plan["PERSISTENT"] = 1
    fail(step, plan, train_command())


def sweep_items(step):
    """All (phase, n, action): the calls of one save, and of one resume up to its first update."""
    logs = []
    for name, steps in (("save", SAVED), ("resume", STEPS)):
        log = os.path.join(step.shared("sweep"), name)
        if not os.path.exists(log):
            folder = step.shared("sweep")
            if name == "save":
                os.makedirs(folder)
                step.reference.copy_inputs(folder)
            judge(step.program.run(train_command(steps=steps), folder, fault={"LOG": log}), [0])
        logs.append(calls_of(log))
    save, resume = logs
    first = next(i for i, (_, path) in enumerate(save) if "/checkpoints" in path)
    last = next(i for i, (o, p) in enumerate(resume) if o == "write" and p.endswith("/metrics.jsonl"))
    items = []
    for phase, numbers, calls in (("save", range(first, len(save)), save), ("resume", range(last), resume)):
        for n in numbers:
            operation = calls[n][0]
            items.append((phase, n, "EIO"))
            if operation not in ("read", "open"):
                items.append((phase, n, "ENOSPC"))
            if operation in ("read", "write"):
                items.append((phase, n, "short"))
    random.Random(f"sweep {step.seed}").shuffle(items)
    return items


def sweep(step):
    """All n of one save and one resume, in random order; then again with all later calls failing."""
    with step.campaign.lock:
        items = sweep_items(step)
    turn, at = divmod(step.ordinal, len(items))
    phase, n, action = items[at]
    step.count(f"sweep of {len(items)} failing calls, turn {turn + 1}")
    step.copy_inputs()
    if phase == "resume":
        judge(step.program.run(train_command(steps=SAVED), step.folder), [0])
    plan = {"AT": n, "ACTION": action}
    if turn % 2 == 1:
        plan["PERSISTENT"] = 1
    fail(step, plan, train_command(steps=SAVED if phase == "save" else STEPS))


def files_below(folder):
    return sorted(os.path.join(at, name) for at, _, names in os.walk(folder) for name in names)


def plain_name(path):
    """Without the parts of a name that every run has another one for."""
    name = os.path.basename(path)
    for folder in ("checkpoints", "tensorboard", "cache", "text"):
        if f"/{folder}/" in path:
            return f"{folder}/{name}" if folder == "checkpoints" else f"{folder}/*"
    return name


def evaluate(step, path="run", codes=(0, 1, 2), scores=True):
    """Scores a checkpoint; a score must be that of the undisturbed run at its step."""
    outcome = judge(step.program.run(["evaluate", path, "--json"], step.folder), codes)
    if outcome.code == 0 and scores:
        found = json.loads(outcome.out)
        if found["scores"][0]["nll"] != step.reference.nll(found["step"]):
            raise Failure("evaluate accepts a checkpoint with other weights", outcome)
    return outcome


def damage(step):
    """Any file of a run, of its cache, its data or its recipe is changed, cut, emptied or removed."""
    step.train_half()
    run = step.path("run")
    candidates = files_below(run) * 3 + files_below(step.path("cache")) * 4 + files_below(step.path("text"))
    candidates.append(step.path("tiny.yaml"))
    chosen = sorted({step.random.choice(candidates) for _ in range(step.random.choice([1, 1, 1, 3]))})
    checkpoints = checkpoint_steps(run)
    if step.random.random() < 0.1:
        name = step.random.choice(["weights.h5", "optimizer.h5", "manifest.json", "recipe.yaml"])
        chosen = sorted(os.path.join(path, name) for path in checkpoints.values())
        step.count("all checkpoints damaged")
    originals = {path: contents(path) for path in chosen}
    for path, data in originals.items():
        if step.random.random() < 0.1:
            os.remove(path)
            what = "removed"
        else:
            changed, what = mutate_bytes(step.random, data)
            with open(path, "wb") as file:
                file.write(changed)
        step.note(f"{os.path.relpath(path, step.folder)}: {what}")
        step.count("damaged: " + plain_name(path))
    inside = [os.path.relpath(path, run).split(os.sep) for path in chosen]
    hashed = sorted({parts[1] for parts in inside if parts[0] == "checkpoints" and len(parts) == 3})
    for name in hashed:
        evaluate(step, os.path.join("run", "checkpoints", name), codes=(1, 2))
    elsewhere = any(not path.startswith(run + os.sep) for path in chosen)
    evaluate(step, scores=not elsewhere)
    readers = [["report", "run", "--html", "page.html"], ["generate", "run", "--prompt", "the"]]
    reader = step.random.choice(readers)
    judge(step.program.run(reader, step.folder), [0, 1, 2])
    outcome = judge(step.program.run(train_command(), step.folder), [0, 1, 2])
    if outcome.code == 0 and len(hashed) == len(checkpoints):
        raise Failure("it trains on although every checkpoint is damaged", outcome)
    if outcome.code == 0:
        rows = not any(path.endswith(("metrics.jsonl", "tiny.yaml")) for path in chosen)
        step.reference.check_end(run, outcome, rows=rows)
        return
    needless = {"log.txt", "report.html", "sample.txt", "tensorboard"}
    if all(parts[0] in needless for parts in inside):
        raise Failure("files that a run only writes keep it from going on", outcome)
    step.count("refused, then repaired")
    for path, data in originals.items():
        with open(path, "wb") as file:
            file.write(data)
    step.reference.continue_and_check(step.folder, rows=not any("metrics.jsonl" in p for p in chosen))


def sealed(step):
    """Files of a checkpoint are changed and its hashes with them, as a stranger could."""
    step.train_half()
    checkpoint = checkpoint_steps(step.path("run"))[HALF]
    kept = step.path("kept")
    shutil.copytree(checkpoint, kept)
    for _ in range(4):
        name = step.random.choice([name for name in COMPARED if os.path.exists(os.path.join(kept, name))])
        changed, what = mutate_bytes(step.random, contents(os.path.join(kept, name)))
        with open(os.path.join(checkpoint, name), "wb") as file:
            file.write(changed)
        step.note(f"{name}: {what}, with hashes that fit")
        step.seal(checkpoint)
        step.count("sealed checkpoints")
        relative = os.path.relpath(checkpoint, step.folder)
        for reader in (["evaluate", relative], ["generate", relative, "--prompt", "the"]):
            outcome = step.program.run(reader, step.folder, limit=30)
            judge(outcome, [0, 1, 2], processor_seconds=5)
        dry = [*train_command(), "--dry-run"]
        judge(step.program.run(dry, step.folder, limit=30), [0, 1, 2], processor_seconds=5)
        shutil.rmtree(checkpoint)
        shutil.copytree(kept, checkpoint)
    step.reference.continue_and_check(step.folder)


def race(step):
    """Two trainers and readers on one run directory; one trainer may be killed."""
    if step.random.random() < 0.5:
        step.train_half()
    else:
        step.copy_inputs()
    spread = step.reference.seconds
    calls = []
    for _ in range(2):
        kills = [(step.random.random() * spread, signal.SIGKILL)] if step.random.random() < 0.3 else []
        calls.append((train_command(), step.random.random() * 0.3 * spread, kills))
    readers = [["evaluate", "run", "--json"], ["generate", "run", "--prompt", "the"], ["report", "run"]]
    calls.append((step.random.choice(readers), step.random.random() * spread, []))
    outcomes = step.program.together(calls, step.folder)
    step.count("races")
    for outcome, (_, _, kills) in zip(outcomes[:2], calls):
        judge(outcome, [0, 2], sent=[signal.SIGKILL] if kills else [])
    if all(outcome.code == 2 for outcome in outcomes[:2]):
        raise Failure("no trainer trains", outcomes[0])
    judge(outcomes[2], [0, 1, 2])
    if calls[2][0][0] == "evaluate" and outcomes[2].code == 0:
        found = json.loads(outcomes[2].out)
        if found["scores"][0]["nll"] != step.reference.nll(found["step"]):
            raise Failure("evaluate beside a trainer has another score", outcomes[2])
    for outcome in outcomes[:2]:
        step.reference.check_all_checkpoints(step.path("run"), outcome)
    step.reference.continue_and_check(step.folder)


def signals(step):
    """SIGTERM, SIGINT, SIGUSR1 at random times or at a file call; sometimes a second one."""
    run = step.path("run")
    step.copy_inputs()
    for _ in range(step.random.choice([1, 2, 3])):
        before = newest(run)
        log = step.path("calls")
        if os.path.exists(log):
            os.remove(log)
        number = step.random.choice([signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
        codes, sent = [0, STOPPED], []
        if step.random.random() < 0.3:
            plan = {"LOG": log, "AT": step.random.randrange(400), "ACTION": int(number)}
            outcome = step.program.run(train_command(), step.folder, fault=plan)
            step.count("signals at a file call")
        else:
            times = [(step.random.random() * step.reference.seconds * 1.1, number)]
            if step.random.random() < 0.2:
                times.append((step.random.random() * 0.3, number))
                codes.append(128 + number)
            outcome = step.program.run(train_command(), step.folder, signals=times, fault={"LOG": log})
            step.count("signals at a random time")
        if not calls_of(log):
            sent.append(number)  # before the program could do anything
        judge(outcome, codes, sent=sent)
        if outcome.after_signal is not None and outcome.after_signal > STOP_LIMIT:
            raise Failure(f"it goes on for {outcome.after_signal:.1f} s after the signal", outcome)
        check_nothing_lost(step, before, log, outcome)
        stopped = re.search(r"stopped by signal \d+ at step (\d+)", outcome.err)
        if stopped is not None and newest(run) != int(stopped.group(1)):
            raise Failure("it says that it stopped after saving, but the checkpoint is not there", outcome)
    step.reference.continue_and_check(step.folder)
