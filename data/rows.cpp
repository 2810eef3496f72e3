#include "data/rows.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/config_scalar.h"
#include "core/error.h"
#include "core/files.h"
#include "core/interrupt.h"
#include "core/json.h"
#include "core/progress.h"
#include "core/utf8.h"
#include "data/lines.h"

namespace linnet {
namespace {

constexpr size_t kNamedLines = 10, kNamedFiles = 10;

// The records of a table: fields between delimiters.
class Records {
 public:
  // With `quoted`, fields may stand in quotation marks, and then hold delimiters and line ends.
  Records(std::string_view text, char delimiter, bool quoted)
      : text_(text), delimiter_(delimiter), quoted_(quoted) {}

  // Goes to the next record, if there is one. Throws Error (without a place) for one whose
  // quotation marks are wrong, after which the next can be read.
  bool next() {
    if (at_ == text_.size()) return false;
    line_ = next_line_;
    if (!quoted_) {
      read_line();
      return true;
    }
    fields_.clear();
    problem_.clear();
    do {
      fields_.push_back(read_field());
    } while (!ends_record());
    require(problem_.empty(), Cause{ErrorCode::malformed}, problem_);
    return true;
  }
  const std::vector<std::string>& fields() const { return fields_; }
  bool is_empty() const { return fields_.size() == 1 && fields_[0].empty(); }
  int64_t line() const { return line_; }  // where the record begins, from 1
  size_t read_bytes() const { return at_; }

 private:
  void read_line() {
    TextLines lines(text_.substr(at_));
    lines.next();
    const std::string_view line = lines.line();
    at_ = std::min(text_.find('\n', at_), text_.size() - 1) + 1;
    ++next_line_;
    fields_.clear();
    for (size_t begin = 0; begin <= line.size();) {
      const size_t end = std::min(line.find(delimiter_, begin), line.size());
      fields_.emplace_back(line.substr(begin, end - begin));
      begin = end + 1;
    }
  }

  std::string read_field() {
    std::string field;
    if (at_ == text_.size() || text_[at_] != '"') {
      const size_t end = end_of_plain(at_);
      field = text_.substr(at_, end - at_);
      at_ = end;
      if (field.ends_with('\r') && (at_ == text_.size() || text_[at_] == '\n')) field.pop_back();
      return field;
    }
    for (++at_;;) {
      const size_t mark = text_.find('"', at_);
      if (mark == std::string_view::npos) {
        problem_ = "a quotation mark opens a field that none closes";
        at_ = text_.size();
        return field;
      }
      field += text_.substr(at_, mark - at_);
      at_ = mark + 1;
      if (at_ == text_.size() || text_[at_] != '"') break;
      field += '"';
      ++at_;
    }
    next_line_ += std::count(field.begin(), field.end(), '\n');
    const size_t end = end_of_plain(at_);
    const std::string_view rest = text_.substr(at_, end - at_);
    if (!rest.empty() && rest != "\r")
      problem_ = "text follows the quotation mark that closes a field";
    at_ = end;
    return field;
  }
  size_t end_of_plain(size_t from) const {
    const char ends[] = {delimiter_, '\n', '\0'};
    return std::min(text_.find_first_of(std::string_view(ends, 2), from), text_.size());
  }
  // Steps over what follows a field.
  bool ends_record() {
    if (at_ == text_.size()) return true;
    const bool line_end = text_[at_++] == '\n';
    if (line_end) ++next_line_;
    return line_end;
  }

  std::string_view text_;
  char delimiter_;
  bool quoted_;
  size_t at_ = 0;
  int64_t line_ = 0, next_line_ = 1;
  std::vector<std::string> fields_;
  std::string problem_;
};

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += concat(text.empty() ? "" : ", ", name);
  return text;
}

// Where the wanted columns are; nothing for those that are not wanted.
struct Places {
  size_t text = 0;
  std::optional<size_t> text_pair, label;
};

// Finds the columns of a table by its first row.
class ColumnFinder {
 public:
  ColumnFinder(const std::string& path, const std::vector<std::string>& first, bool header)
      : path_(path), first_(first), header_(header) {}

