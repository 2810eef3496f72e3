// Rows of tables and of JSON lines: the columns of one's own labelled texts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace linnet {

// How a file holds its rows.
enum class RowFormat {
  tsv,    // fields between tabs, a row a line; a quotation mark is a character as any other
  csv,    // fields between commas, in quotation marks where they hold some (RFC 4180)
  jsonl,  // an object a line
};

// The columns that are read, by name, or of tsv and csv by number from 1 where no column has that
// name.
struct RowColumns {
  std::string text = "text";
  std::string text_pair{};      // "": one text a row
  std::string label = "label";  // "": rows have no label
  bool header = true;           // tsv, csv: the first row names the columns
  bool text_may_be_empty = false;
  // Where no column is that of the label, rows have none, instead of an error.
  bool label_may_be_missing = false;
};

struct TextRow {
  std::string text, text_pair, label;
  int64_t line = 0;    // where it begins, from 1
  int64_t number = 0;  // among the rows of its file, bad ones too, from 0
};

// The rows of a file that can be used.
struct RowFile {
  std::string path;
  bool labelled = true;
  std::vector<TextRow> rows;
};

// What happens to a row that cannot be used: with `skip` it is counted, else its error is thrown.
class BadRows {
 public:
  explicit BadRows(bool skip) : skip_(skip) {}
  // Of a row of `path` (line 0: of the whole file): `what` is the sentence, with or without
  // "path:line: ". Throws Error unless rows are skipped.
  void add(const std::string& path, int64_t line, std::string_view what);
  int64_t count() const { return count_; }
  // "a.tsv: 2 rows are left out, line 3, 7; the first: ...", a sentence a file; then there are
  // none.
  std::vector<std::string> take_notes();

 private:
  struct OfFile {
    std::string path, first;
    std::vector<int64_t> lines;  // the first few
    int64_t count = 0;
  };
  bool skip_;
  int64_t count_ = 0;
  std::vector<OfFile> files_;
};

// Reads a file of rows, which may begin with a byte order mark and end its lines with CRLF. A row
// is bad that has another number of fields than the first one, lacks a column, has an empty field,
// is ill-formed (UTF-8) or, of jsonl, no object of texts. Empty lines of csv and jsonl are no rows.
// Throws Error naming the file where it has no such columns or no rows at all.
RowFile read_rows(const std::string& path, RowFormat format, const RowColumns& columns,
                  BadRows& bad);

}  // namespace linnet
