"""How linnet launches its kernels at the worked shapes, without a GPU.

stand_in_runtime.cpp takes the place of CUDA's runtime in the program of the build and notes every
launch; nothing is computed.
"""

import os
import subprocess
import tempfile

from kernels.disassembly import Failure
from kernels.worked import CASES

HERE = os.path.dirname(os.path.abspath(__file__))
TOOLKIT = os.environ.get("CUDA_HOME", "/usr/local/cuda")
TEXT = "the model reads what the stand-in never computes\n"


def build_stand_in(path):
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", f"-I{TOOLKIT}/include"]
    source = os.path.join(HERE, "stand_in_runtime.cpp")
    done = subprocess.run([*command, source, "-o", path], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failure(f"{source} does not compile: {done.stderr.strip().splitlines()[0]}")


def record(build):
    """{case: {symbol: (blocks, threads of a block, bytes of dynamic shared memory)}}, of the largest
    launch of each kernel."""
    program = os.path.abspath(os.path.join(build, "linnet"))
    if not os.path.exists(program):
        raise Failure(f"{program} is not there; build its target linnet_program")
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        stand_in, noted = os.path.join(folder, "stand_in.so"), os.path.join(folder, "launches.tsv")
        build_stand_in(stand_in)
        with open(os.path.join(folder, "text.txt"), "w", encoding="utf-8") as text:
            text.write(TEXT * 50000)
        for case, arguments in CASES.items():
            command = [program, *(argument.replace("TEXT", folder) for argument in arguments)]
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                cwd=os.path.dirname(os.path.dirname(HERE)),
                env=dict(os.environ, LD_PRELOAD=stand_in, LINNET_LAUNCHES=noted),
                check=False,
            )
            if done.returncode != 0:
                raise Failure(f"linnet {' '.join(arguments)} failed: {done.stderr.strip()[-300:]}")
            launches = found.setdefault(case, {})
            with open(noted, encoding="utf-8") as lines:
                for line in lines:
                    symbol, *numbers = line.rstrip("\n").split("\t")
                    numbers = tuple(map(int, numbers))
                    launches[symbol] = max(launches.get(symbol, (0, 0, 0)), numbers)
    return found
