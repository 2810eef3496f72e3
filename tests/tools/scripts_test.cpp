// The scripts in tools/ and .ci/: they parse, fail on the first error, and explain themselves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

#include "core/error.h"
#include "tests/data_path.h"

namespace linnet {
namespace {

struct Outcome {
  int code = -1;
  std::string output;
};

// Runs a command line in the source directory; output holds stdout and stderr.
Outcome run(const std::string& command) {
  Outcome outcome;
  FILE* pipe = popen(("cd '" + test::source_dir() + "' && (" + command + ") 2>&1").c_str(), "r");
  if (pipe == nullptr) return outcome;
  char buffer[4096];
  for (size_t n = 0; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
    outcome.output.append(buffer, n);
  }
  const int status = pclose(pipe);
  if (WIFEXITED(status)) outcome.code = WEXITSTATUS(status);
  return outcome;
}

const char* const kScripts[] = {"tools/linnet",
                                "tools/quickstart",
                                "tools/setup_packages",
                                "tools/gpu_check",
                                "tools/check_kernels",
                                "tools/check_spills",
                                "tools/test",
                                "tools/fuzz",
                                "tools/parity",
                                "tools/slurm_job",
                                ".ci/run"};

TEST(Scripts, ParseAndStopAtTheFirstError) {
  for (const std::string script : kScripts) {
    const Outcome syntax = run("test -x " + script + " && bash -n " + script);
    EXPECT_EQ(syntax.code, 0) << script << ": " << syntax.output;
    std::ostringstream text;
    text << std::ifstream(test::source_dir() + "/" + script).rdbuf();
    EXPECT_THAT(text.str(), ::testing::StartsWith("#!/usr/bin/env bash\n# ")) << script;
    // .ci/run alone goes on after a failed stage, so that one run reports them all.
    const char* options = script == ".ci/run" ? "\nset -uo pipefail\n" : "\nset -euo pipefail\n";
    EXPECT_THAT(text.str(), ::testing::HasSubstr(options)) << script;
  }
}

TEST(Scripts, FuzzRefusesWhatItDoesNotKnow) {
  for (const char* arguments :
       {"nonsense", "--nonsense", "--seconds", "--seconds 1x", "--jobs 0"}) {
    EXPECT_EQ(run(concat("tools/fuzz ", arguments)).code, 2) << arguments;
  }
}

TEST(Scripts, ExplainThemselves) {
  for (const std::string script : kScripts) {
    if (script == "tools/linnet") continue;  // hands every argument to the program
    const Outcome help = run(script + " --help");
    EXPECT_EQ(help.code, 0) << script;
    EXPECT_THAT(help.output, ::testing::StartsWith("Usage: " + script));
  }
}

TEST(Scripts, RefuseUnknownOptions) {
  EXPECT_EQ(run("tools/setup_packages --nonsense").code, 2);
  EXPECT_EQ(run("tools/quickstart --nonsense").code, 2);
  EXPECT_EQ(run("tools/check_kernels /nonexistent").code, 2);
  EXPECT_EQ(run("tools/check_spills /nonexistent").code, 2);
  EXPECT_EQ(run("tools/gpu_check").code, 2);
  EXPECT_EQ(run("tools/gpu_check nonsense").code, 2);
  EXPECT_EQ(run("tools/parity").code, 2);
  EXPECT_EQ(run("tools/gpu_check correctness --build /nonexistent").code, 2);
  EXPECT_EQ(run("tools/gpu_check correctness --minutes soon").code, 2);
  EXPECT_EQ(run("tools/gpu_check correctness --jobs 0").code, 2);
  EXPECT_EQ(run(".ci/run nonsense").code, 2);
}

// With stand-ins for Slurm's programs.
TEST(Scripts, SlurmJobStartsEveryTaskWithItsThreads) {
  const Outcome alone = run("tools/slurm_job train recipe.yaml");
  EXPECT_EQ(alone.code, 2);
  EXPECT_THAT(alone.output, ::testing::HasSubstr("this is no Slurm job"));
  const Outcome job = run(
      "bin=$(mktemp -d) && printf '#!/bin/sh\\nprintf \"n7\\\\nn8\\\\n\"\\n' > $bin/scontrol && "
      "printf '#!/bin/sh\\necho $MASTER_ADDR $MASTER_PORT $OMP_NUM_THREADS \"$@\"\\n' > $bin/srun "
      "&& "
      "chmod +x $bin/* && SLURM_JOB_ID=123456 SLURM_JOB_NODELIST='n[7-8]' SLURM_CPUS_PER_TASK=8 "
      "PATH=$bin:$PATH tools/slurm_job train 'a recipe.yaml'; code=$?; rm -r $bin; exit $code");
  EXPECT_EQ(job.code, 0) << job.output;
  EXPECT_EQ(job.output,
            "n7 23456 8 --cpus-per-task=8 --kill-on-bad-exit=1 --label tools/linnet train "
            "a recipe.yaml\n");
}

TEST(Scripts, ComparingWithPyTorchNeedsIt) {
  if (run("command -v python3").code != 0) GTEST_SKIP() << "python3 is not installed";
  // Without its site packages, python has no PyTorch.
  const Outcome without =
      run("p=$(mktemp) && printf '#!/bin/sh\\nexec python3 -S -E \"$@\"\\n' > $p && "
          "chmod +x $p && tools/bench/compare $p; code=$?; rm -f $p; exit $code");
  EXPECT_EQ(without.code, 2) << without.output;
  EXPECT_THAT(without.output, ::testing::HasSubstr(" has no PyTorch (")) << without.output;
  EXPECT_THAT(without.output, ::testing::Not(::testing::HasSubstr("Traceback")));
  EXPECT_THAT(without.output, ::testing::Not(::testing::HasSubstr("round 1")));
}

TEST(Scripts, ComparingWithPyTorchRefusesWhatItCannotRun) {
  if (run("command -v python3").code != 0) GTEST_SKIP() << "python3 is not installed";
  const Outcome missing = run("tools/bench/compare /nonexistent/python");
  EXPECT_EQ(missing.code, 2);
  EXPECT_EQ(missing.output, "compare: /nonexistent/python: No such file or directory\n");
  for (const std::string option : {"--rounds", "--steps", "--runs", "--threads"}) {
    const Outcome none = run("tools/bench/compare " + option + " 0");
    EXPECT_EQ(none.code, 2);
    EXPECT_THAT(none.output, ::testing::HasSubstr("compare: error: argument " + option +
                                                  ": must be 1 or more, found 0\n"));
  }
}

// A machine without apt-get is told what to install; LINNET_SKIP_INSTALL lets it go on.
TEST(Scripts, SetupWithoutAptNamesThePackages) {
  const std::string bare = "PATH=/nonexistent /bin/bash tools/setup_packages";
  const Outcome refused = run(bare);
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.output, ::testing::HasSubstr("libeigen3-dev"));
  EXPECT_EQ(run("LINNET_SKIP_INSTALL=1 " + bare).code, 0);
}

// The arguments of apt-get, with a dpkg-query that knows no package and an apt-get that records.
TEST(Scripts, SetupInstallsOnlyWhatIsMissing) {
  const std::string stage =
      "bin=$(mktemp -d); "
      "printf '#!/bin/sh\\ncase \"$*\" in *libgtest-dev*) exit 1;; *) echo -n installed;; esac\\n' "
      "> $bin/dpkg-query; "
      "printf '#!/bin/sh\\necho \"$@\" >> %s/asked\\n' $bin > $bin/apt-get; "
      "printf '#!/bin/sh\\nexec \"$@\"\\n' > $bin/sudo; chmod +x $bin/*; "
      "PATH=$bin:$PATH tools/setup_packages --tests && cat $bin/asked; "
      "code=$?; rm -rf $bin; exit $code";
  const Outcome outcome = run(stage);
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output,
              ::testing::HasSubstr("update\ninstall -y --no-install-recommends libgtest-dev\n"));
  EXPECT_THAT(outcome.output, ::testing::Not(::testing::HasSubstr("nvidia")));
}

