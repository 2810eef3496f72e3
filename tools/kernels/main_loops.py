"""The main loop of a kernel, what it is made of and where its source is."""

import os
import re
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache

from kernels.classes import KINDS, kind_of, shared_cycles
from kernels.loops import blocks_of, loops_of


@dataclass
class Figures:
    source: str  # path of the kernel's file in the tree
    kernel: str
    loop: str  # text of the loop in its source; "" where the kernel has none and is counted whole
    place: str  # path:line
    counts: dict  # instructions by kind
    all_loops: int  # instructions in all loops
    registers: int
    shape: dict = field(default_factory=dict)  # of its launch, as predictions.shape_of says it

    @property
    def instructions(self):
        return sum(self.counts.values())


def source_of(kernel):
    return re.sub(r"^.*\.dir/|\.o$", "", kernel.path)


@lru_cache(maxsize=None)
def lines_of(path):
    try:
        with open(path, encoding="utf-8") as text:
            return text.read().splitlines()
    except OSError:
        return []


STATEMENT = re.compile(r"^\s*(for|while|do)\b")


def place_of(kernel, blocks, loop):
    """(path, line, text) of the statement that a loop is: the outermost one that a branch back to its
    head comes from, else the place of the call that holds it."""
    found = []
    for number in sorted(loop.blocks, reverse=True):
        if loop.header in blocks[number].after:
            last = kernel.instructions[blocks[number].first : blocks[number].end][-8:]
            found += [i.place for i in reversed(last)]
    found.append(kernel.instructions[blocks[loop.header].first].place)
    frames = [frame for place in found for frame in reversed(mended(place))]
    texts = {frame: text_at(*frame) for frame in frames}
    chosen = next((f for f in frames if STATEMENT.match(texts[f])), None)
    if chosen is None:
        chosen = next((f for f in frames if not f[0].endswith("/for_each.h")), ("", 0))
    return (*chosen, texts.get(chosen) or "unknown")


def text_at(path, line):
    lines = lines_of(path)
    return " ".join(lines[line - 1].split()).rstrip("{ ") if 0 < line <= len(lines) else ""


@lru_cache(maxsize=None)
def mended(place):
    """A place whose frames are where they say. Of some calls the line information names a file that has no
    such line: the call is then in the file of what it calls."""
    frames = list(place)
    for i in range(1, len(frames)):
        path, line = frames[i]
        inner = frames[i - 1][0]
        if len(lines_of(path)) < line <= len(lines_of(inner)):
            frames[i] = (inner, line)
    return tuple(frames)


def instructions_of(kernel, blocks, loop):
    return [i for b in sorted(loop.blocks) for i in kernel.instructions[blocks[b].first : blocks[b].end]]


def figures_of(kernel):
    """Of the largest outermost loop, or of the whole kernel where it has none. Inner loops count
    once, and so does every branch of a choice, taken or not."""
    blocks = blocks_of(kernel)
    bodies = [(instructions_of(kernel, blocks, loop), loop) for loop in loops_of(blocks)]
    path, line, text = source_of(kernel), 0, ""
    if bodies:
        largest, loop = max(bodies, key=lambda each: len(each[0]))
        path, line, text = place_of(kernel, blocks, loop)
    else:
        largest = kernel.instructions
    counts = Counter(kind_of(i.opcode) for i in largest if i.opcode != "NOP")
    return Figures(
        source_of(kernel),
        kernel.name,
        text,
        f"{os.path.relpath(path) if os.path.isabs(path) else path}:{line}",
        {kind: counts[kind] for kind in KINDS},
        sum(len(body) for body, _ in bodies),
        kernel.registers,
    )


def unique(found):
    """Numbers the kernels of a file that share a name, in the order in which they come."""
    seen = Counter((f.source, f.kernel) for f in found)
    again = Counter()
    for figures in found:
        key = (figures.source, figures.kernel)
        if seen[key] > 1:
            again[key] += 1
            figures.kernel += f" ({again[key]})"
    return sorted(found, key=lambda f: (f.source, f.kernel))
