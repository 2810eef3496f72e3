// The program's commands: exit codes, messages, what is on stdout.
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "core/comm/interfaces.h"
#include "core/comm/transport.h"
#include "core/cuda/backend.h"
#include "core/json.h"
#include "core/sanitizers.h"
#include "tests/data_path.h"
#include "tests/tools/cli.h"

namespace linnet {
namespace {

using test::Cli;
using test::Outcome;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST_F(Cli, TrainsEvaluatesAndGenerates) {
  const Outcome trained = linnet({"train", "tiny.yaml", "--out", "run"});
  EXPECT_EQ(trained.code, 0) << trained.err;
  EXPECT_EQ(trained.out, "");
  EXPECT_THAT(trained.err, AllOf(HasSubstr("step 4/4  loss "),
                                 HasSubstr("done at step 4: reached train.max_steps 4;")));
  EXPECT_TRUE(exists(folder_ / "run/report.html"));

  const Outcome json = linnet({"evaluate", "run", "--json", "--context", "8,16"});
  EXPECT_EQ(json.code, 0) << json.err;
  const JsonValue scores = parse_json(json.out, "stdout");
  EXPECT_EQ(scores.at("scores").elements().size(), 2U);
  EXPECT_GT(scores.at("scores").elements()[0].at("perplexity").number(), 1);
  EXPECT_EQ(std::count(json.out.begin(), json.out.end(), '\n'), 1);
  EXPECT_THAT(linnet({"evaluate", "run", "--split", "test", "--carry-state"}).out,
              HasSubstr("test in chunks of 16 (streaming): perplexity "));
  expect_error({"evaluate", "run", "--split", "tst"}, 2, "unknown split 'tst'");
  for (const char* stride : {"0", "17", "-1"}) {
    expect_error({"evaluate", "run", "--context", "32,16", "--stride", stride}, 2,
                 concat("the stride must be 1 to the context, ", stride[0] == '1' ? 16 : 32,
                        ": got ", stride));
  }

  const std::vector<std::string> greedy = {"generate", "run", "--prompt",      "line ",
                                           "--tokens", "9",   "--temperature", "0"};
  const Outcome text = linnet(greedy);
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, testing::StartsWith("line "));
  EXPECT_THAT(text.err, HasSubstr("checkpoint run/checkpoints/step-00000004 (step 4)\n"));
  EXPECT_EQ(linnet(greedy).out, text.out);
  const Outcome empty = linnet({"generate", "run", "--prompt", "", "--json", "--seed", "4"});
  EXPECT_EQ(empty.code, 0) << empty.err;
  const JsonValue generated = parse_json(empty.out, "stdout");
  EXPECT_EQ(generated.at("tokens").elements().size(), 8U);
  EXPECT_EQ(generated.at("checkpoint").text(), "run/checkpoints/step-00000004");
  expect_error({"generate", "run", "--prompt", "a\xff"}, 2, "not valid UTF-8 at its byte 1");
  expect_error({"generate", "run", "--prompt", "a", "--top-k", "-1"}, 2, "top-k");
  expect_error({"generate", "run", "--prompt", "a", "--top-p", "0"}, 2, "top-p");
  expect_error({"generate", "run"}, 2, "--prompt, --prompt-file or --prompts is required");

