// The lines of the text files that have a format: merges, vocabularies, tables.
#pragma once

#include <cstdint>
#include <string_view>

namespace linnet {

// The text after a byte order mark, if there is one: editors put it before UTF-8 text, and it
// belongs to no word.
std::string_view without_byte_order_mark(std::string_view text);

// Line after line, without its end: LF, or CRLF. A last line may lack its end.
class TextLines {
 public:
  // The text must outlive the object.
  explicit TextLines(std::string_view text) : rest_(text) {}
  // Goes to the next line, if there is one.
  bool next();
  std::string_view line() const { return line_; }
  // Of the line, from 1.
  int64_t number() const { return number_; }
  bool at_end() const { return rest_.empty(); }

 private:
  std::string_view rest_, line_;
  int64_t number_ = 0;
};

}  // namespace linnet
