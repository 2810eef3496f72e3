"""The peers of tools/bench/gpu_bench: a process each, with limits of its own, and what they compile."""

import glob
import json
import os
import queue
import subprocess
import sys
import tarfile
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../gpu"))
from processes import kill, last_line, run, start  # noqa: E402

CACHES = os.path.join(tempfile.gettempdir(), f"linnet_peer_caches_{os.getuid()}")
ARCHIVE_BYTES = 15 << 20
# What Triton and Inductor chose by timing: to be chosen again where nothing else keeps the GPU busy.
CHOICES = ["*.autotune.json", "*.best_config"]
# Of a kernel that Triton compiled, what it does not need to run it.
NOT_NEEDED = (".ttir", ".ttgir", ".llir", ".ptx", ".source", ".sass")


class Failed(Exception):
    """Something that is written down instead of a figure."""


def run_json(command, seconds, env=None):
    try:
        out, errors, status = run(command, seconds, env=env)
    except OSError as error:
        raise Failed(f"{command[0]}: {error.strerror}") from error
    if status is None:
        raise Failed(f"ended after {seconds:.0f} s")
    if status != 0:
        raise Failed(f"exit code {status}: {last_line(errors)}")
    try:
        return json.loads(out)
    except ValueError as error:
        raise Failed(f"printed no JSON: {out[:100]!r}") from error


class Peer:
    """The process of one peer for one case (peers/attention.py), which answers a line with a JSON object."""

    def __init__(self, name, command, env):
        self.name, self.outcome, self.turns, self.about = name, {}, [], {}
        self.lines, self.errors = queue.Queue(), []
        try:
            self.process = start(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                text=True, errors="replace", env=env,
            )  # fmt: skip
        except OSError as error:
            self.process = None
            self.outcome = {"outcome": "failed", "message": f"{command[0]}: {error.strerror}"}
            return
        threading.Thread(target=self.read, args=[self.process], daemon=True).start()
        threading.Thread(target=self.errors.extend, args=[self.process.stderr], daemon=True).start()

    def read(self, process):
        for line in process.stdout:
            self.lines.put(line)
        process.wait()
        self.lines.put(None)

    def ready(self, seconds):
        """Whether it may be timed: it could be imported, and agrees with its definition. If not it is ended."""
        end = time.monotonic() + seconds
        if self.process and self.take(seconds)["outcome"] == "began":
            self.ask("prepare", end - time.monotonic())
        if self.outcome["outcome"] != "agrees":
            self.end()
        return self.process is not None

    def ask(self, what, seconds):
        """What it answers; the outcome is its last answer, or what became of it."""
        try:
            self.process.stdin.write(what + "\n")
            self.process.stdin.flush()
        except OSError:
            pass  # it has ended, which its output says too
        return self.take(seconds)

    def take(self, seconds):
        end, process = time.monotonic() + seconds, self.process
        while True:
            try:
                line = self.lines.get(timeout=max(end - time.monotonic(), 0.01))
            except queue.Empty:
                self.end()
                return self.became("timed out", f"ended after {seconds:.0f} s")
            if line is None:
                status = process.returncode
                self.end()
                return self.became("crashed", f"exit code {status}: {last_line(''.join(self.errors))}")
            try:
                said = json.loads(line)
                outcome = said["outcome"]
            except (ValueError, TypeError, KeyError):
                continue  # what a library prints
            self.about.update(said.pop("about", {}))
            if outcome == "measured":
                self.turns.append(said)
            self.outcome = said
            return said

    def became(self, outcome, message):
        self.outcome = {"outcome": outcome, "message": message}
        return self.outcome

    def end(self):
        if self.process is not None:
            kill(self.process)
            self.process = None


def environment(args):
    """Of every peer: caches, and the packages in args.wheels, installed where this machine lacks them."""
    env = dict(os.environ, TRITON_CACHE_DIR=CACHES + "/triton", TORCHINDUCTOR_CACHE_DIR=CACHES + "/inductor")
    env.update(OMP_NUM_THREADS="4", TORCHINDUCTOR_COMPILE_THREADS="4")
    wheels = sorted(glob.glob(os.path.join(args.wheels, "*.whl"))) if args.wheels else []
    if wheels:
        site = os.path.join(args.scratch, "site")
        install = [args.python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile"]
        try:
            _, errors, status = run([*install, "--target", site, *wheels], 120)
            if status != 0:
                args.about += (
                    f"\npip could not install {', '.join(map(os.path.basename, wheels))}: {last_line(errors)}"
                )
        except OSError:
            pass  # args.python is not there, as why_no_torch says
        env["PYTHONPATH"] = site + os.pathsep + env.get("PYTHONPATH", "")
    return env


def why_no_torch(args):
    """None where it can be imported."""
    try:
        _, errors, status = run([args.python, "-c", "import torch"], 120, env=args.env)
    except OSError as error:
        return f"{args.python}: {error.strerror}"
    return None if status == 0 else "it took too long" if status is None else last_line(errors)


def unpack_caches(archive):
    if os.path.exists(archive) and not os.path.exists(CACHES):
        with tarfile.open(archive) as tar:
            tar.extractall(CACHES, filter="data")


def forget_choices():
    for pattern in CHOICES:
        for path in glob.glob(f"{CACHES}/**/{pattern}", recursive=True):
            os.remove(path)


def pack_caches(archive):
    """Smallest files first, as many as stay under 16 MiB; returns how many there are and were packed."""
    files = [os.path.join(folder, name) for folder, _, names in os.walk(CACHES) for name in names]
    files = sorted((path for path in files if not path.endswith(NOT_NEEDED)), key=os.path.getsize)
    packed = 0
    with open(archive, "wb") as out, tarfile.open(fileobj=out, mode="w:gz") as tar:
        for path in files:
            if out.tell() + os.path.getsize(path) > ARCHIVE_BYTES:
                break
            tar.add(path, os.path.relpath(path, CACHES))
            packed += 1
    return len(files), packed
