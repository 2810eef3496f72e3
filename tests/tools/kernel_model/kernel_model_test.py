#!/usr/bin/env python3
"""Tests tools/kernel_model without NVIDIA's tools: stand-ins print the code that a test makes up."""

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "../../..")
sys.path.insert(0, os.path.join(ROOT, "tools"))
sys.dont_write_bytecode = True
from kernels.classes import KINDS, kind_of, shared_cycles  # noqa: E402
from kernels.disassembly import Kernel, parse, short_name  # noqa: E402
from kernels import model, paths, table  # noqa: E402
from kernels.loops import blocks_of, loops_of  # noqa: E402
from kernels.main_loops import figures_of, unique  # noqa: E402

SYMBOL = "_ZN6linnet4cuda7add_allEPfl"  # linnet::cuda::add_all(float*, long)


def listing(*lines, symbol=SYMBOL):
    """nvdisasm's text of a kernel: lines are labels (ending in a colon), places (beginning with //) or code."""
    out, address = [f"\t.section\t.text.{symbol},\"ax\",@progbits", f"{symbol}:"], 0
    for line in lines:
        if line.endswith(":") or line.startswith("//"):
            out.append(line if line.endswith(":") else f"\t{line}")
        else:
            out.append(f"        /*{address:04x}*/                   {line} ;")
            address += 16
    return "\n".join(out) + "\n"


def kernel_of(*lines):
    kernel = Kernel(SYMBOL, "add_all", "/build/x.dir/core/cuda/add.cu.o")
    parse(listing(*lines), {SYMBOL: kernel})
    return kernel


NESTED = (
    "S2R R0, SR_TID.X",
    ".L_x_0:",
    "LDG.E R1, [R2]",
    ".L_x_1:",
    "HMMA.16816.F32.BF16 R4, R8, R10, R4",
    "@P0 BRA `(.L_x_1)",
    "@P1 BRA `(.L_x_2)",
    "MUFU.EX2 R1, R1",
    ".L_x_2:",
    "BAR.SYNC.DEFER_BLOCKING 0x0",
    "@!P2 BRA `(.L_x_0)",
    "EXIT",
    ".L_x_3:",
    "BRA `(.L_x_3)",
    "NOP",
)


class Loops(unittest.TestCase):
    def test_loops_are_found_by_dominators_and_nest(self):
        kernel = kernel_of(*NESTED)
        blocks = blocks_of(kernel)
        outer = loops_of(blocks)
        self.assertEqual(len(outer), 1)  # what lies behind EXIT is never reached
        self.assertEqual(kernel.instructions[blocks[outer[0].header].first].opcode, "LDG.E")
        self.assertEqual(len(outer[0].inner), 1)
        self.assertEqual(len(outer[0].inner[0].blocks), 1)

    def test_the_largest_outermost_loop_counts_by_kind(self):
        figures = figures_of(kernel_of(*NESTED))
        expected = dict.fromkeys(KINDS, 0) | {"global": 1, "tensor": 1, "branches": 3, "special": 1, "barriers": 1}
        self.assertEqual(figures.counts, expected)
        self.assertEqual(figures.instructions, 7)
        self.assertEqual(figures.all_loops, 7)

    def test_two_branches_to_one_head_are_one_loop(self):
        kernel = kernel_of(".L_x_0:", "@P0 BRA `(.L_x_0)", "MOV R0, R1", "@P1 BRA `(.L_x_0)", "EXIT")
        outer = loops_of(blocks_of(kernel))
        self.assertEqual([len(loop.blocks) for loop in outer], [2])

    def test_a_branch_into_the_middle_makes_no_loop(self):
        kernel = kernel_of("@P0 BRA `(.L_x_1)", ".L_x_0:", "MOV R0, R1", ".L_x_1:", "MOV R1, R2", "@P1 BRA `(.L_x_0)",
                           "EXIT")  # fmt: skip
        self.assertEqual(loops_of(blocks_of(kernel)), [])

    def test_a_branch_whose_predicate_is_an_operand_goes_on(self):
        kernel = kernel_of(".L_x_0:", "MOV R0, R1", "BRA P0, `(.L_x_0)", "EXIT")
        self.assertEqual(blocks_of(kernel)[0].after, [0, 1])

    def test_indirect_branches_go_where_their_table_says(self):
        kernel = kernel_of("BRX R2 -0x10 (*\"BRANCH_TARGETS .L_x_0,.L_x_1\"*)", ".L_x_0:", "EXIT", ".L_x_1:", "EXIT")
        self.assertEqual(blocks_of(kernel)[0].after, [1, 2])

    def test_a_kernel_without_loops_counts_whole_but_for_padding(self):
        figures = figures_of(kernel_of("MOV R0, R1", "EXIT", "NOP"))
        self.assertEqual((figures.instructions, figures.all_loops, figures.loop), (2, 0, ""))


