// Devices and pipes where a file is expected are refused, and nothing waits for them; a recipe may
// come out of a pipe.
#include <sys/stat.h>

#include "tests/tools/cli.h"

namespace linnet::test {
namespace {

using testing::HasSubstr;

class OddFiles : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  }
};

TEST_F(OddFiles, AreRefusedAsDataTokenizersAndCases) {
  ASSERT_EQ(::mkfifo((folder_ / "text/e.txt").c_str(), 0600), 0);
  create_directories(folder_ / "words");
  for (const auto& [path, kind] : {std::pair("pipe", "a pipe"), std::pair("/dev/zero", "a device"),
                                   std::pair("words", "a directory")}) {
    const std::string found = concat(path, ": a regular file was expected, and it is ", kind);
    if (kind != std::string("a directory")) {
      expect_error({"data", "inspect", path}, 1, found);
      expect_error({"train", "tiny.yaml", "--dry-run", concat("data.path=", path)}, 1, found);
      expect_error({"train", "tiny.yaml", "--dry-run", "data.path=text",
                    concat("data.train=[", folder_ / path, "]"), "data.validation=[a.txt]",
                    "data.test=[b.txt]"},
                   1, kind);
    }
    expect_error({"train", "tiny.yaml", "--dry-run", "data.tokenizer.kind=word",
                  concat("data.tokenizer.path=", path)},
                 1, found);
    expect_error({"attention", "run", path, "--out", "out.h5"}, 1, found);
  }
  expect_error({"data", "inspect", "text"}, 1, "text/e.txt: a regular file was expected");
}

TEST_F(OddFiles, AreRefusedAsPartsOfARun) {
  ASSERT_EQ(linnet({"train", "tiny.yaml", "--out", "run"}).code, 0);
  const std::string weights = folder_ / "run/checkpoints/step-00000004/weights.h5";
  file_system().remove(weights);
  ASSERT_EQ(::mkfifo(weights.c_str(), 0600), 0);
  const Outcome older = linnet({"evaluate", "run"});
  EXPECT_EQ(older.code, 0) << older.err;
  EXPECT_THAT(older.err, HasSubstr("is skipped: run/checkpoints/step-00000004/weights.h5"));
  for (const char* name : {"metrics.jsonl", "run.lock"}) {
    const std::string path = folder_ / concat("run/", name);
    file_system().remove(path);
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  }
  expect_error({"report", "run"}, 1, "run/metrics.jsonl: a regular file was expected");
  expect_error({"train", "tiny.yaml", "--out", "run"}, 1, "run/run.lock: a regular file");
}

TEST_F(OddFiles, ACaseIsNotItsOwnResult) {
  folder_.write("case.h5", "kept");
  expect_error({"attention", "run", "case.h5", "--out", "./case.h5"}, 2, "is the case itself");
  EXPECT_EQ(read_file(folder_ / "case.h5"), "kept");
}

TEST_F(OddFiles, ARecipeMayComeOutOfAPipe) {
  expect_error({"recipe", "check", "/dev/zero"}, 2, "it is a device");
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const std::string recipe = read_file(folder_ / "tiny.yaml");
  ASSERT_EQ(::write(ends[1], recipe.data(), recipe.size()), static_cast<ssize_t>(recipe.size()));
  ::close(ends[1]);
  const Outcome outcome = linnet({"recipe", "check", concat("/dev/fd/", ends[0])});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  ::close(ends[0]);
}

}  // namespace
}  // namespace linnet::test