// The program's own output of building goes to a log; what is being installed is shown.
TEST(Scripts, WhatIsInstalledIsSaidBeforeTheProgramIsBuilt) {
  const std::string stage =
      "t=$(mktemp -d); mkdir $t/tools $t/bin; cp tools/linnet $t/tools; "
      "printf '#!/bin/sh\\necho Installing the packages g++ >&2\\n' > $t/tools/setup_packages; "
      "printf '#!/bin/sh\\necho configured\\n[ \"$1\" != --build ] || { "
      "printf \"#!/bin/sh\\\\necho ran\\\\n\" > $2/linnet; chmod +x $2/linnet; }\\n' > "
      "$t/bin/cmake; "
      "chmod +x $t/tools/* $t/bin/*; PATH=$t/bin:$PATH $t/tools/linnet --version; "
      "code=$?; rm -rf $t; exit $code";
  const Outcome outcome = run(stage);
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, ::testing::StartsWith("Installing the packages g++\nBuilding "));
  EXPECT_THAT(outcome.output, ::testing::EndsWith("ran\n"));
  EXPECT_THAT(outcome.output, ::testing::Not(::testing::HasSubstr("configured")));
}

// clang-tidy by a stand-in: one file that clang cannot parse, one of those with a finding besides.
TEST(Scripts, TidyNamesWhatItCheckedInPartAndFailsForFindings) {
  const auto tidy = [](const std::string& findings_in) {
    return run(
        "bin=$(mktemp -d); printf '#!/bin/sh\\nfor file; do :; done\\ncase $file in "
        "core/hash.cpp|core/json.cpp) echo \"$file:1:1: error: unknown type [clang-diagnostic]\";; "
        "esac\\ncase $file in " +
        findings_in +
        ") echo \"$file:2:1: error: bad [bugprone-x,-warnings-as-errors]\";; esac\\n' "
        "> $bin/clang-tidy; printf '#!/bin/sh\\n' > $bin/cmake; chmod +x $bin/*; "
        "none=$(git hash-object -t tree /dev/null); "
        "PATH=$bin:$PATH LINNET_SKIP_INSTALL=1 LINNET_CI_BASE=$none .ci/run tidy; "
        "code=$?; rm -rf $bin; exit $code");
  };
  const Outcome passed = tidy("none");
  EXPECT_EQ(passed.code, 0) << passed.output;
  EXPECT_THAT(passed.output,
              ::testing::HasSubstr(" 0 with findings, 2 checked in part because this clang cannot "
                                   "parse all of them: core/"));
  EXPECT_THAT(passed.output, ::testing::HasSubstr("core/json.cpp"));
  const Outcome failed = tidy("core/json.cpp");
  EXPECT_EQ(failed.code, 1) << failed.output;
  EXPECT_THAT(failed.output,
              ::testing::HasSubstr(" 1 with findings, 1 checked in part because this clang cannot "
                                   "parse all of them: core/hash.cpp\n"));
}

