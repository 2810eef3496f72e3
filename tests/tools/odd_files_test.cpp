// Devices and pipes where a file is expected are refused, and nothing waits for them; a recipe may
// come out of a pipe.
#include <sys/stat.h>

#include <algorithm>

#include "recipes/engine/recipe_name.h"
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
  // The command with such a path before `after`.
  const auto piped = [&](const std::string& recipe, std::vector<std::string> command,
                         const std::vector<std::string>& after = {}) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    EXPECT_EQ(::write(ends[1], recipe.data(), recipe.size()), static_cast<ssize_t>(recipe.size()));
    ::close(ends[1]);
    command.push_back(concat("/dev/fd/", ends[0]));
    command.insert(command.end(), after.begin(), after.end());
    const Outcome outcome = linnet(command);
    ::close(ends[0]);
    return outcome;
  };
  const Outcome checked = piped(read_file(folder_ / "tiny.yaml"), {"recipe", "check"});
  EXPECT_EQ(checked.code, 0) << checked.err;
  // What it extends lies in the current folder. Its run needs a name, or a place.
  const std::string nameless = "extends: tiny.yaml\nseed: 4\n";
  const Outcome refused = piped(nameless, {"train"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("has no 'name', so its run has none: give --out DIR"));
  EXPECT_FALSE(exists(folder_ / "runs"));
  const Outcome placed = piped(nameless, {"train"}, {"--out", "placed"});
  EXPECT_EQ(placed.code, 0) << placed.err;
  const Outcome named = piped(nameless, {"train"}, {"name=mine"});
  EXPECT_EQ(named.code, 0) << named.err;
  EXPECT_TRUE(exists(folder_ / "runs/mine/report.html"));
}

// /dev/shm is a folder: what a recipe extends lies beside it, and its run has its name.
TEST_F(OddFiles, ARecipeInSharedMemoryIsAFile) {
  for (const char* path : {"/dev/stdin", "/dev/fd/63", "/proc/self/fd/0"}) {
    EXPECT_TRUE(is_descriptor(path)) << path;
  }
  for (const char* path : {"/dev/shm/lm.yaml", "/dev/shm/fd/lm.yaml", "dev/fd/63", "lm.yaml"}) {
    EXPECT_FALSE(is_descriptor(path)) << path;
  }
  if (!is_directory("/dev/shm") || ::access("/dev/shm", W_OK) != 0) GTEST_SKIP() << "no /dev/shm";
  std::string folder = "/dev/shm/linnet-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  write_file(folder + "/base.yaml", read_file(folder_ / "tiny.yaml"));
  write_file(folder + "/lm.yaml", "extends: base.yaml\n");
  const Outcome trained = linnet({"train", folder + "/lm.yaml"});
  remove_all(folder);
  EXPECT_EQ(trained.code, 0) << trained.err;
  EXPECT_TRUE(exists(folder_ / "runs/lm/report.html"));
}

// Missing data are excused, not what lies in their place.
TEST_F(OddFiles, AreNoMissingData) {
  for (const std::string path : {"pipe", "/dev/zero"}) {
    expect_error({"recipe", "check", "--allow-missing-data", "tiny.yaml", "data.path=" + path}, 1,
                 path + ": a regular file was expected");
  }
  expect_error({"recipe", "check", "--allow-missing-data", "tiny.yaml",
                "data={kind: pg19, path: tiny.yaml, context: 16}"},
               1, "tiny.yaml is a file; kind pg19 needs a folder");
}

TEST_F(OddFiles, PathsToWriteToAreNamedWhereTheyCannotServe) {
  folder_.write("file", "kept");
  expect_error({"train", "tiny.yaml", "--out", "file"}, 2, "must be a folder, and file is a file");
  expect_error({"train", "tiny.yaml", "--out", ""}, 2, "must be a folder, found nothing");
  expect_error({"train", "tiny.yaml", "--from", ""}, 2, "--from: must not be empty");
  expect_error({"data", "prepare", "text", "--from", "text", "--out", "file"}, 2, "is a file");
  expect_error({"attention", "run", "case.h5", "--out", ""}, 2, "--out: must not be empty");
  expect_error({"attention", "run", "case.h5", "--out", "out.h5", "--dtype", "f16"}, 2,
               "--dtype is f64, f32 or bf16, found f16");
  EXPECT_EQ(read_file(folder_ / "file"), "kept");
}

TEST_F(OddFiles, AReportReplacesNothingButAReport) {
  ASSERT_EQ(linnet({"train", "tiny.yaml", "--out", "run"}).code, 0);
  const std::string recipe = read_file(folder_ / "tiny.yaml");
  expect_error({"report", "run", "--html", "tiny.yaml"}, 2, "is no report of linnet");
  expect_error({"report", "run", "--html", "text"}, 1, "a regular file was expected");
  EXPECT_EQ(read_file(folder_ / "tiny.yaml"), recipe);
  for (int i = 0; i < 2; ++i) {
    const Outcome written = linnet({"report", "run", "--html", "page.html"});
    EXPECT_EQ(written.code, 0) << written.err;
  }
  folder_.write("run/report.html", "damaged");
  EXPECT_EQ(linnet({"report", "run"}).code, 0);
  // A folder of runs may be a user's.
  folder_.write("report.html", "kept");
  expect_error({"report", "."}, 2, "./report.html is no report of linnet");
  EXPECT_EQ(read_file(folder_ / "report.html"), "kept");
}

TEST_F(OddFiles, AnHdf5FileThatIsNoCaseIsOneSentence) {
  ASSERT_EQ(linnet({"train", "tiny.yaml", "--out", "run"}).code, 0);
  const std::string weights = "run/checkpoints/step-00000004/weights.h5";
  const Outcome outcome = linnet({"attention", "run", weights, "--out", "out.h5"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("weights.h5 is an HDF5 file, but no case of linnet"));
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
}

}  // namespace
}  // namespace linnet::test