class Names(unittest.TestCase):
    def test_kinds_and_cycles(self):
        self.assertEqual(kind_of("IMAD.MOV.U32"), "integer")
        self.assertEqual(kind_of("LDSM.16.MT88.4"), "shared")
        self.assertEqual(kind_of("LDGSTS.E.BYPASS.128"), "global")
        self.assertEqual(kind_of("UNHEARDOF"), "other")
        for opcode, cycles in {"LDS": 1, "LDS.64": 2, "STS.128": 4, "LDSM.16.M88.4": 4, "LDGSTS.E.BYPASS.128": 4,
                               "FADD": 0}.items():  # fmt: skip
            self.assertEqual(shared_cycles(opcode), cycles, opcode)

    def test_names_lose_arguments_and_namespaces(self):
        for long, short in {
            "void linnet::cuda::(anonymous namespace)::sum<64, true>(linnet::cuda::Call, long)": "sum<64, true>",
            "void linnet::cuda::for_each_element<linnet::cuda::add(linnet::Tensor const&, long)::{lambda(long)#2}>"
            "(long, linnet::cuda::add(linnet::Tensor const&, long)::{lambda(long)#2})": "for_each_element<add #2>",
            "void linnet::cuda::sum_blocks<__nv_bfloat16>(__nv_bfloat16 const*, long)": "sum_blocks<bf16>",
        }.items():
            self.assertEqual(short_name(long), short)

    def test_kernels_of_one_name_are_numbered(self):
        two = [figures_of(kernel_of("EXIT")) for _ in range(2)]
        self.assertEqual([f.kernel for f in unique(two)], ["add_all (1)", "add_all (2)"])


class Model(unittest.TestCase):
    def test_public_kernels_take_their_published_times_within_30_percent(self):
        with open(os.path.join(ROOT, "tools/kernels/public.tsv"), encoding="utf-8") as text:
            rows = [line.rstrip("\n").split("\t") for line in text if not line.startswith("#")]
        predicted, published = {}, {}
        for row in (dict(zip(rows[0], row)) for row in rows[1:]):
            launch = [int(row[name]) for name in ("blocks", "threads", "registers", "shared")]
            work = model.Work(*launch, float(row["instructions"]), float(row["bytes"]), 0, float(row["flops"]))
            seconds = model.predict(work, model.H100).total
            predicted[row["name"]] = predicted.get(row["name"], 0) + 1e6 * seconds
            published[row["name"]] = float(row["published_us"])
        for family in ("flash-attention", "layer_norm", "fla"):
            self.assertTrue(any(name.startswith(family) for name in published), family)
        for name, time in published.items():
            self.assertLess(abs(predicted[name] / time - 1), 0.3, f"{name}: {predicted[name]:.0f} us, not {time:.0f}")

    def test_registers_shared_memory_and_threads_limit_blocks(self):
        for registers, shared, threads, blocks in ((64, 0, 128, 8), (168, 0, 128, 3), (32, 101376, 128, 2),
                                                   (16, 0, 1024, 2), (16, 0, 32, 32)):  # fmt: skip
            work = model.Work(1, threads, registers, shared, 0, 0)
            self.assertEqual(model.blocks_per_sm(work), blocks, (registers, shared, threads))

    def test_the_largest_of_four_times_binds(self):
        device = model.Device(100, 1e9, 1e12, 1e12)
        work = model.Work(blocks=400, threads=128, registers=128, shared=0, instructions=1000, bytes=0)
        said = model.predict(work, device)
        self.assertEqual((said.blocks_per_sm, said.waves, said.bound_by), (4, 1.0, "issue"))
        self.assertAlmostEqual(said.total, 1000 * model.WARP_CYCLES / 1e9)  # 4 warps a scheduler are too few
        work.threads, work.registers = 512, 32  # 16 warps are enough, one an instruction
        self.assertAlmostEqual(model.predict(work, device).total, 1000 * 16 / 1e9)
        work.bytes = 0.9e12
        self.assertEqual(model.predict(work, device).bound_by, "memory")
        self.assertAlmostEqual(model.predict(work, device).total, 1)
        work.flops = 1e12
        self.assertEqual(model.predict(work, device).bound_by, "tensor cores")
        work.flops, work.shared_cycles = 0, 1e9
        self.assertEqual(model.predict(work, device).bound_by, "shared memory")


