// A table or JSON lines of labelled texts.
#include "data/rows.h"

#include <algorithm>
#include <string>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/memory_files.h"

namespace linnet::fuzz {
namespace {

std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) result += c == '"' ? std::string("\"\"") : std::string(1, c);
  return result + '"';
}

bool same_texts(const TextRow& a, const TextRow& b) {
  return a.text == b.text && a.text_pair == b.text_pair && a.label == b.label;
}

void check_rows(const RowFile& file) {
  int64_t line = 0, number = -1;
  std::string table = "text,label\n";
  for (const TextRow& row : file.rows) {
    expect(row.line > line && row.number > number, "rows are in the order of their lines");
    line = row.line;
    number = row.number;
    expect(!row.text.empty() && !row.label.empty(), "no field that is read is empty");
    table += concat(quoted(row.text), ",", quoted(row.label), "\n");
  }
  MemoryFiles files;
  files["written.csv"] = table;
  BadRows none(false);
  const RowFile back = read_rows("written.csv", RowFormat::csv, {}, none);
  expect(std::equal(back.rows.begin(), back.rows.end(), file.rows.begin(), file.rows.end(),
                    same_texts),
         "rows that are written as csv read back");
}

}  // namespace

// The first line names the format. Under the sanitizers an error for each of 32,000 bad rows takes
// most of a second.
void read_input(std::string_view input) {
  input = input.substr(0, 1 << 14);
  const size_t end = std::min(input.find('\n'), input.size());
  const std::string_view name = input.substr(0, end);
  const RowFormat format = name == "csv"     ? RowFormat::csv
                           : name == "jsonl" ? RowFormat::jsonl
                                             : RowFormat::tsv;
  const std::string text(input.substr(std::min(end + 1, input.size())));
  RowFile kept;
  BadRows skipped(true);
  {
    MemoryFiles files;
    files["rows"] = text;
    kept = read_rows("rows", format, {}, skipped);
  }
  check_rows(kept);
  const int64_t bad = skipped.count();
  expect(skipped.take_notes().empty() == (bad == 0), "rows that are left out are named");
  MemoryFiles files;
  files["rows"] = text;
  BadRows none(false);
  const RowFile whole = read_rows("rows", format, {}, none);
  expect(bad == 0, "a bad row is refused unless it is to be skipped");
  expect(std::equal(whole.rows.begin(), whole.rows.end(), kept.rows.begin(), kept.rows.end(),
                    same_texts),
         "skipping changes nothing where no row is bad");
}

}  // namespace linnet::fuzz