  const std::string weights = folder_ / "run/checkpoints/step-00000004/weights.h5";
  std::string bytes = read_file(weights);
  bytes[bytes.size() / 2] ^= 1;
  write_file(weights, bytes);
  expect_error({"evaluate", "run/checkpoints/step-00000004"}, 1, "weights.h5 is damaged");
  const Outcome older = linnet({"evaluate", "run"});
  EXPECT_EQ(older.code, 0);
  EXPECT_THAT(older.err, HasSubstr("weights.h5 is damaged"));
  EXPECT_THAT(older.out, HasSubstr("step-00000002"));
}

TEST_F(Cli, ResumesAsAsked) {
  EXPECT_EQ(linnet({"train", "tiny.yaml"}).code, 0);
  EXPECT_TRUE(exists(folder_ / "runs/tiny/checkpoints"));
  const Outcome again = linnet({"train", "tiny.yaml"});
  EXPECT_EQ(again.code, 0);
  EXPECT_THAT(again.err,
              AllOf(HasSubstr("runs/tiny is finished: it reached step 4 and train.max_steps 4"),
                    Not(HasSubstr("loss "))));
  EXPECT_EQ(linnet({"train", "tiny.yaml", "--resume", "never"}).code, 0);
  EXPECT_TRUE(exists(folder_ / "runs/tiny-2/checkpoints"));
  expect_error({"train", "tiny.yaml", "--out", "runs/tiny", "--resume", "never"}, 2,
               "already holds a run");
  expect_error({"train", "tiny.yaml", "model.width=16"}, 2, "'model.width' differs");
  const Outcome more = linnet({"train", "tiny.yaml", "--resume", "runs/tiny", "train.max_steps=6"});
  EXPECT_EQ(more.code, 0);
  EXPECT_THAT(more.err, HasSubstr("continuing runs/tiny at step 4"));
  EXPECT_TRUE(exists(folder_ / "runs/tiny/checkpoints/step-00000006"));
}

TEST_F(Cli, ADryRunMakesNothing) {
  const Outcome dry = linnet({"train", "tiny.yaml", "--dry-run", "--out", "run"});
  EXPECT_EQ(dry.code, 0) << dry.err;
  EXPECT_THAT(
      dry.err,
      AllOf(HasSubstr("attention: {name: linear, "), HasSubstr("model: decoder, 1 layers"),
            HasSubstr("loss: cross-entropy of the next token"),
            HasSubstr("update: 4 examples of 16 tokens (64 in all) in 1 micro-batch; adamw, "
                      "lr 0.01, schedule constant"),
            HasSubstr("ends at: train.max_steps 4"), HasSubstr("loss 5."),
            HasSubstr("this would start in run")));
  const Outcome none = linnet({"train", "tiny.yaml", "--dry-run", "train.max_steps=0"});
  EXPECT_EQ(none.code, 0);
  EXPECT_THAT(none.err, AllOf(HasSubstr("no update, as train.max_steps 0 asks for none"),
                              Not(HasSubstr("loss 5."))));
  EXPECT_FALSE(exists(folder_ / "run"));
  EXPECT_FALSE(exists(folder_ / "runs"));
}

TEST_F(Cli, ADryRunSaysWhatAResumeWouldDo) {
  ASSERT_EQ(linnet({"train", "tiny.yaml", "--out", "run"}).code, 0);
  const std::string log = read_file(folder_ / "run/log.txt");
  EXPECT_THAT(linnet({"train", "tiny.yaml", "--out", "run", "--dry-run", "train.max_steps=9"}).err,
              HasSubstr("this would continue run from its step-00000004"));
  EXPECT_EQ(read_file(folder_ / "run/log.txt"), log);
  expect_error({"train", "tiny.yaml", "--out", "run", "--dry-run", "--resume", "never"}, 2,
               "already holds a run");
  expect_error({"train", "tiny.yaml", "--out", "run", "--dry-run", "seed=9"}, 2, "'seed' differs");
}

TEST_F(Cli, SavesAtASignalAndExitsWithThree) {
  for (const int signal : {SIGTERM, SIGUSR1}) {
    const std::string run = concat("run", signal);
    const pid_t child = start({"train", "tiny.yaml", "--out", run, "train.max_steps=1000000",
                               "checkpoint.every_steps=0"});
    const std::string metrics = join_path(folder_ / run, "metrics.jsonl");
    for (int i = 0; i < 1000 && (!exists(metrics) || file_bytes(metrics) == 0); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    ASSERT_EQ(::kill(child, signal), 0);
    const Outcome outcome = wait(child);
    EXPECT_EQ(outcome.code, 3) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("run again with --resume auto"));
    const Outcome resumed = linnet({"train", "tiny.yaml", "--out", run});
    EXPECT_EQ(resumed.code, 0) << resumed.err;
  }
}

// The value of a hexadecimal line, such as "SigBlk:\t0000000000004000", of
// /proc/PID/task/TID/status.
uint64_t signal_mask(const std::string& status, const std::string& name) {
  const size_t at = status.find(name + ":\t");
  EXPECT_NE(at, std::string::npos) << status;
  return std::stoull(status.substr(at + name.size() + 2, 16), nullptr, 16);
}

TEST_F(Cli, NoSignalHandlerCanInterruptAComputation) {
  const pid_t child = start({"train", "tiny.yaml", "--out", "run", "train.max_steps=1000000",
                             "--threads", "3", "checkpoint.every_steps=0"});
  const std::string metrics = folder_ / "run/metrics.jsonl";
  for (int i = 0; i < 1000 && (!exists(metrics) || file_bytes(metrics) == 0); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  // A signal that a thread causes itself, such as SIGSEGV, is no interruption.
  uint64_t asynchronous = (uint64_t{1} << 31) - 1;
  for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS}) {
    asynchronous &= ~(uint64_t{1} << (own - 1));
  }
  const std::string tasks = concat("/proc/", child, "/task");
  int threads = 0;
  for (const auto& task : std::filesystem::directory_iterator(tasks)) {
    std::ifstream file(task.path() / "status");
    const std::string status{std::istreambuf_iterator<char>(file), {}};
    EXPECT_EQ(signal_mask(status, "SigCgt") & ~signal_mask(status, "SigBlk") & asynchronous, 0U)
        << status;
    ++threads;
  }
  EXPECT_GE(threads, 4) << "computing, loading and watching";
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  wait(child);
}

