// Progress of preparing text: files, speed and the time that is left.
#include "data/preparation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/word_tokenizer.h"
#include "tests/data/temporary_folder.h"

namespace linnet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Preparation, NamesTheFileItsSpeedAndTheTimeLeft) {
  test::TemporaryFolder folder;
  std::vector<SourceFile> files;
  for (const char* name : {"a.txt", "b.txt"}) {
    files.push_back({folder.write(name, std::string(4'000'000, 'x')), name});
  }
  files.push_back({files[0].path, "part", 1'000'000, 3'000'000});
  files.push_back({folder / "missing.txt", "missing.txt"});
  double now = 0;
  std::vector<std::string> lines;
  Preparation preparation(
      "encoding train", files,
      {true, [&] { return now; }, [&](const std::string& line) { lines.push_back(line); }, {}});
  preparation.begin(files[0]);
  now = 1;
  report_bytes_done(2'000'000);
  now = 2;
  preparation.begin(files[1]);
  now = 4;
  preparation.begin(files[2]);
  now = 5;
  preparation.begin(files[3]);
  EXPECT_THAT(lines,
              ElementsAre("encoding train: a.txt, 2 of 10 MB, 2.0 MB/s, 20 %, ETA 0:04",
                          "encoding train: b.txt, 4 of 10 MB, 2.0 MB/s, 40 %, ETA 0:03",
                          "encoding train: part, 8 of 10 MB, 2.0 MB/s, 80 %, ETA 0:01",
                          "encoding train: missing.txt, 10 of 10 MB, 2.0 MB/s, 100 %, ETA 0:00"));
}

TEST(Preparation, TokenizersTellHowFarALongFileIs) {
  test::TemporaryFolder folder;
  std::string text;
  while (text.size() < 400'000) text += "one two three\n";
  const std::vector<SourceFile> files = {{folder.write("long.txt", text), "long.txt"}};
  double now = 0;
  std::vector<std::string> lines;
  WordVocabularyBuilder builder;
  {
    // Each look at the clock finds it a second later: every report is due.
    Preparation preparation(
        "encoding", files,
        {true, [&] { return ++now; }, [&](const std::string& line) { lines.push_back(line); }, {}});
    preparation.begin(files[0]);
    builder.add(text);
    EXPECT_EQ(lines.size(), 7U);
    EXPECT_THAT(lines.back(), HasSubstr(" 98 %"));
    builder.build(0)->encode(text);
    EXPECT_EQ(lines.size(), 13U);
  }
  lines.clear();
  builder.build(0)->encode(text);
  EXPECT_THAT(lines, ElementsAre());
}

}  // namespace
}  // namespace linnet