// tools/gpu_check over stand-ins for the test program, the program and python's packages. `device`
// is what the doctor says of CUDA; prints the exit code and the results. (What becomes of cases
// that run is the rehearsal's, tests/tools/gpu_check.)
Outcome gpu_check(const std::string& arguments, const std::string& device) {
  return run(
      "bin=$(mktemp -d); printf '#!/bin/sh\necho \"linnet     0.1.0, git abc, $LD_LIBRARY_PATH\"\n"
      "echo \"cuda       " +
      device +
      "\"\n' > $bin/linnet; "
      "printf '#!/bin/sh\nprintf \"CudaSmall.\\n  Good\\n  Bad\\n\"\n' > $bin/test_cuda; "
      "printf '#!/bin/sh\nif [ \"$1\" = -c ]; then echo /packages/nvidia/cudnn/lib; exit; fi\n"
      "exec %s \"$@\"\n' $(command -v python3) > $bin/python3; "
      "chmod +x $bin/*; LD_LIBRARY_PATH=/first PATH=$bin:$PATH tools/gpu_check " +
      arguments +
      " --build $bin --results $bin/out; code=$?; cat $bin/out/*.jsonl $bin/out/*.md; rm -rf $bin; "
      "exit $code");
}

TEST(Scripts, GpuCheckSaysWhatItHadNoTimeFor) {
  const Outcome outcome = gpu_check("correctness --minutes 0", "cuda:0");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.output, ::testing::HasSubstr("CudaSmall.Good\", \"outcome\": \"not run\""));
  EXPECT_THAT(outcome.output, ::testing::HasSubstr("0 timed out, 2 not run"));
}

// After what the environment names, whatever the loader finds by itself.
TEST(Scripts, GpuCheckLooksForLibrariesInPythonsPackages) {
  EXPECT_THAT(gpu_check("correctness --minutes 0", "cuda:0").output,
              ::testing::HasSubstr("git abc, /first:/packages/nvidia/cudnn/lib"));
}

// Before anything is built, too: nobody should build all of it to be told so.
TEST(Scripts, GpuCheckSaysWhatIsLacking) {
  const std::string begin = "bin=$(mktemp -d); printf '#!/bin/sh\\nexit ";
  const std::string end =
      "\\n' > $bin/nvidia-smi; cp $bin/nvidia-smi $bin/linnet; chmod +x $bin/*; "
      "PATH=$bin:$PATH tools/gpu_check bench --build $bin; code=$?; rm -rf $bin; exit $code";
  const Outcome without = run(begin + "9" + end), with = run(begin + "0" + end);
  EXPECT_EQ(without.code, 2);
  EXPECT_THAT(without.output, ::testing::HasSubstr("no GPU to check on (nvidia-smi"));
  EXPECT_THAT(without.output, ::testing::HasSubstr(" lacks test_cuda, which"));
  EXPECT_EQ(with.code, 2);
  EXPECT_THAT(with.output, ::testing::Not(::testing::HasSubstr("no GPU")));
  EXPECT_THAT(with.output, ::testing::HasSubstr(" lacks test_cuda, which"));
}