TEST_F(Cli, DivergenceEndsWithOne) {
  expect_error({"train", "tiny.yaml", "--out", "run", "optim.lr=1e30", "train.max_steps=50"}, 1,
               "training diverged: 5 updates in a row");
}

TEST_F(Cli, ShownRecipesLoadToThemselves) {
  const Outcome shown =
      linnet({"recipe", "show", "tiny.yaml", "model.attention={name: lavo, rank: 4}"});
  EXPECT_EQ(shown.code, 0);
  folder_.write("shown.yaml", shown.out);
  EXPECT_EQ(linnet({"recipe", "show", "shown.yaml"}).out, shown.out);
}

TEST_F(Cli, EveryKeyOfARecipeIsExplained) {
  const Outcome all = linnet({"recipe", "schema"});
  EXPECT_EQ(all.code, 0) << all.err;
  EXPECT_THAT(all.out, AllOf(HasSubstr("\noptim "), HasSubstr("\n  clip_norm "),
                             HasSubstr("\n    warmup_steps "), HasSubstr("above 0, required")));
  const Outcome part = linnet({"recipe", "schema", "optim.schedule"});
  EXPECT_THAT(part.out, AllOf(testing::StartsWith("kind "), HasSubstr("\nwarmup_steps "),
                              Not(HasSubstr("clip_norm"))));
}

