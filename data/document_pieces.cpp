#include "data/document_pieces.h"

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "core/utf8.h"

namespace linnet {

DocumentPieces::DocumentPieces(const SourceFile& source, Cut cut)
    : file_(source.path, OpenMode::read),
      cut_(std::move(cut)),
      end_(source.end),
      offset_(source.begin) {
  if (offset_ > 0) file_.seek(offset_);
}

bool DocumentPieces::next() {
  buffer_.erase(0, piece_);
  offset_ += piece_;
  checked_ -= piece_;
  piece_ = 0;
  while (piece_ == 0 && !ended_) {
    read_more();
    check_text();
    piece_ = ended_ ? checked_ : cut_(std::string_view(buffer_).substr(0, checked_));
  }
  return piece_ > 0;
}

void DocumentPieces::read_more() {
  constexpr size_t kRead = size_t{1} << 20;
  // Twice as much each time, so that the search for a place to cut stays linear in the text.
  const size_t held = buffer_.size();
  const uint64_t left = end_ - offset_ - held;
  const auto wanted = static_cast<size_t>(std::min<uint64_t>(left, std::max(kRead, held)));
  buffer_.resize(held + wanted);
  buffer_.resize(held + file_.read(std::span(buffer_).subspan(held)));
  const bool file_ended = buffer_.size() < held + wanted;
  ended_ = file_ended || wanted == left;
  require(!file_ended || end_ == std::numeric_limits<uint64_t>::max(),
          Cause{ErrorCode::conflict, "", file_.path()}, file_.path(), " has ",
          offset_ + buffer_.size(), " bytes, at least ", end_,
          " were expected; it changed while it was being read");
}

void DocumentPieces::check_text() {
  const std::string_view rest = std::string_view(buffer_).substr(checked_);
  const size_t invalid = find_invalid_utf8(rest);
  // Up to three bytes of a character are what a cut file, or a cut piece, leaves at its end.
  const bool cut = invalid != std::string::npos && rest.size() - invalid < 4 &&
                   (static_cast<unsigned char>(rest[invalid]) & 0xC0u) == 0xC0u;
  require(!cut || !ended_, Cause{ErrorCode::malformed, "", file_.path()}, file_.path(),
          ": the file is truncated: it ends inside a UTF-8 character at byte offset ",
          offset_ + checked_ + invalid);
  if (!cut) require_utf8(rest, file_.path(), offset_ + checked_);
  checked_ = cut ? checked_ + invalid : buffer_.size();
}

}  // namespace linnet
