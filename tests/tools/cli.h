// The program as a user and a script see it, in a folder with small texts and a recipe.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "core/files.h"
#include "tests/data/temporary_folder.h"

namespace linnet::test {

// The program lies beside the folder of the tests.
inline std::string program() {
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
  // Starts the program in the folder, stdout and stderr going to files; stdout to the descriptor
  // `stdout_to` instead where it is given.
  pid_t start(std::vector<std::string> arguments, int stdout_to = -1) {
    ++calls_;
    const pid_t child = ::fork();
    if (child != 0) return child;
    const std::string out = folder_ / concat("stdout", calls_),
                      err = folder_ / concat("stderr", calls_);
    if (::freopen(out.c_str(), "w", stdout) == nullptr ||
        ::freopen(err.c_str(), "w", stderr) == nullptr || ::chdir(folder_.path().c_str()) != 0 ||
        (stdout_to >= 0 && ::dup2(stdout_to, STDOUT_FILENO) < 0)) {
      ::_exit(126);
    }
    arguments.insert(arguments.begin(), program());
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  Outcome wait(pid_t child) { return wait(child, calls_); }
  // `call`: calls_ after the child was started.
  Outcome wait(pid_t child, int call) {
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    Outcome outcome;
    if (WIFEXITED(status)) outcome.code = WEXITSTATUS(status);
    outcome.out = read_file(folder_ / concat("stdout", call));
    outcome.err = read_file(folder_ / concat("stderr", call));
    if (WIFSIGNALED(status)) outcome.err += concat("(ended by signal ", WTERMSIG(status), ")\n");
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
    EXPECT_THAT(line, testing::HasSubstr(part)) << command;
    EXPECT_EQ(outcome.err.find("error: ", at + 1), std::string::npos) << command << outcome.err;
  }

  TemporaryFolder folder_;
  int calls_ = 0;
};

}  // namespace linnet::test
