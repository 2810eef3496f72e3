"""Runs the program within limits of time and memory, and judges how it ended."""

import concurrent.futures
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import threading
import time

# Words that no user should read: of the language, its libraries, a sanitizer, or a failure that the
# program did not foresee.
FOREIGN = re.compile(
    r"bad_alloc|length_error|terminate called|what\(\)|AddressSanitizer|runtime error:|LeakSanitizer"
    r"|does not foresee|std::|basic_string|HDF5-DIAG|YAML::|Assertion|Traceback|Segmentation"
)
MAX_LINE = 2000
ADDRESS_SPACE = 6 << 30


def short(text, length):
    return text if len(text) <= length else f"{text[:length]}... ({len(text)} characters)"


class Failure(Exception):
    """What the program did wrong, in one sentence, and the call that showed it."""

    def __init__(self, sentence, outcome=None):
        super().__init__(sentence)
        self.sentence = sentence
        self.outcome = outcome


class Outcome:
    def __init__(self, command, folder):
        self.command, self.folder = command, folder
        self.code = self.signal = None
        self.out = self.err = ""
        self.seconds = self.processor_seconds = self.mib = 0.0
        self.after_signal = None  # seconds from the first signal sent to the end
        self.timed_out = self.left_behind = False

    def errors(self):
        return [line for line in self.err.splitlines() if line.startswith("error: ")]

    def last_line(self):
        lines = [line for line in self.err.splitlines() if line.strip()]
        return lines[-1][:300] if lines else "(nothing on stderr)"

    def __str__(self):
        end = f"signal {self.signal}" if self.signal else f"exit code {self.code}"
        if self.timed_out:
            end = "no end within the time limit"
        said = f"{end}, {self.seconds:.2f} s, {self.mib:.0f} MiB: {self.last_line()}"
        return f"{short(self.command, 700)}\n    {said}"


