"""The kernels of CUDA object files, as ptxas made them: instructions, registers, shared memory.

cuobjdump takes the code of one architecture out of an object, nvdisasm prints it. Both are NVIDIA's;
`find_tools` says how to get them.
"""

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field

PINNED = ("nvidia-cuda-nvdisasm==13.5.37", "nvidia-cuda-cuobjdump==13.5.37")
NAMES = ("cuobjdump", "nvdisasm")


class Failure(Exception):
    """What a user is told, in one sentence."""


@dataclass
class Instruction:
    address: int
    opcode: str  # with its modifiers, as LDG.E.128
    operands: str
    predicate: str  # "@P0", "@!UP1" or ""
    place: tuple  # source frames (path, line), the kernel's own last; empty without line information


@dataclass
class Kernel:
    symbol: str
    name: str  # as short_name makes it
    path: str  # of the object
    instructions: list = field(default_factory=list)
    labels: dict = field(default_factory=dict)  # label: address
    tables: dict = field(default_factory=dict)  # address of an indirect branch: its targets' addresses
    registers: int = 0


def find_tools(folder):
    """Paths of cuobjdump and nvdisasm below `folder` (a virtual environment) or in the PATH."""
    found = []
    for name in NAMES:
        path = next(
            (
                os.path.join(base, name)
                for base, _, files in os.walk(folder)
                if name in files and os.access(os.path.join(base, name), os.X_OK)
            ),
            shutil.which(name),
        )
        if path is None:
            raise Failure(
                f"{name} is neither below {folder} nor in the PATH; tools/kernel_model --install puts it"
                f" there, which needs a network: a virtual environment with {' and '.join(PINNED)}"
            )
        found.append(path)
    return tuple(found)


def install_tools(folder):
    """A virtual environment with both tools; does nothing where it is there."""
    stamp = os.path.join(folder, "installed.txt")
    wanted = "\n".join(PINNED)
    if os.path.exists(stamp):
        with open(stamp, encoding="utf-8") as text:
            if text.read() == wanted:
                return
    for command in (
        ["python3", "-m", "venv", folder],
        [os.path.join(folder, "bin", "pip"), "install", "--quiet", "--no-deps", *PINNED],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise Failure(
                f"{' '.join(command)} failed ({said[-1] if said else 'no message'}); the kernels' code cannot"
                " be read without nvdisasm and cuobjdump, which need a network once"
            )
    with open(stamp, "w", encoding="utf-8") as text:
        text.write(wanted)


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise Failure(f"{' '.join(command[:3])} failed: {said[-1] if said else done.returncode}")
    return done.stdout


def objects_below(build):
    """Objects of kernels below a build folder, those of tests left out."""
    found = []
    for base, folders, files in os.walk(build):
        if base == build and "tests" in folders:
            folders.remove("tests")
        found += [os.path.join(base, name) for name in files if name.endswith(".cu.o")]
    if not found:
        raise Failure(f"{build} has no objects of kernels; build a CUDA preset there first")
    return sorted(found)


SECTION = re.compile(r"^\s*\.section\s+\.text\.([^\s,]+)", re.MULTILINE)
LINE = re.compile(
    r'^\s*//## File "(?P<path>[^"]+)", line (?P<line>\d+)(?: inlined at "(?P<at>[^"]+)", line (?P<at_line>\d+))?'
    r"|^\s*/\*(?P<address>[0-9a-f]{4,})\*/\s+(?P<predicate>@!?U?P\w+\s+)?(?P<opcode>[A-Z][\w.]*)"
    r"(?P<operands>[^;]*);"
    r"|^(?P<label>\.L_x?_?\w+):"
)
TARGETS = re.compile(r"\.L_\w+")


def parse(text, kernels):
    """Adds what nvdisasm printed of a cubin to `kernels`, by symbol."""
    marks = list(SECTION.finditer(text))
    for mark, following in zip(marks, [*marks[1:], None]):
        kernel = kernels.get(mark[1])
        if kernel is None:
            continue
        frames, labels, indirect = (), [], []
        fresh = True  # the next line of a place begins a new one
        for line in text[mark.end() : following.start() if following else len(text)].splitlines():
            found = LINE.match(line)
            if not found:
                if line.lstrip().startswith(".section\t"):
                    break
                continue
            if found["path"]:
                frame = (found["path"], int(found["line"]))
                frames = (frame,) if fresh else (*frames, frame)
                fresh = False
            elif found["label"]:
                labels.append(found["label"])
            else:
                fresh = True
                address = int(found["address"], 16)
                for label in labels:
                    kernel.labels[label] = address
                labels.clear()
                instruction = Instruction(
                    address,
                    found["opcode"],
                    found["operands"].strip(),
                    (found["predicate"] or "").strip(),
                    frames,
                )
                kernel.instructions.append(instruction)
                if found["opcode"].startswith(("BRX", "JMX")):
                    indirect.append((address, TARGETS.findall(line)))
        for address, targets in indirect:
            kernel.tables[address] = [kernel.labels[t] for t in targets if t in kernel.labels]


RESOURCES = re.compile(r"^ Function (\S+):\n\s+REG:(\d+) ", re.MULTILINE)
TOOLKIT = "_ZN3cub"


def short_name(name):
    """Without result, arguments and namespaces: slot_gradients<64, true>, for_each_element<add #1>."""
    name = re.sub(r"\(anonymous namespace\)::|^void |\(\w+\)(?=[-\w])", "", name)
    name = re.sub(r"\{lambda\([^()]*\)(#\d+)\}", r"\1", name)
    while "(" in name:
        shorter = re.sub(r"\([^()]*\)(?: const)?", "", name)
        if shorter == name:
            break
        name = shorter
    name = name.replace("::#", " #").replace("__nv_bfloat16", "bf16")
    return re.sub(r"\b\w+::", "", name).strip()


def read_object(path, architecture, tools, places=True):
    """The kernels of an object but those of CUB, the toolkit's; none where it has no code of that
    architecture (as sm_90). Without `places` instructions do not know their source, which is faster."""
    cuobjdump, nvdisasm = tools
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.abspath(path)
        subprocess.run([cuobjdump, "-xelf", architecture, path], cwd=folder, capture_output=True, check=False)
        cubins = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
        kernels = {}
        for cubin in cubins:
            for symbol, registers in RESOURCES.findall(run(cuobjdump, "-res-usage", cubin)):
                if not symbol.startswith(TOOLKIT):
                    kernels[symbol] = Kernel(symbol, symbol, path, registers=int(registers))
            if kernels:
                parse(run(nvdisasm, "-c", *(["-gi"] if places else []), cubin), kernels)
    names = run("c++filt", *kernels).splitlines() if kernels else []
    # In the order of names: that of code depends on where the tree lies.
    named = sorted(zip(names, kernels.values()), key=lambda each: each[0])
    for name, kernel in named:
        kernel.name = short_name(name)
    return [kernel for _, kernel in named]
