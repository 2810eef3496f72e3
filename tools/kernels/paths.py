"""How often a block's warp carries out each instruction, by what a case says of its source.

Counts of a loop are those of its code: inner loops once and every branch of a choice. A case names the
statements of the source whose loops go round so many times, and those that it does not carry out.
"""

import os
import re

from kernels.classes import KINDS, kind_of, shared_cycles
from kernels.disassembly import Failure
from kernels.loops import blocks_of, loops_of
from kernels.main_loops import instructions_of, lines_of, mended, place_of, text_at


def factor_of(text, hints, default=1.0):
    """Of the first hint that the text holds."""
    return next((factor for part, factor in hints if part in text), default)


def statement_of(kernel, blocks, loop):
    """What hints of loops are compared with: file, pragma above, statement, and the line after it."""
    path, line, text = place_of(kernel, blocks, loop)
    lines = lines_of(path)
    above = lines[line - 2].split("//")[0].strip() if 1 < line <= len(lines) else ""
    pragma = above + " " if above.startswith("#pragma") else ""
    return f"{os.path.basename(path)}: {pragma}{text} {text_at(path, line + 1)}"


WIDTH = re.compile(r"\.(U8|S8|U16|S16|64|128)\b")
BYTES = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}


def bytes_of(instructions):
    """What a thread loads and stores when every instruction is carried out once."""
    total = 0
    for instruction in instructions:
        if instruction.opcode.split(".")[0] in ("LDG", "STG"):
            width = WIDTH.search(instruction.opcode)
            total += BYTES[width[1]] if width else 4
    return total


def stream_trips(kernel, blocks, loops, streams):
    """{loop's header: how often it goes round} of loops that stream through memory. The compiler makes
    several of a statement: for every type and width of the elements, for every choice inside it, one that is
    unrolled beside one that does the rest. A stream is (part of the statement, rounds, bytes that a thread
    loads and stores in one): of its loops that move as many the longest does the rest, and the next one all
    rounds."""
    found = {}
    for part, rounds, moved in streams:
        mine = [loop for loop in loops if part in statement_of(kernel, blocks, loop)]
        bodies = [instructions_of(kernel, blocks, loop) for loop in mine]
        sizes = [bytes_of(body) for body in bodies]
        found.update((loop.header, 0) for loop in mine)
        same = [i for i, size in enumerate(sizes) if size == moved]
        rest = max(same, key=lambda i: len(bodies[i]), default=None)
        if rest is None:
            raise Failure(f"{kernel.name} has no loop '{part}' that moves {moved} bytes a round, but {sizes}")
        unrolled = rest + 1 < len(mine) and sizes[rest + 1] > moved and sizes[rest + 1] % moved == 0
        chosen = rest + 1 if unrolled else rest
        found[mine[chosen].header] = rounds * moved / sizes[chosen]
    return found


def weights_of(kernel, loop_hints, line_hints, streams=()):
    """How often each instruction is carried out."""
    blocks = blocks_of(kernel)
    loops = loops_of(blocks)
    streamed = stream_trips(kernel, blocks, loops, streams)
    weights = {}

    def visit(loop, outside):
        trips = streamed.get(loop.header)
        if trips is None:
            trips = factor_of(statement_of(kernel, blocks, loop), loop_hints)
        here = outside * trips
        for instruction in instructions_of(kernel, blocks, loop):
            weights[instruction.address] = here
        for inner in loop.inner:
            visit(inner, here)

    for loop in loops:
        visit(loop, 1.0)
    found = []
    for instruction in kernel.instructions:
        if instruction.opcode == "NOP":
            continue
        weight = weights.get(instruction.address, 1.0)
        for frame in mended(instruction.place):
            weight *= factor_of(text_at(*frame), line_hints)
        found.append((instruction, weight))
    return found


PRODUCT = re.compile(r"^HMMA\.(16816|1688)\b")


def flops_of(opcode):
    """Of a warp."""
    found = PRODUCT.match(opcode)
    return 0 if not found else {"16816": 4096, "1688": 2048}[found[1]]


def totals_of(kernel, loop_hints, line_hints, streams=()):
    """Of a warp from the beginning of its block to the end: instructions by kind, cycles of shared memory
    and FLOPs of tensor cores."""
    counts, cycles, flops = dict.fromkeys(KINDS, 0.0), 0.0, 0.0
    for instruction, weight in weights_of(kernel, loop_hints, line_hints, streams):
        counts[kind_of(instruction.opcode)] += weight
        cycles += weight * shared_cycles(instruction.opcode)
        flops += weight * flops_of(instruction.opcode)
    return counts, cycles, flops
