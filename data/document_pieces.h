// The text of a document in pieces, so that memory does not grow with it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "core/files.h"
#include "data/text_sources.h"

namespace linnet {

// Reads a document from its start. Pieces are valid UTF-8 of about a MiB; of a text that cannot be
// cut, all of it.
class DocumentPieces {
 public:
  // Where a text of which more may follow can be cut: the length of the first part, 0 for nowhere.
  using Cut = std::function<size_t(std::string_view text)>;

  // Throws Error when there is no such file.
  DocumentPieces(const SourceFile& source, Cut cut);
  // Moves to the next piece; false after the last. Throws Error naming the file when it is shorter
  // than the document, or not valid UTF-8 (with the offset; a cut last character is called a
  // truncated file).
  bool next();
  // Valid until next().
  std::string_view piece() const { return std::string_view(buffer_).substr(0, piece_); }

 private:
  void read_more();
  void check_text();

  File file_;
  Cut cut_;
  uint64_t end_;     // of the document in the file
  uint64_t offset_;  // of the buffer in the file
  std::string buffer_;
  size_t piece_ = 0,
         checked_ =
             0;  // bytes of the buffer; those behind the checked ones are a part of a character
  bool ended_ = false;
};

}  // namespace linnet