  std::optional<size_t> find(const std::string& column) const {
    if (header_) {
      const auto found = std::find(first_.begin(), first_.end(), column);
      if (found != first_.end()) return static_cast<size_t>(found - first_.begin());
    }
    std::string why;
    const std::optional<int64_t> number = parse_int(column, why);
    if (!number || *number < 1 || *number > std::ssize(first_)) return std::nullopt;
    return static_cast<size_t>(*number - 1);
  }
  size_t require(const std::string& column, const char* key) const {
    const std::optional<size_t> found = find(column);
    linnet::require(found.has_value(), Cause{ErrorCode::not_found, key, concat(path_, ":1")}, path_,
                    ":1: there is no column '", column, "' (", key, "); ",
                    header_ ? concat("the columns are ", joined(first_))
                            : concat("without a header columns are numbers, 1 to ", first_.size()));
    return *found;
  }

 private:
  const std::string& path_;
  const std::vector<std::string>& first_;
  bool header_;
};

// Throws Error (without a place) when a field of the row cannot be used.
void check_text(const std::string& text, const char* what, bool may_be_empty = false) {
  require(may_be_empty || !text.empty(), Cause{ErrorCode::malformed}, "the ", what, " is empty");
  require_utf8(text, what);
}

void check(const TextRow& row, const RowColumns& columns, bool labelled) {
  check_text(row.text, "text", columns.text_may_be_empty);
  if (!columns.text_pair.empty())
    check_text(row.text_pair, "second text", columns.text_may_be_empty);
  if (labelled) check_text(row.label, "label");
}

// Finds the columns in the first row of a table.
Places find_columns(const std::vector<std::string>& first, const RowColumns& columns,
                    RowFile& file) {
  const ColumnFinder finder(file.path, first, columns.header);
  Places places;
  places.text = finder.require(columns.text, "data.text");
  if (!columns.text_pair.empty())
    places.text_pair = finder.require(columns.text_pair, "data.text_pair");
  if (!columns.label.empty()) {
    places.label = columns.label_may_be_missing ? finder.find(columns.label)
                                                : finder.require(columns.label, "data.label");
  }
  file.labelled = places.label.has_value();
  return places;
}

void read_table(std::string_view text, char delimiter, bool quoted, const RowColumns& columns,
                RowFile& file, BadRows& bad) {
  Records records(text, delimiter, quoted);
  std::optional<Places> places;
  size_t count = 0;
  int64_t number = -1;
  WorkProgress progress;
  while (true) {
    interruption_point();
    try {
      if (!records.next()) return;
    } catch (const Error& error) {
      bad.add(file.path, records.line(), error.what());
      continue;
    }
    const std::vector<std::string>& fields = records.fields();
    if (quoted && records.is_empty()) continue;
    if (!places) {
      places = find_columns(fields, columns, file);
      count = fields.size();
      if (columns.header) continue;
    }
    ++number;
    try {
      require(fields.size() == count, Cause{ErrorCode::malformed}, "has ", fields.size(),
              " columns; expected ", count, ", as the first row has");
      TextRow row;
      row.line = records.line();
      row.number = number;
      row.text = fields[places->text];
      if (places->text_pair) row.text_pair = fields[*places->text_pair];
      if (places->label) row.label = fields[*places->label];
      check(row, columns, file.labelled);
      file.rows.push_back(std::move(row));
    } catch (const Error& error) {
      bad.add(file.path, records.line(), error.what());
    }
    if (progress.due())
      progress.show(concat("reading ", file_name(file.path)),
                    static_cast<double>(records.read_bytes()), static_cast<double>(text.size()));
  }
}

// A member as text: numbers and truth values as JSON writes them.
std::string member_text(const JsonValue& object, const std::string& name) {
  const JsonValue* value = object.find(name);
  require(value != nullptr, Cause{ErrorCode::malformed}, "the object has no member '", name, "'");
  using Kind = JsonValue::Kind;
  if (value->kind() == Kind::text) return value->text();
  require(value->kind() == Kind::integer || value->kind() == Kind::number ||
              value->kind() == Kind::boolean,
          Cause{ErrorCode::malformed}, "the member '", name, "' is neither text nor a number");
  return value->dump();
}

TextRow row_of(const JsonValue& object, const RowColumns& columns, bool labelled) {
  TextRow row;
  row.text = member_text(object, columns.text);
  if (!columns.text_pair.empty()) row.text_pair = member_text(object, columns.text_pair);
  if (labelled) row.label = member_text(object, columns.label);
  check(row, columns, labelled);
  return row;
}

void read_json_lines(std::string_view text, const RowColumns& columns, RowFile& file,
                     BadRows& bad) {
  bool first = true;
  int64_t number = -1;
  WorkProgress progress;
  for (TextLines lines(text); lines.next();) {
    interruption_point();
    if (lines.line().empty()) continue;
    ++number;
    try {
      const JsonValue object = parse_json(lines.line(), concat(file.path, ":", lines.number()));
      require(object.kind() == JsonValue::Kind::object, Cause{ErrorCode::malformed},
              "the line is no JSON object");
      if (std::exchange(first, false))
        file.labelled = !columns.label.empty() &&
                        (!columns.label_may_be_missing || object.find(columns.label) != nullptr);
      file.rows.push_back(row_of(object, columns, file.labelled));
      file.rows.back().line = lines.number();
      file.rows.back().number = number;
    } catch (const Error& error) {
      bad.add(file.path, lines.number(), error.what());
    }
    if (progress.due())
      progress.show(concat("reading ", file_name(file.path)),
                    static_cast<double>(lines.line().data() - text.data()),
                    static_cast<double>(text.size()));
  }
}

}  // namespace

