// The program as a user and a script see it: exit codes, messages, what is on stdout.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <thread>

#include "core/cuda/backend.h"
#include "core/files.h"
#include "core/json.h"
#include "tests/data/temporary_folder.h"
#include "tests/data_path.h"

namespace linnet {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// The program lies beside the folder of the tests.
std::string program() {
  char path[4096];
  const ssize_t bytes = ::readlink("/proc/self/exe", path, sizeof(path));
  return join_path(parent_path(std::string(path, static_cast<size_t>(bytes))), "linnet");
}

struct Outcome {
  int code = -1;  // -1: ended by a signal
  std::string out, err;
};

class Cli : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string text;
    for (int i = 0; i < 60; ++i) text += concat("line ", i, " of a small text\n");
    for (const char* name : {"text/a.txt", "text/b.txt", "text/c.txt", "text/d.txt"}) {
      folder_.write(name, text);
    }
    folder_.write("tiny.yaml", R"(
name: tiny
seed: 3
data: {kind: text, path: text, context: 16, cache: false, validation_fraction: 0.25,
       test_fraction: 0.25}
model: {kind: decoder, layers: 1, width: 8, heads: 2, attention: {name: linear}}
optim: {kind: adamw, lr: 0.01}
train: {max_steps: 4, tokens_per_update: 64, micro_batch: 4, log_every_steps: 1}
checkpoint: {every_steps: 2}
generate: {tokens: 8}
)");
  }
  // Starts the program in the folder, stdout and stderr going to files.
  pid_t start(std::vector<std::string> arguments) {
    ++calls_;
    const pid_t child = ::fork();
    if (child != 0) return child;
    const std::string out = folder_ / concat("stdout", calls_),
                      err = folder_ / concat("stderr", calls_);
    if (::freopen(out.c_str(), "w", stdout) == nullptr ||
        ::freopen(err.c_str(), "w", stderr) == nullptr || ::chdir(folder_.path().c_str()) != 0) {
      ::_exit(126);
    }
    arguments.insert(arguments.begin(), program());
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  Outcome wait(pid_t child) {
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    Outcome outcome;
    if (WIFEXITED(status)) outcome.code = WEXITSTATUS(status);
    outcome.out = read_file(folder_ / concat("stdout", calls_));
    outcome.err = read_file(folder_ / concat("stderr", calls_));
    return outcome;
  }
  Outcome linnet(const std::vector<std::string>& arguments) { return wait(start(arguments)); }
  // Expects exit code `code` and one line that begins with "error: " and holds `part`.
  void expect_error(const std::vector<std::string>& arguments, int code, const std::string& part) {
    const Outcome outcome = linnet(arguments);
    std::string command;
    for (const std::string& argument : arguments) command += argument + " ";
    EXPECT_EQ(outcome.code, code) << command << outcome.err;
    EXPECT_EQ(outcome.out, "") << command;
    const size_t at = outcome.err.find("error: ");
    ASSERT_NE(at, std::string::npos) << command << outcome.err;
    const std::string line = outcome.err.substr(at, outcome.err.find('\n', at) - at);
    EXPECT_THAT(line, HasSubstr(part)) << command;
    EXPECT_EQ(outcome.err.find("error: ", at + 1), std::string::npos) << command << outcome.err;
  }

  test::TemporaryFolder folder_;
  int calls_ = 0;
};

TEST_F(Cli, NamesWhatWasMeant) {
  expect_error({}, 2, "expected a command: one of train, evaluate");
  expect_error({"trian", "tiny.yaml"}, 2, "did you mean 'train'?");
  expect_error({"attention", "lst"}, 2, "did you mean 'list'?");
  expect_error({"train", "tiny.yaml", "--resum", "auto"}, 2, "did you mean '--resume'?");
  expect_error({"evaluate", "run", "--contxt=8"}, 2, "did you mean '--context'?");
  expect_error({"evaluate", "run", "--context", "many"}, 2, "many");
  expect_error({"train"}, 2, "RECIPE is required");
  expect_error({"train", "tiny.yaml", "train.max_stps=3"}, 2, "did you mean 'max_steps'?");
  expect_error({"train", "tiny.yaml", "tran.max_steps=3"}, 2, "did you mean 'train'?");
  expect_error({"train", "tiny.yaml", "max_steps"}, 2, "key.path=value");
  expect_error({"train", "tiny.yaml", "model.attention.name=liner"}, 2, "'linear'");
  expect_error({"train", "tiny.yaml", "model.width=-8"}, 2, "width");
  expect_error({"train", "tiny.yaml", "--device", "gpu"}, 2, "gpu");
  expect_error({"train", "tiny.yaml", "train.lr=1"}, 2, "did you mean 'optim.lr'?");
  expect_error({"attention", "check", "sofmax"}, 2, "'softmax'");
  folder_.write("typo.yaml", "trian: {max_steps: 3}\n");
  const Outcome typo = linnet({"recipe", "check", "typo.yaml"});
  EXPECT_EQ(typo.code, 2);
  EXPECT_THAT(typo.err, AllOf(HasSubstr("typo.yaml:1:1: "), HasSubstr("did you mean 'train'?")));
}

