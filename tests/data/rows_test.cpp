// Rows of tables and of JSON lines: fields, columns, bad rows.
#include "data/rows.h"

#include <gmock/gmock.h>

#include <chrono>

#include "core/sanitizers.h"
#include "tests/data/archive_files.h"
#include "tests/data/temporary_folder.h"

namespace linnet {
namespace {

using test::causes_of;
using test::TemporaryFolder;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Rows : public testing::Test {
 protected:
  RowFile read(RowFormat format, std::string_view text, const RowColumns& columns = {},
               bool skip = false) {
    BadRows bad(skip);
    const RowFile file = read_rows(folder_.write("a.x", text), format, columns, bad);
    notes_ = bad.take_notes();
    return file;
  }
  std::string refusal(RowFormat format, std::string_view text, const RowColumns& columns = {}) {
    return test::message_of([&] { read(format, text, columns); });
  }
  // "text|pair|label@line" of each row.
  static std::vector<std::string> shown(const RowFile& file) {
    std::vector<std::string> rows;
    for (const TextRow& row : file.rows)
      rows.push_back(concat(row.text, "|", row.text_pair, "|", row.label, "@", row.line));
    return rows;
  }

  TemporaryFolder folder_;
  std::vector<std::string> notes_;
};

TEST_F(Rows, TsvTakesQuotationMarksAsTheyAre) {
  const RowFile file =
      read(RowFormat::tsv, "\xEF\xBB\xBFlabel\ttext\r\n1\t\"one\r\n0\ttwo \"\"x\n1\tlast");
  EXPECT_THAT(shown(file), ElementsAre("\"one||1@2", "two \"\"x||0@3", "last||1@4"));
}

TEST_F(Rows, CsvFieldsInQuotationMarksHoldAnything) {
  const RowFile file =
      read(RowFormat::csv, "text,label\n\"a, \"\"b\"\"\nc\",1\r\n\r\nplain \"x\",0\n\"\"\"\",2");
  EXPECT_THAT(shown(file), ElementsAre("a, \"b\"\nc||1@2", "plain \"x\"||0@5", "\"||2@6"));
}

TEST_F(Rows, JsonLinesHoldTextsAndNumbers) {
  const RowFile file = read(RowFormat::jsonl,
                            "{\"text\": \"a\\tb\", \"label\": 3}\n\n{\"more\": [], \"label\": "
                            "true, \"text\": \"c\"}\r\n");
  EXPECT_THAT(shown(file), ElementsAre("a\tb||3@1", "c||true@3"));
}

TEST_F(Rows, ColumnsAreNamedOrCounted) {
  const std::string table = "id\ts1\ts2\ty\n7\ta\tb\tno\n";
  RowColumns columns;
  columns.text = "s1";
  columns.text_pair = "s2";
  columns.label = "y";
  EXPECT_THAT(shown(read(RowFormat::tsv, table, columns)), ElementsAre("a|b|no@2"));
  columns = {.text = "2", .text_pair = "3", .label = "4"};
  EXPECT_THAT(shown(read(RowFormat::tsv, table, columns)), ElementsAre("a|b|no@2"));
  columns.header = false;
  EXPECT_THAT(shown(read(RowFormat::tsv, table, columns)), ElementsAre("s1|s2|y@1", "a|b|no@2"));
  // A name comes before a number.
  columns = {.text = "2", .label = "1"};
  EXPECT_THAT(shown(read(RowFormat::tsv, "2\t1\na\tb\n", columns)), ElementsAre("a||b@2"));
}

TEST_F(Rows, MissingColumnsAreNamed) {
  EXPECT_THAT(refusal(RowFormat::tsv, "sentence\tlabel\na\tb\n"),
              AllOf(HasSubstr("a.x:1: there is no column 'text' (data.text)"),
                    HasSubstr("the columns are sentence, label")));
  EXPECT_THAT(refusal(RowFormat::csv, "text\na\n"), HasSubstr("no column 'label' (data.label)"));
  EXPECT_THAT(refusal(RowFormat::tsv, "a\tb\n", {.text = "1", .label = "3", .header = false}),
              HasSubstr("columns are numbers, 1 to 2"));
  const RowFile file = read(RowFormat::tsv, "text\na\n", {.label_may_be_missing = true});
  EXPECT_FALSE(file.labelled);
  EXPECT_EQ(file.rows.size(), 1u);
  EXPECT_FALSE(
      read(RowFormat::jsonl, "{\"text\": \"a\"}", {.label_may_be_missing = true}).labelled);
}

TEST_F(Rows, BadRowsAreRefusedWithTheirLine) {
  const auto place = [&](RowFormat format, std::string_view text) {
    return causes_of([&] { read(format, text); }, folder_.path());
  };
  const std::string head = "text\tlabel\n", good = "a\tb\n";
  EXPECT_EQ(place(RowFormat::tsv, head + good + "a\n"), "malformed at a.x:3");
  EXPECT_EQ(place(RowFormat::tsv, head + good + "a\tb\tc\n"), "malformed at a.x:3");
  EXPECT_EQ(place(RowFormat::tsv, head + good + "\n" + good), "malformed at a.x:3");
  EXPECT_EQ(place(RowFormat::tsv, head + "\tb\n"), "malformed at a.x:2");
  EXPECT_EQ(place(RowFormat::tsv, head + "a\t\n"), "malformed at a.x:2");
  EXPECT_EQ(place(RowFormat::tsv, head + "a\xff\tb\n"), "malformed at a.x:2");
  EXPECT_EQ(place(RowFormat::tsv, head), "malformed at a.x");
  EXPECT_EQ(place(RowFormat::tsv, ""), "malformed at a.x");
  EXPECT_EQ(place(RowFormat::csv, "text,label\na,b\n\"x\ny,z\n"), "malformed at a.x:3");
  EXPECT_EQ(place(RowFormat::csv, "text,label\n\"a\"b,c\n"), "malformed at a.x:2");
  EXPECT_EQ(place(RowFormat::jsonl, "{\"text\": \"a\"}\n"), "malformed at a.x:1");
  EXPECT_EQ(place(RowFormat::jsonl, "[1]\n"), "malformed at a.x:1");
  EXPECT_EQ(place(RowFormat::jsonl, "{\"text\": [], \"label\": 1}\n"), "malformed at a.x:1");
  EXPECT_EQ(place(RowFormat::jsonl, "{\"text\": \n"), "malformed at a.x:1");
  EXPECT_THAT(refusal(RowFormat::tsv, head + "a\n"),
              AllOf(HasSubstr("a.x:2: has 1 columns; expected 2"), HasSubstr("bad_rows: skip")));
  EXPECT_THAT(refusal(RowFormat::tsv, head + "ab\xff\tb\n"),
              AllOf(HasSubstr("a.x:2: text: expected UTF-8"), HasSubstr("byte offset 2")));
}

TEST_F(Rows, SkippedRowsAreCountedAndNamed) {
  const RowFile file = read(RowFormat::csv, "text,label\na,1\nb\n\"x\"y,1\nc,0\n,1\n", {}, true);
  EXPECT_THAT(shown(file), ElementsAre("a||1@2", "c||0@5"));
  EXPECT_THAT(notes_, ElementsAre(AllOf(HasSubstr("a.x: 3 rows are left out, line 3, 4, 6"),
                                        HasSubstr("the first: has 1 columns; expected 2"))));
  std::string many = "text\tlabel\na\t1\n";
  for (int i = 0; i < 30; ++i) many += "x\n";
  read(RowFormat::tsv, many, {}, true);
  EXPECT_THAT(notes_, ElementsAre(AllOf(HasSubstr("30 rows"), HasSubstr("12 and 20 more"))));
  read(RowFormat::tsv, "text\tlabel\na\t1\n", {}, true);
  EXPECT_THAT(notes_, IsEmpty());
}

// A damaged byte is refused with its file, or read as other text: nothing else comes of it, quickly
// and in little memory.
TEST_F(Rows, EveryByteMayBeWrong) {
  const test::FilesInMemory fast;
  const TemporaryFolder folder;
  std::string table = "text\tlabel\n", lines = "{\"text\": \"\\u00e4b\", \"label\": 1}\n";
  for (int i = 0; table.size() < 4086; ++i)
    table += i % 2 == 0 ? "\"a, b\"\t1\n" : "c,\xc3\xa4\t0\r\n";
  table += std::string(4094 - table.size(), 'x') + "\t1";
  ASSERT_EQ(table.size(), 4096u);
  const std::vector<std::pair<RowFormat, std::string>> files = {
      {RowFormat::tsv, table},
      {RowFormat::csv, "text,label\n\"a\nb\",1\r\n\"\"\"x\",0\nplain,2\n"},
      {RowFormat::jsonl, lines + lines}};
  const double before_mib = test::peak_mib();
  double slowest = 0;
  for (const auto& [format, good] : files) {
    int64_t read_anyway = 0, refused = 0;
    for (size_t at = 0; at < good.size(); ++at) {
      const char flipped = static_cast<char>(good[at] ^ 0xff);
      for (const char wrong : {flipped, '"', '\n'}) {
        std::string damaged = good;
        damaged[at] = wrong;
        const std::string path = folder.write("a.x", damaged);
        BadRows bad(false);
        const auto start = std::chrono::steady_clock::now();
        try {
          const RowFile file = read_rows(path, format, {}, bad);
          for (const TextRow& row : file.rows) EXPECT_TRUE(!row.text.empty() && !row.label.empty());
          ++read_anyway;
        } catch (const Error& error) {
          EXPECT_THAT(error.what(), HasSubstr("a.x"));
          ++refused;
        }
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
        slowest = std::max(slowest, seconds.count());
      }
    }
    EXPECT_GT(read_anyway, 0);
    EXPECT_GT(refused, std::ssize(good));
  }
  EXPECT_LT(slowest, 1);
  // AddressSanitizer keeps what was freed.
  EXPECT_LT(kAddressSanitizer ? 0 : test::peak_mib() - before_mib, 256);
}

}  // namespace
}  // namespace linnet