void BadRows::add(const std::string& path, int64_t line, std::string_view what) {
  const std::string place = line == 0 ? path : concat(path, ":", line);
  if (what.starts_with(place + ": ")) what.remove_prefix(place.size() + 2);
  if (!skip_)
    throw Error({ErrorCode::malformed, "", place},
                concat(place, ": ", what, " (data.bad_rows: skip leaves such rows out)"));
  ++count_;
  if (files_.empty() || files_.back().path != path)
    files_.push_back({path, std::string(what), {}, 0});
  OfFile& file = files_.back();
  ++file.count;
  if (file.lines.size() < kNamedLines) file.lines.push_back(line);
}

std::vector<std::string> BadRows::take_notes() {
  std::vector<std::string> notes;
  int64_t others = count_;
  for (const OfFile& file : files_) {
    if (notes.size() == kNamedFiles) break;
    others -= file.count;
    if (file.lines[0] == 0) {
      notes.push_back(concat(file.path, " is left out: ", file.first));
      continue;
    }
    std::string lines;
    for (size_t i = 0; i < file.lines.size(); ++i)
      lines += concat(i == 0 ? "" : ", ", file.lines[i]);
    const int64_t more = file.count - std::ssize(file.lines);
    if (more > 0) lines += concat(" and ", more, " more");
    notes.push_back(concat(file.path, ": ", file.count, file.count == 1 ? " row is" : " rows are",
                           " left out, line ", lines, "; the first: ", file.first));
  }
  if (others > 0) notes.push_back(concat(others, " rows of other files are left out"));
  files_.clear();
  count_ = 0;
  return notes;
}

RowFile read_rows(const std::string& path, RowFormat format, const RowColumns& columns,
                  BadRows& bad) {
  const std::string contents = read_file(path);
  const std::string_view text = without_byte_order_mark(contents);
  RowFile file;
  file.path = path;
  if (format == RowFormat::jsonl)
    read_json_lines(text, columns, file, bad);
  else
    read_table(text, format == RowFormat::tsv ? '\t' : ',', format == RowFormat::csv, columns, file,
               bad);
  require(!file.rows.empty(), Cause{ErrorCode::malformed, "", path}, path, ": holds no rows");
  return file;
}

}  // namespace linnet