TEST_F(Cli, NumbersOutOfRangeAreRefusedWithTheirRange) {
  for (const char* threads : {"0", "-1", "1025"}) {
    for (const std::vector<std::string>& command : {std::vector<std::string>{"train", "tiny.yaml"},
                                                    {"evaluate", "run"},
                                                    {"generate", "run", "--prompt", "a"},
                                                    {"bench", "train", "tiny.yaml"},
                                                    {"bench", "attention"}}) {
      std::vector<std::string> arguments = command;
      arguments.insert(arguments.end(), {"--threads", threads});
      expect_error(arguments, 2, concat("threads must be 1 to 1024, got ", threads));
    }
  }
  expect_error({"attention", "run", "a.h5", "--out", "b.h5", "--chunk", "-1"}, 2,
               "--chunk: must be 1 or more, found -1");
  expect_error({"bench", "train", "tiny.yaml", "--steps", "0"}, 2,
               "--steps: must be 1 or more, found 0");
  expect_error({"bench", "attention", "--runs", "0"}, 2, "--runs: must be 1 or more, found 0");
  expect_error({"generate", "run", "--prompt", "a", "--seed", "-1"}, 2,
               "--seed: must be 0 or more, found -1");
  expect_error({"generate", "run", "--prompt", "a", "--seed", "x"}, 2, "not a number");
}

