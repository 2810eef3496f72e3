"""What the model says of a kernel at its worked shape: of a kernel of worked.KERNELS its time, of one
without loops and choices too, of others that a case launches how their blocks fit a multiprocessor."""

import re

from kernels import worked
from kernels.classes import shared_cycles
from kernels.disassembly import Failure
from kernels.loops import blocks_of, reverse_postorder
from kernels.model import H200, Work, blocks_per_sm, predict
from kernels.paths import bytes_of, totals_of


def is_straight(kernel):
    """Whether its only choice is to end."""
    blocks = blocks_of(kernel)
    return all(len(blocks[number].after) <= 1 for number in reverse_postorder(blocks))


def launch_of(kernel, launches, case=None):
    """(blocks, threads, dynamic shared memory) of the largest launch, of a case or of all; None: none."""
    cases = [launches[case]] if case else launches.values()
    return max((each[kernel.symbol] for each in cases if kernel.symbol in each), default=None)


def worked_totals(kernel, how, blocks):
    loops = ([(how.main, how.units / blocks)] if how.main else []) + how.loops + worked.LOOPS
    return totals_of(kernel, loops, how.lines + worked.LINES, how.streams)


def shape_of(kernel, launches):
    """The columns of the table that describe a launch, as far as they are known."""
    name = re.sub(r" \(\d+\)$", "", kernel.name)
    how = next((each for each in worked.KERNELS if each.name == name), None)
    launch = launch_of(kernel, launches, how.case if how else None)
    if launch is None:
        if how:
            raise Failure(f"'linnet {' '.join(worked.CASES[how.case])}' does not launch {name}; see worked.py")
        return {}
    blocks, threads, shared = launch
    work = Work(blocks, threads, kernel.registers, shared, 0, 0)
    each = blocks_per_sm(work)
    found = {
        "threads": threads,
        "shared_bytes": shared,
        "blocks_per_sm": each,
        "waves": f"{blocks / (each * H200.multiprocessors):.2f}",
    }
    if how:
        counts, work.shared_cycles, work.flops = worked_totals(kernel, how, blocks)
        work.instructions, work.bytes = sum(counts.values()), how.bytes
        per_unit = {kind: round(count * blocks / how.units) for kind, count in counts.items()}
        found |= {"unit_instructions": sum(per_unit.values()), "unit_counts": per_unit}
    elif is_straight(kernel):
        code = [i for i in kernel.instructions if i.opcode != "NOP"]
        work.instructions, work.bytes = len(code), blocks * threads * bytes_of(kernel.instructions)
        work.shared_cycles = sum(shared_cycles(i.opcode) for i in code)
    else:
        return found
    said = predict(work, H200)
    times = {"memory_us": said.seconds["memory"], "predicted_us": said.total}
    return found | {name: f"{1e6 * time:.1f}" for name, time in times.items()} | {"bound_by": said.bound_by}