// With what they generate; tests/recipes/every_recipe_test.cpp checks the papers' tables, which
// generate much. Every eighth where a sanitizer watches: generating is slow there.
TEST_F(Cli, AllSmallRecipesOfTheCheckoutAreValid) {
  constexpr size_t kStride = kAddressSanitizer || kThreadSanitizer ? 8 : 1;
  const std::string recipes = join_path(test::source_dir(), "recipes");
  const JsonValue listed = parse_json(linnet({"recipe", "list", recipes, "--json"}).out, "stdout");
  std::vector<std::string> command = {"recipe", "check", "--allow-missing-data"};
  size_t small = 0;
  for (const JsonValue& recipe : listed.at("recipes").elements()) {
    EXPECT_EQ(recipe.at("error").text(), "");
    const std::string path = recipe.at("path").text();
    const bool of_table = read_file(path).find("\npublished:") != std::string::npos;
    if (!of_table && small++ % kStride == 0) command.push_back(path);
  }
  EXPECT_GE(small, 16U);
  remove_all(folder_ / "text");  // the rest is too little to be taken for a checkout
  const Outcome outcome = linnet(command);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST_F(Cli, AttentionAndDoctorAnswer) {
  EXPECT_THAT(linnet({"attention", "list"}).out, AllOf(HasSubstr("softmax"), HasSubstr("lavo")));
  const std::string text = linnet({"doctor"}).out;
  EXPECT_THAT(text,
              AllOf(HasSubstr("products   "), HasSubstr("HDF5 1."), HasSubstr("\ntokens     "),
                    HasSubstr(kCuda ? "\ncuda       runtime " : "\ncuda       not in this build")));
  const JsonValue doctor = parse_json(linnet({"doctor", "--json"}).out, "stdout");
  EXPECT_GT(doctor.at("machine").at("memory_bytes").integer(), 0);
  EXPECT_GE(doctor.at("threads").integer(), 1);
  EXPECT_THAT(text, HasSubstr(concat("\ncpu        ", doctor.at("cpu").text(), ", ")));
  EXPECT_EQ(doctor.at("cuda").at("backend").text(), name_of(kCudaBackend));
  EXPECT_THAT(text,
              HasSubstr(has_gloo() ? "\nranks      several processes by Gloo; interfaces "
                                   : "\nranks      one process alone: for several, install "));
  EXPECT_EQ(doctor.at("ranks").at("gloo").boolean(), has_gloo());
  EXPECT_EQ(doctor.at("ranks").at("interfaces").elements().size(), network_interfaces().size());
}

TEST_F(Cli, DataAreListedInspectedAndPrepared) {
  EXPECT_THAT(linnet({"data", "list"}).out, HasSubstr("listops"));
  // Of a kind without a tokenizer.
  const std::string sizes =
      "data.listops={min_length: 5, max_length: 20, train_examples: 9, validation_examples: 3, "
      "test_examples: 2}";
  const Outcome prepared = linnet({"data", "prepare", "listops", "--out", "ops", "--set", sizes});
  EXPECT_EQ(prepared.code, 0) << prepared.err;
  EXPECT_THAT(linnet({"data", "inspect", "ops"}).out, HasSubstr("(kind listops)"));
  expect_error({"data", "prepare", "listops", "--out", "ops", "--tokenizer", "word"}, 2,
               "'tokenizer' belongs to");
  folder_.write("rows.tsv", "text\tlabel\na\t\x1b[1m\nb\tgood\nc\t\x1b[1m\nd\tgood\n");
  const Outcome rows = linnet({"data", "inspect", "rows.tsv"});
  EXPECT_EQ(rows.code, 0) << rows.err;
  EXPECT_THAT(rows.out, AllOf(HasSubstr("2 classes: \\x1b[1m, good"), HasSubstr("(kind tsv)")));
  // A folder by class without splits is like any folder of texts, until its kind is named.
  for (const char* path : {"classes/a/1.txt", "classes/a/2.txt", "classes/b/1.txt"}) {
    create_directories(folder_ / parent_path(path));
    folder_.write(path, "words\n");
  }
  const Outcome classes = linnet(
      {"data", "inspect", "classes", "--set", "data.kind=folder", "--set", "data.test_fraction=0"});
  EXPECT_EQ(classes.code, 0) << classes.err;
  EXPECT_THAT(classes.out, AllOf(HasSubstr("2 classes: a, b"), HasSubstr("(kind folder)")));
}

}  // namespace
}  // namespace linnet