TEST_F(Cli, ChecksRecipesWithOverrides) {
  EXPECT_EQ(linnet({"recipe", "check", "tiny.yaml", "model.width=16"}).out, "tiny.yaml: ok\n");
  const Outcome refused = linnet({"recipe", "check", "model.width=-4", "tiny.yaml"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_EQ(refused.err, "error: command line: 'model.width' must be 1 to 65536, found -4\n");
  expect_error({"recipe", "check", "model.width=16"}, 2, "RECIPE is required");
  folder_.write("a=b.yaml", read_file(folder_ / "tiny.yaml"));
  EXPECT_EQ(linnet({"recipe", "check", "a=b.yaml"}).out, "a=b.yaml: ok\n");
}

TEST_F(Cli, SaysWhatIsMissing) {
  expect_error({"train", "no.yaml"}, 2, "there is no recipe file no.yaml");
  expect_error({"recipe", "show", "no.yaml"}, 2, "there is no recipe file no.yaml");
  for (const char* command : {"show", "check"}) {
    expect_error({"recipe", command, "text"}, 2,
                 "text is a folder, not a recipe file; 'linnet recipe list text' lists");
  }
  expect_error({"recipe", "list", "nowhere"}, 2, "there is no folder nowhere");
  expect_error({"recipe", "list"}, 2,
               "there is no folder recipes; name the folder of your recipes");
  expect_error({"recipe", "list", "tiny.yaml"}, 2, "there is no folder tiny.yaml");
  expect_error({"train", "tiny.yaml", "data.path=nowhere", "--out", "run"}, 1,
               "there are no data at 'nowhere' (data.path); say where they are with data.path=DIR");
  expect_error({"evaluate", "nowhere"}, 2, "neither a run directory");
  expect_error({"generate", "nowhere", "--prompt", "a"}, 2, "neither a run directory");
  // Before any data are looked at.
  expect_error({"train", "tiny.yaml", "--resume", "sometimes", "data.path=nowhere"}, 2,
               "--resume must be auto, never or a run directory with a checkpoint, found "
               "'sometimes', which does not exist");
  expect_error({"train", "tiny.yaml", "--resume", "text", "data.path=nowhere"}, 2,
               "found 'text', which has none");
  EXPECT_FALSE(exists(folder_ / "run"));
  expect_error({"data", "inspect", "nowhere"}, 1, "nowhere does not exist");
  expect_error({"data", "prepare", "text"}, 2, "--from is required for kind text");
  expect_error({"data", "prepare", "text", "--from", "nowhere"}, 1, "--from nowhere does not");
  expect_error({"data", "prepare", "text", "--from", "text", "--tokenizer", "wrod"}, 2,
               "command line: 'tokenizer.kind' cannot be 'wrod'; did you mean 'word'?");
  expect_error({"data", "prepare", "text", "--from", "text", "--tokenizer", "gpt2"}, 2,
               "--tokenizer gpt2 needs --tokenizer-path");
  const Outcome unknown = linnet({"data", "prepare", "foo", "--from", "text"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err,
              AllOf(HasSubstr("'foo' is no kind of data; what can be prepared is"),
                    HasSubstr("\n  wikitext    WikiText-2"), HasSubstr("\n  listops     ListOps")));
}

TEST_F(Cli, ExplainsItself) {
  const std::vector<std::vector<std::string>> commands = {{},
                                                          {"train"},
                                                          {"evaluate"},
                                                          {"generate"},
                                                          {"attention"},
                                                          {"attention", "check"},
                                                          {"recipe"},
                                                          {"recipe", "show"},
                                                          {"bench"},
                                                          {"bench", "train"},
                                                          {"data"},
                                                          {"report"},
                                                          {"doctor"}};
  for (std::vector<std::string> command : commands) {
    command.push_back("--help");
    const Outcome help = linnet(command);
    EXPECT_EQ(help.code, 0);
    EXPECT_THAT(help.out, HasSubstr("Usage: linnet"));
    EXPECT_EQ(help.err, "");
  }
  EXPECT_THAT(linnet({"--help"}).out, HasSubstr("Exit codes: 0 done"));
  EXPECT_EQ(linnet({"--version"}).code, 0);
}

// All "--option" in a text.
std::set<std::string> options_in(const std::string& text) {
  std::set<std::string> options;
  const std::regex option("--[a-z][a-z-]+");
  for (std::sregex_iterator at(text.begin(), text.end(), option), end; at != end; ++at) {
    options.insert(at->str());
  }
  return options;
}

TEST_F(Cli, TheReadmeShowsWhatHelpSays) {
  const std::string readme = read_file(join_path(test::source_dir(), "README.md"));
  const size_t begin = readme.find("    linnet train RECIPE"), end = readme.find("\nA recipe, ");
  ASSERT_NE(begin, std::string::npos);
  ASSERT_NE(end, std::string::npos);
  const std::string section = readme.substr(begin, end - begin);
  const std::string synopsis = section.substr(0, section.find("\n\n"));
  std::set<std::string> known;
  const std::vector<std::string> single = {"train", "evaluate", "generate", "report", "doctor"};
  const std::vector<std::pair<std::string, std::vector<std::string>>> groups = {
      {"attention", {"list", "show", "check", "run"}},
      {"data", {"list", "inspect", "prepare"}},
      {"recipe", {"list", "show", "check", "schema"}},
      {"bench", {"train", "attention"}}};
  const auto compare = [&](std::vector<std::string> command, const std::string& line) {
    std::string shown = synopsis.substr(std::min(synopsis.size(), synopsis.find(line)));
    ASSERT_NE(shown, "") << line;
    shown = shown.substr(0, shown.find("\n    linnet ", 1));
    command.push_back("--help");
    const std::string help = linnet(command).out;
    for (const std::string& option : options_in(help.substr(0, help.find("Exit codes")))) {
      known.insert(option);
      // What many commands have is said once, below.
      const bool common =
          option == "--help" || option == "--json" || option == "--device" || option == "--threads";
      EXPECT_THAT(common ? section : shown, HasSubstr(option)) << line;
    }
  };
  for (const std::string& name : single) compare({name}, "    linnet " + name);
  for (const auto& [name, below] : groups) {
    for (const std::string& part : below) compare({name, part}, "    linnet " + name + " ");
  }
  for (const std::string& option : options_in(synopsis))
    EXPECT_TRUE(known.contains(option)) << option;
}

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
              HasSubstr("test at context 16 (streaming): perplexity "));
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
  expect_error({"generate", "run"}, 2, "--prompt is required");

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
  // What a thread does to itself, such as SIGSEGV, is no interruption.
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
  expect_error({"recipe", "schema", "optim.schedul"}, 2, "did you mean 'schedule'?");
  expect_error({"recipe", "schema", "seed"}, 2, "there is no section 'seed' in a recipe; expected");
  expect_error({"recipe", "schema", "model.attention"}, 2, "'linnet attention show NAME'");
}

TEST_F(Cli, AllRecipesOfTheCheckoutAreValid) {
  const std::string recipes = join_path(test::source_dir(), "recipes");
  const JsonValue listed = parse_json(linnet({"recipe", "list", recipes, "--json"}).out, "stdout");
  std::vector<std::string> command = {"recipe", "check"};
  for (const JsonValue& recipe : listed.at("recipes").elements()) {
    EXPECT_EQ(recipe.at("error").text(), "");
    command.push_back(recipe.at("path").text());
  }
  EXPECT_GE(command.size(), 6U);
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
  EXPECT_THAT(linnet({"data", "list"}).out, HasSubstr("listops"));
}

}  // namespace
}  // namespace linnet