TEST(Scripts, GpuCheckNeedsAGpu) {
  const Outcome outcome = gpu_check("correctness", "cannot be used: there is no NVIDIA driver");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.output, ::testing::HasSubstr("there is no NVIDIA driver"));
}

// tools/gpu_check bench over a stand-in for the program, by a Python that has no PyTorch.
Outcome gpu_bench(
    const std::string& arguments, const std::string& device,
    const std::string& cudnn = "echo 'error: --cudnn: this build has no cuDNN' >&2; exit 2") {
  return run(
      "bin=$(mktemp -d); touch $bin/test_cuda; cat > $bin/linnet <<'STOP'\n#!/bin/sh\n"
      "case \"$*\" in\n"
      "doctor) printf 'linnet     0.1.0, git abc\ncuda       " +
      device +
      "\n' ;;\n"
      "*cosformer*) echo 'error: out of memory' >&2; exit 1 ;;\n"
      "*--cudnn*) " +
      cudnn +
      " ;;\n"
      "*normalizer=none*) echo '{\"points\": [{\"forward_ms\": 1.5, \"forward_backward_ms\": 4.5, "
      "\"peak_bytes\": 3}]}' ;;\n"
      "'bench conv --taps 63 '*) echo '{\"points\": [{\"forward_ms\": 0.5, "
      "\"forward_backward_ms\": 1.5, \"peak_bytes\": 3}]}' ;;\n"
      "'bench attention'* | 'bench conv'*) echo '{\"points\": [{\"forward_ms\": 2.5, "
      "\"forward_backward_ms\": 7.5, "
      "\"peak_bytes\": 3}]}' ;;\n"
      "'bench train'*) echo '{\"points\": [{\"point\": \"model.attention=linear\", "
      "\"tokens_per_s\": 1234, \"peak_bytes\": 3, \"working_bytes\": 1073741824}]}' ;;\n"
      "esac\nSTOP\n"
      "printf '#!/bin/sh\\nexec python3 -S -E \"$@\"\\n' > $bin/python; "
      "chmod +x $bin/*; PATH=$bin:$PATH tools/gpu_check bench --build $bin --results $bin/out "
      "--python $bin/python " +
      arguments +
      "; code=$?; cat $bin/out/results.jsonl $bin/out/report.md; rm -rf $bin; exit $code");
}

TEST(Scripts, GpuBenchRecordsEveryCase) {
  if (run("command -v python3").code != 0) GTEST_SKIP() << "python3 is not installed";
  const Outcome outcome = gpu_bench("", "cuda:0");
  EXPECT_EQ(outcome.code, 1) << outcome.output;  // one case failed
  for (const char* expected :
       {"linnet     0.1.0, git abc", "cannot import torch (ModuleNotFoundError",
        "\"case\": \"linear\"", "\"parameters\": {\"slots\": 64}",
        "| linear | 16 x 12 x 8192 x 64 | 2.500 | 7.500 | no peers |",
        "| linear, unnormalized | 16 x 12 x 8192 x 64 | 1.500 | 4.500 | no peers |",
        "| conv, 63 taps | 16 x 12 x 8192 x 64 | 0.500 | 1.500 | no peers |",
        "| conv, 4 taps | 16 x 12 x 8192 x 64 | 2.500 | 7.500 | no peers |",
        "| memory of a lavo update | 12 layers, 1 x 8192 tokens, width 768 | - | - | besides ",
        "weights and optimizer state 1024 MiB, 0.50 of the aim; 1234 tokens/s | - | - | - | - |",
        "| cosformer | 16 x 12 x 8192 x 64 | - | - | exit code 1: error: out of memory |",
        "| cuDNN: missing exit code 2: error: --cudnn: this build has no cuDNN | - | - | - | - |",
        "| linear | 1234 | - | - |\n"}) {
    EXPECT_THAT(outcome.output, ::testing::HasSubstr(expected));
  }
}

