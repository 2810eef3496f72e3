// What preparing and training take does not grow with the corpus.
#include <sys/resource.h>

#include "core/sanitizers.h"
#include "tests/tools/cli.h"

namespace linnet::test {
namespace {

// Promised: so much beside the model, which is tiny here.
constexpr double kMaxMiB = 256;
constexpr size_t kTextBytes = 96'000'000;

class Memory : public Cli {
 protected:
  // A text that is longer than tokens, or itself twice, would fit; written in pieces, because what
  // this process takes counts for its children until they begin.
  void write_long_text(size_t bytes) {
    create_directories(folder_ / "long");
    File file(folder_ / "long/a.txt", OpenMode::write);
    std::string piece;
    for (int line = 0; bytes > 0; ++line) {
      piece += concat("line ", line % 7001, " of a long text, it has ", line % 13, " words\n");
      if (piece.size() < std::min(bytes, size_t{1} << 20)) continue;
      piece.resize(std::min(bytes, piece.size()));
      file.write(piece);
      bytes -= piece.size();
      piece.clear();
    }
    file.close();
  }
  // Runs it and expects that it never had more memory.
  void expect_bounded(const std::vector<std::string>& arguments) {
    const pid_t child = start(arguments);
    int status = 0;
    struct rusage usage {};
    ASSERT_EQ(::wait4(child, &status, 0, &usage), child);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
        << read_file(folder_ / concat("stderr", calls_));
    const double mib = static_cast<double>(usage.ru_maxrss) / 1024;
    if (!kAddressSanitizer && !kThreadSanitizer) {
      EXPECT_LT(mib, kMaxMiB) << arguments[0];
    }
  }
};

TEST_F(Memory, DoesNotGrowWithTheText) {
  write_long_text(kAddressSanitizer || kThreadSanitizer ? kTextBytes / 16 : kTextBytes);
  ::setenv("LINNET_CACHE", (folder_ / "cache").c_str(), 1);
  for (const char* tokenizer : {"byte", "word"}) {
    const std::vector<std::string> prepare = {"data",       "prepare",     "text",   "--from",
                                              "long/a.txt", "--tokenizer", tokenizer};
    expect_bounded(prepare);
    expect_bounded(prepare);  // now of what is there
    expect_bounded({"train", "tiny.yaml", "--out", tokenizer, "data.path=long/a.txt",
                    "data.validation_fraction=0.05", "data.test_fraction=0.05", "data.cache=true",
                    concat("data.tokenizer.kind=", tokenizer)});
  }
  expect_bounded({"data", "inspect", "long/a.txt"});
  ::unsetenv("LINNET_CACHE");
}

}  // namespace
}  // namespace linnet::test