class Program:
    """The built program and the files that belong to it."""

    def __init__(self, build, folder, program=None):
        """Copies what it needs into `folder`: a build meanwhile must not disturb the campaign."""
        for name in ("linnet", "liblinnet.so", "libtorture_faults.so", "torture_files"):
            shutil.copy(os.path.join(build, name), folder)
        self.folder = folder
        self.path = os.path.abspath(program) if program else os.path.join(folder, "linnet")
        self.faults = os.path.join(folder, "libtorture_faults.so")
        self.lock = threading.Lock()
        self.runs = 0
        self.slowest = (0.0, "")
        self.largest = (0.0, "")

    def run(self, arguments, folder, *, limit=60, fault=None, signals=(), processor_limit=None):
        """One call in `folder`. fault: variables for faults.cpp. signals: (seconds, signal) pairs, sent
        so long after the start or after the one before. After `limit` seconds it is killed."""
        environment = dict(os.environ, OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive")
        environment["LD_LIBRARY_PATH"] = self.folder
        environment.update(LINNET_CACHE=os.path.join(folder, "cache"), HOME=folder)
        shown = ""
        if fault is not None:
            variables = {"FOLDER": folder, **fault}
            named = {"LINNET_TORTURE_" + name: str(value) for name, value in variables.items()}
            named["LD_PRELOAD"] = self.faults
            environment.update(named)
            shown = " ".join(f"{name}={value}" for name, value in named.items()) + " "
        call = shlex.join(["linnet", *arguments])
        outcome = Outcome(f"cd {folder} && {shown}LINNET_CACHE=cache {call}", folder)
        with self.lock:
            self.runs += 1
            name = os.path.join(folder, f"output-{self.runs}")
        began = time.monotonic()
        with open(name + ".out", "wb") as out, open(name + ".err", "wb") as err:
            child = subprocess.Popen(
                [self.path, *arguments],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            self._confine(child.pid, processor_limit)
            timer = threading.Timer(limit, self._time_out, (child.pid, outcome))
            timer.start()
            gone = threading.Event()
            sender = threading.Thread(target=self._send, args=(child.pid, signals, outcome, gone))
            sender.start()
            _, status, used = os.wait4(child.pid, 0)
            ended = time.monotonic()
            child.returncode = os.waitstatus_to_exitcode(status)
            gone.set()
            timer.cancel()
            sender.join()
        outcome.seconds = ended - began
        if outcome.after_signal is not None:
            outcome.after_signal = max(0.0, ended - outcome.after_signal)
        outcome.processor_seconds = used.ru_utime + used.ru_stime
        outcome.mib = used.ru_maxrss / 1024
        outcome.code = child.returncode if child.returncode >= 0 else None
        outcome.signal = -child.returncode if child.returncode < 0 else None
        outcome.left_behind = self._end_group(child.pid)
        outcome.out, outcome.err = self._read(name + ".out"), self._read(name + ".err")
        with self.lock:
            self.slowest = max(self.slowest, (outcome.seconds, call))
            self.largest = max(self.largest, (outcome.mib, call))
        return outcome

    def make_files(self, *arguments):
        """Calls tests/torture/make_files.cpp."""
        environment = dict(os.environ, LD_LIBRARY_PATH=self.folder)
        subprocess.run([os.path.join(self.folder, "torture_files"), *arguments], env=environment, check=True)

    def together(self, calls, folder):
        """Several calls at once: (arguments, seconds before its start, signals) each."""

        def one(call):
            arguments, pause, signals = call
            time.sleep(pause)
            return self.run(arguments, folder, signals=signals)

        with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
            return list(pool.map(one, calls))

    @staticmethod
    def _confine(pid, processor_limit):
        try:
            resource.prlimit(pid, resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
            resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
            if processor_limit is not None:
                resource.prlimit(pid, resource.RLIMIT_CPU, (processor_limit, processor_limit))
        except ProcessLookupError:
            pass  # it has ended already

    @staticmethod
    def _time_out(pid, outcome):
        outcome.timed_out = True
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    @staticmethod
    def _send(pid, signals, outcome, gone):
        for pause, number in signals:
            if gone.wait(pause):
                return
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                return
            if outcome.after_signal is None:
                outcome.after_signal = time.monotonic()

    @staticmethod
    def _end_group(pid):
        """Whether a child of the program outlived it; that one is ended."""
        for _ in range(50):
            try:
                os.killpg(pid, 0)
            except ProcessLookupError:
                return False
            time.sleep(0.01)
        os.killpg(pid, signal.SIGKILL)
        return True

    @staticmethod
    def _read(path):
        with open(path, "rb") as file:
            text = file.read(1 << 20).decode("utf-8", "replace")
        os.remove(path)
        return text


def judge(outcome, codes, *, mib=512, processor_seconds=None, sent=()):
    """Raises Failure unless the call ended as documented: one of `codes`, a sentence for 1 and 2, within
    the limits. `sent`: signals that may have ended it."""
    if outcome.timed_out or outcome.signal == signal.SIGXCPU:
        raise Failure("it hangs", outcome)
    if outcome.left_behind:
        raise Failure("it leaves a process behind", outcome)
    if outcome.signal is not None and outcome.signal not in sent:
        name = signal.Signals(outcome.signal).name
        raise Failure(f"it crashes with {name}", outcome)
    if outcome.signal is None and outcome.code not in codes:
        raise Failure(f"exit code {outcome.code} instead of {' or '.join(map(str, codes))}", outcome)
    if outcome.code in (1, 2) and not outcome.errors():
        raise Failure("an error without a sentence", outcome)
    said = "\n".join(outcome.errors()) if outcome.code in (1, 2) else outcome.err
    foreign = FOREIGN.search(said)
    if foreign:
        raise Failure(f"an error in words of a library: {foreign.group(0)}", outcome)
    if any(len(line) > MAX_LINE for line in outcome.errors()):
        raise Failure(f"an error of more than {MAX_LINE} characters", outcome)
    if outcome.mib > mib:
        raise Failure(f"{outcome.mib:.0f} MiB of memory, more than {mib}", outcome)
    if processor_seconds is not None and outcome.processor_seconds > processor_seconds:
        raise Failure(
            f"{outcome.processor_seconds:.1f} s of processor time, more than {processor_seconds}", outcome
        )
    return outcome