class Paths(unittest.TestCase):
    """Hints of a source with a loop around another, and a choice."""

    SOURCE = "for (int i = 0; i < n; ++i) {\n  for (int j = 0; j < m; ++j) {\n  if (masked) hide();\n"

    def setUp(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        path = os.path.join(folder, "add.cu")
        with open(path, "w", encoding="utf-8") as text:
            text.write(self.SOURCE)
        outer, inner, choice = (f'//## File "{path}", line {line}' for line in (1, 2, 3))
        body = [".L_x_1:", inner, "HMMA.16816.F32.BF16 R4, R8, R10, R4", "LDSM.16.M88.4 R4, [R2]", "@P0 BRA `(.L_x_1)"]
        around = [".L_x_0:", choice, "FADD R0, R1, R2", *body, outer, "@P1 BRA `(.L_x_0)"]
        self.kernel = kernel_of("MOV R0, R1", *around, "EXIT")

    def test_loops_go_round_and_choices_are_left_out(self):
        loops = [("i < n", 10), ("j < m", 4)]
        counts, cycles, flops = paths.totals_of(self.kernel, loops, [])
        self.assertEqual((sum(counts.values()), cycles, flops), (2 + 10 * (2 + 4 * 3), 160, 40 * 4096))
        self.assertEqual(counts["tensor"], 40)
        hidden, named = (loops, [("masked", 0)]), ([("add.cu: for (int i", 10)], [])
        for hints, total in ((hidden, 2 + 10 * (1 + 4 * 3)), (named, 2 + 10 * 5)):
            self.assertEqual(sum(paths.totals_of(self.kernel, *hints)[0].values()), total)

    def test_a_call_whose_file_lacks_the_line_is_in_the_file_of_what_it_calls(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        for name, text in {"copies.h": "x = 1;\n\n  return begin_edge(x);\n", "short.h": "int y;\n"}.items():
            with open(os.path.join(folder, name), "w", encoding="utf-8") as out:
                out.write(text)
        inner = f'//## File "{folder}/copies.h", line 1'
        for named, left in (("copies.h", 1), ("short.h", 1), ("missing.h", 1)):
            called = f'{inner} inlined at "{folder}/{named}", line 3'
            kernel = kernel_of(called, f'//## File "{folder}/{named}", line 3', "FADD R0, R1, R2",
                               f'//## File "{folder}/short.h", line 1', "EXIT")  # fmt: skip
            counts = paths.totals_of(kernel, [], [("begin_edge(", 0)])[0]
            self.assertEqual(sum(counts.values()), left, named)

    def test_of_loops_that_stream_the_unrolled_one_goes_round(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        with open(os.path.join(folder, "add.cu"), "w", encoding="utf-8") as text:
            text.write("for (c = lane; c < n; c += 32) {\n  sum += x[c];\n")
        place = f'//## File "{folder}/add.cu", line 1'
        kernel = kernel_of(place, ".L_x_0:", "LDG.E R1, [R2]", "@P0 BRA `(.L_x_0)", ".L_x_1:", *["LDG.E R1, [R2]"] * 4,
                           "@P0 BRA `(.L_x_1)", "EXIT")  # fmt: skip
        counts = paths.totals_of(kernel, [], [], [("sum += x[c]", 24, 4)])[0]
        self.assertEqual(sum(counts.values()), 24 / 4 * 5 + 1)
        with self.assertRaisesRegex(Exception, "has no loop 'sum' that moves 3 bytes"):
            paths.totals_of(kernel, [], [], [("sum", 24, 3)])
        self.assertEqual(paths.bytes_of(kernel.instructions), 20)


class Program(unittest.TestCase):
    """The program in a tree of its own, whose build has one kernel with a loop of `self.size` instructions."""

    def setUp(self):
        self.tree = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.tree)
        os.makedirs(self.path("tools/bench"))
        shutil.copy(os.path.join(ROOT, "tools/kernel_model"), self.path("tools"))
        shutil.copytree(os.path.join(ROOT, "tools/kernels"), self.path("tools/kernels"))
        # What records launches needs CUDA's headers and a whole build.
        launch = f"{{'case': {{'{SYMBOL}': (528, 128, 1024)}}}}"
        self.file("tools/kernels/launches.py", f"def record(build):\n    return {launch}\n")
        self.file("build/cuda/x.dir/core/cuda/add.cu.o", "")
        self.compiler("13.0.88")
        self.file("core/cuda/add.cu", "\n\n  for (int i = 0; i < n; ++i) {\n")
        program = f"""\
            #!/bin/sh
            case "$1" in
            -xelf) : > add.sm_90.cubin ;;
            -res-usage) printf ' Function {SYMBOL}:\\n  REG:40 STACK:0 SHARED:1024 LOCAL:0\\n' ;;
            esac
            """
        self.file("bin/cuobjdump", textwrap.dedent(program), 0o755)
        self.code(100)

    def path(self, name):
        return os.path.join(self.tree, name)

    def file(self, name, text, mode=0o644):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "w", encoding="utf-8") as out:
            out.write(text)
        os.chmod(self.path(name), mode)

    def compiler(self, version):
        self.file("build/cuda/CMakeFiles/3/CMakeCUDACompiler.cmake", f'set(CMAKE_CUDA_COMPILER_VERSION "{version}")\n')

    def code(self, size, symbol=SYMBOL):
        place = f'//## File "{self.path("core/cuda/add.cu")}", line 3'
        text = listing(".L_x_0:", place, *["FADD R0, R1, R2"] * (size - 1), "@P0 BRA `(.L_x_0)", "EXIT", symbol=symbol)
        self.file("bin/nvdisasm", "#!/bin/sh\ncat <<'END'\n" + text + "END\n", 0o755)

    def run_it(self, code, *arguments, **env):
        done = subprocess.run(
            [sys.executable, self.path("tools/kernel_model"), "--tools", self.path("bin"), *arguments],
            capture_output=True,
            text=True,
            cwd=self.tree,
            env=dict(os.environ, **env),
        )
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        return done.stdout + done.stderr

    def test_growth_above_3_percent_fails_and_names_the_line(self):
        self.run_it(0, "--write")
        self.code(103)
        self.assertIn("1 kernels", self.run_it(0, "--check"))
        self.code(104)
        said = self.run_it(1, "--check")
        for part in (
            "tools/bench/kernels.tsv:6: add_all of core/cuda/add.cu: its main loop (for (int i = 0; i < n; ++i)) has 104",
            "4.0 % more than the table's 100; if that is meant, tools/kernel_model --write changes line 6",
        ):
            self.assertIn(part, said)
        self.run_it(0, "--write")
        self.run_it(0, "--check")

    def test_measured_times_stay(self):
        self.run_it(0, "--write")
        with open(self.path("tools/bench/kernels.tsv"), encoding="utf-8") as table:
            text = table.read()
        self.assertIn("\tnot measured\n", text)
        self.assertIn("\t-\t128\t1024\t12\t0.33\t-\t-\t-\t", text)  # a launch whose time is not predicted
        self.file("tools/bench/kernels.tsv", text.replace("not measured", "12.5"))
        self.assertNotIn("is gone", self.run_it(0, "--write"))
        with open(self.path("tools/bench/kernels.tsv"), encoding="utf-8") as table:
            text = table.read()
        self.assertIn("\t12.5\n", text)
        self.file("tools/bench/kernels.tsv", text.replace("\tadd_all\t", "\tadd_some\t"))
        self.assertIn("add_some of core/cuda/add.cu is gone, and with it its measured time, 12.5:", self.run_it(0, "--write"))

    def test_times_of_a_profile_are_entered(self):
        columns = ["a.cu", "lavo_pass_forward<64, false>", *["-"] * (len(table.COLUMNS) - 3), "not measured"]
        other = ["a.cu", "add_all", *columns[2:]]
        lines = [list(table.COLUMNS), columns, other]
        self.file(table.PATH, "".join("\t".join(line) + "\n" for line in lines))
        head = '"case","kernel","grid","us"\n'
        name = '"lavo_pass_forward<64, false>"'
        rows = f'"abc_mlp",{name},"(1, 1, 1)","7"\n"lavo",{name},"","1080.4"\n'
        self.file("profile.csv", head + rows)
        self.assertIn("1 times entered", self.run_it(0, "--measured", self.path("profile.csv"), "76a60be"))
        with open(self.path(table.PATH), encoding="utf-8") as text:
            lines = text.read().splitlines()
        self.assertTrue(lines[1].endswith("\t1080 at 76a60be"))
        self.assertTrue(lines[2].endswith("\tnot measured"))
        self.assertIn("No such file", self.run_it(1, "--measured", self.path("nothing.csv"), "76a60be"))

    def test_the_table_has_every_kernel_and_no_other(self):
        self.run_it(0, "--write")
        other = SYMBOL.replace("add_all", "sub_all")
        with open(self.path("bin/cuobjdump"), encoding="utf-8") as text:
            self.file("bin/cuobjdump", text.read().replace(SYMBOL, other), 0o755)
        self.code(100, other)
        said = self.run_it(1, "--check")
        self.assertIn("kernels.tsv lacks sub_all of core/cuda/add.cu", said)
        self.assertIn("kernels.tsv:6: add_all of core/cuda/add.cu is not in this build", said)

    def test_another_compiler_is_not_compared(self):
        self.run_it(0, "--write")
        self.compiler("12.4.131")
        said = self.run_it(1, "--check")
        self.assertIn("was made by nvcc 13.0.88 for sm_90 and this build by nvcc 12.4.131", said)

    def test_other_architectures_have_counts_alone(self):
        self.assertNotIn("at the worked shape", self.run_it(0, "--architecture", "sm_80"))
        self.assertIn("is of sm_90", self.run_it(1, "--write", "--architecture", "sm_80"))

    def test_prints_chosen_kernels(self):
        said = self.run_it(0, "add_")
        self.assertIn("core/cuda/add.cu:3: for (int i = 0; i < n; ++i)", said)
        self.assertIn("100 instructions: branches 1, float 99", said)
        self.assertIn("40 registers", said)
        self.assertIn("threads 128, shared_bytes 1024, blocks_per_sm 12, waves 0.33", said)
        self.assertIn("is called sub_", self.run_it(1, "sub_"))

    def test_what_is_lacking_is_said_in_one_sentence(self):
        self.assertIn("build a CUDA preset there first", self.run_it(1, "--build", self.path("core")))
        os.remove(self.path("bin/nvdisasm"))
        said = self.run_it(1, "--check", PATH="/usr/bin:/bin")
        self.assertIn("kernel_model: nvdisasm is neither below", said)
        self.assertEqual(len(said.splitlines()), 1)

    def test_without_a_network_installing_fails_in_one_sentence(self):
        offline = dict(PIP_NO_INDEX="1", PIP_CONFIG_FILE="/dev/null")
        said = self.run_it(1, "--install", "--tools", self.path("build/venv"), **offline)
        self.assertIn("which need a network once", said)
        self.assertEqual(len(said.splitlines()), 1)


if __name__ == "__main__":
    unittest.main()
