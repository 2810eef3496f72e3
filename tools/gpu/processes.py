"""Processes with a time limit, ended together with those that they started."""

import os
import signal
import subprocess
import sys


def start(command, **options):
    """subprocess.Popen in a process group of its own."""
    if sys.version_info >= (3, 11):
        return subprocess.Popen(command, process_group=0, **options)
    return subprocess.Popen(command, preexec_fn=os.setpgrp, **options)


def kill(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def run(command, seconds, **options):
    """What it printed, and its exit status: None if it was ended after `seconds`. Raises OSError."""
    process = start(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        errors="replace", **options
    )  # fmt: skip
    try:
        out, errors = process.communicate(timeout=max(seconds, 0.1))
        return out, errors, process.returncode
    except subprocess.TimeoutExpired:
        kill(process)
        out, errors = process.communicate()
        return out, errors, None
    finally:
        kill(process)


def last_line(text):
    return (text.strip().splitlines() or ["no message"])[-1][:300]