TEST(Scripts, GpuBenchNamesItsCases) {
  if (run("command -v python3").code != 0) GTEST_SKIP() << "python3 is not installed";
  const Outcome help = run("tools/bench/gpu_bench --help");
  EXPECT_EQ(help.code, 0) << help.output;
  EXPECT_THAT(help.output, ::testing::HasSubstr("Cases: linear unnormalized, linear, abc_mlp, "));
}

TEST(Scripts, GpuBenchHasCudnnBesideSoftmax) {
  if (run("command -v python3").code != 0) GTEST_SKIP() << "python3 is not installed";
  const std::string measured =
      R"(echo '{"points": [{"forward_ms": 2.5, "forward_backward_ms": 7.5, "peak_bytes": 3}, )"
      R"({"forward_ms": 0.5, "forward_backward_ms": 1.5, "peak_bytes": 3}]}')";
  EXPECT_THAT(
      gpu_bench("", "cuda:0", measured).output,
      ::testing::HasSubstr("| softmax | 2 x 12 x 4096 x 64 | 2.500 | 7.500 | cuDNN | 0.500 | "
                           "1.500 | 0.20 | 0.20 |"));
}

TEST(Scripts, GpuBenchSaysWhatItHadNoTimeFor) {
  if (run("command -v python3").code != 0) GTEST_SKIP() << "python3 is not installed";
  const Outcome outcome = gpu_bench("--minutes 0", "cuda:0");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.output,
              ::testing::HasSubstr("| train: not run: the 0 minutes were used up |"));
  EXPECT_EQ(gpu_bench("", "cannot be used: there is no NVIDIA driver").code, 2);
}

// tools/test_costs over a stand-in for ctest that lists one test, which runs `command`.
Outcome test_costs(const std::string& command, const std::string& limit) {
  return run(
      "bin=$(mktemp -d); cat > $bin/ctest <<'STOP'\n#!/bin/sh\n"
      "cat <<'JSON'\n{\"tests\": [{\"name\": \"Subject\", \"command\": [\"sh\", \"-c\", \"" +
      command +
      "\"], \"properties\": [{\"name\": \"ENVIRONMENT\", \"value\": [\"COST=1\"]}]}]}\nJSON\n"
      "STOP\nchmod +x $bin/ctest; PATH=$bin:$PATH tools/test_costs $bin --limit " +
      limit + "; code=$?; rm -rf $bin; exit $code");
}

TEST(Scripts, TestCostsAreProcessorTime) {
  if (run("command -v python3").code != 0) GTEST_SKIP() << "python3 is not installed";
  const Outcome waits = test_costs("test $COST = 1 && sleep 0.3", "0.2");
  EXPECT_EQ(waits.code, 0) << waits.output;
  EXPECT_THAT(waits.output, ::testing::HasSubstr("  Subject\n1 tests, 0.0 processor seconds"));
  const Outcome works = test_costs("i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done", "0");
  EXPECT_EQ(works.code, 1);
  EXPECT_THAT(works.output, ::testing::HasSubstr("more than 0 s: Subject\n"));
  const Outcome fails = test_costs("exit 3", "9");
  EXPECT_EQ(fails.code, 1);
  EXPECT_THAT(fails.output, ::testing::HasSubstr("failed: Subject\n"));
}

// ptxas's output for one kernel, under a folder that stands for a build.
TEST(Scripts, SpillsMustBeListed) {
  const auto check = [](int stores, int loads, const std::string& kernel = "_ZN6linnet6kernelEv") {
    return run(
        "build=$(mktemp -d); cat > $build/a.cu.o.ptxas <<'STOP'\n"
        "ptxas info    : Compiling entry function '" +
        kernel + "' for 'sm_1'\nptxas info    : Function properties for " + kernel +
        "\n    8 bytes stack frame, " + std::to_string(stores) + " bytes spill stores, " +
        std::to_string(loads) +
        " bytes spill loads\nSTOP\n"
        "tools/check_spills $build; code=$?; "
        "rm -rf $build; exit $code");
  };
  const Outcome spilling = check(8, 4);
  EXPECT_EQ(spilling.code, 1);
  EXPECT_THAT(spilling.output, ::testing::HasSubstr("> sm_1 | 12 | linnet::kernel()\n"));
  const Outcome clean = check(0, 0);
  EXPECT_EQ(clean.code, 0) << clean.output;
  EXPECT_THAT(clean.output, ::testing::HasSubstr("sm_1: 1 kernels, 0 functions that spill"));
  EXPECT_EQ(check(8, 4, "_ZN3cub6kernelEv").code, 0) << "the toolkit's own kernels may spill";
}

}  // namespace
}  // namespace linnet
