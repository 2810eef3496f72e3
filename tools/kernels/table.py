"""The committed table of kernels, and what a build's kernels must not exceed."""

import csv
import glob
import os
import re

from kernels.classes import KINDS
from kernels.disassembly import Failure
from kernels.worked import KERNELS, MEASURED_AS

PATH = "tools/bench/kernels.tsv"
GROWTH = 0.03  # of a main loop, beyond which the table must be changed
NOT_MEASURED = "not measured"
SHAPE = ("unit_instructions", "threads", "shared_bytes", "blocks_per_sm", "waves", "memory_us", "predicted_us", "bound_by")
COLUMNS = ("source", "kernel", "loop", "instructions", *KINDS, "all_loops", "registers", *SHAPE, "measured_us")
HEAD = """\
# Main loops of the CUDA kernels as ptxas made them, written by  tools/kernel_model --write  and checked by the
# stage nvcc of .ci/run; tools/bench/README.md says what the columns are. Times are predicted for an H200 at the shapes
# of tools/kernels/worked.py. measured_us is kept as it stands when the table is written again.
"""


def compiler_of(build):
    for path in glob.glob(os.path.join(build, "CMakeFiles", "*", "CMakeCUDACompiler.cmake")):
        with open(path, encoding="utf-8") as text:
            found = re.search(r'CMAKE_CUDA_COMPILER_VERSION "([^"]+)"', text.read())
        if found:
            return "nvcc " + found[1]
    raise Failure(f"{build} does not say which nvcc made it; configure the preset cuda again")


def line_of(figures, measured):
    """A line of the table."""
    counts = [figures.counts[kind] for kind in KINDS]
    cells = [figures.source, figures.kernel, figures.loop or "-", figures.instructions, *counts]
    cells += [figures.all_loops, figures.registers, *(figures.shape.get(name, "-") for name in SHAPE), measured]
    return "\t".join(map(str, cells))


def read(root):
    """The lines of the table by (source, kernel), each with its number, and what made it."""
    path = os.path.join(root, PATH)
    if not os.path.exists(path):
        raise Failure(f"{PATH} is not there; tools/kernel_model --write makes it")
    found, made_by = {}, ""
    with open(path, encoding="utf-8") as text:
        for number, line in enumerate(text, 1):
            cells = line.rstrip("\n").split("\t")
            if line.startswith("# made by "):
                made_by = line[len("# made by ") :].strip()
            elif not line.startswith("#") and cells[0] != COLUMNS[0]:
                if len(cells) != len(COLUMNS):
                    raise Failure(
                        f"{PATH}:{number}: {len(cells)} columns instead of {len(COLUMNS)};"
                        " tools/kernel_model --write makes it again"
                    )
                found[cells[0], cells[1]] = (number, dict(zip(COLUMNS, cells)))
    return found, made_by


def write(root, found, made_by):
    """Writes the whole table; keeps what was measured. Returns the kernels that are gone with their measured times."""
    path = os.path.join(root, PATH)
    old = read(root)[0] if os.path.exists(path) else {}
    there = {(figures.source, figures.kernel) for figures in found}
    lost = {key: line["measured_us"] for key, (_, line) in old.items() if key not in there}
    with open(path, "w", encoding="utf-8") as out:
        out.write(HEAD + f"# made by {made_by}\n" + "\t".join(COLUMNS) + "\n")
        for figures in found:
            key = (figures.source, figures.kernel)
            measured = old[key][1]["measured_us"] if key in old else NOT_MEASURED
            out.write(line_of(figures, measured) + "\n")
    return {kernel: time for kernel, time in lost.items() if time != NOT_MEASURED}


def enter_measured(root, profile, commit):
    """Enters the times of a profile.csv of tools/gpu_check profile; returns how many."""
    with open(profile, encoding="utf-8", newline="") as text:
        measured = {(row["case"], row["kernel"]): row["us"] for row in csv.DictReader(text)}
    of_kernel = {}
    for kernel in KERNELS:
        plain = kernel.name.replace("false", "0").replace("true", "1")  # as ncu has them
        case = MEASURED_AS.get(kernel.case)
        found = [measured[case, name] for name in (kernel.name, plain) if (case, name) in measured]
        if found and found[0]:
            of_kernel[kernel.name] = f"{float(found[0]):.0f} at {commit}"
    with open(os.path.join(root, PATH), encoding="utf-8") as text:
        lines = text.read().splitlines()
    for i, line in enumerate(lines):
        *cells, _ = line.split("\t")
        if len(cells) + 1 == len(COLUMNS) and cells[1] in of_kernel:
            lines[i] = "\t".join([*cells, of_kernel[cells[1]]])
    with open(os.path.join(root, PATH), "w", encoding="utf-8") as out:
        out.write("\n".join(lines) + "\n")
    return len(of_kernel)


def growths(found, table):
    """(figures, what grew, its size in the table) of every loop that grew by more than GROWTH."""
    for figures in found:
        line = table.get((figures.source, figures.kernel))
        if line is None:
            continue
        for what, now, column in (
            ("main loop" if figures.loop else "code, which has no loop,", figures.instructions, "instructions"),
            ("loops, all together,", figures.all_loops, "all_loops"),
        ):
            before = int(line[1][column])
            if now > before * (1 + GROWTH):
                yield figures, what, now, before
                break


def check(root, found, made_by):
    """What is wrong with the table for these kernels, a sentence each; empty: nothing."""
    table, table_made_by = read(root)
    if table_made_by != made_by:
        return [
            f"{PATH} was made by {table_made_by} and this build by {made_by}, whose instructions do not compare;"
            " build with the former or run tools/kernel_model --write"
        ]
    wrong = []
    for figures, what, now, before in growths(found, table):
        number, cells = table[figures.source, figures.kernel]
        at = "" if cells["loop"] == "-" else f" ({cells['loop']})"
        wrong.append(
            f"{PATH}:{number}: {figures.kernel} of {figures.source}: its {what}{at} has {now} instructions,"
            f" {100 * (now / before - 1):.1f} % more than the table's {before}; if that is meant,"
            f" tools/kernel_model --write changes line {number}"
        )
    here = {(figures.source, figures.kernel) for figures in found}
    for key in sorted(here - set(table)):
        wrong.append(f"{PATH} lacks {key[1]} of {key[0]}; run tools/kernel_model --write")
    for key in sorted(set(table) - here):
        wrong.append(
            f"{PATH}:{table[key][0]}: {key[1]} of {key[0]} is not in this build;"
            " remove the line or run tools/kernel_model --write"
        )
    return wrong
