// Lines of a text.
#include "data/lines.h"

#include <algorithm>

namespace linnet {

std::string_view without_byte_order_mark(std::string_view text) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  return text.starts_with(kMark) ? text.substr(kMark.size()) : text;
}

bool TextLines::next() {
  if (rest_.empty()) return false;
  const size_t end = std::min(rest_.find('\n'), rest_.size());
  line_ = rest_.substr(0, end);
  rest_.remove_prefix(std::min(end + 1, rest_.size()));
  if (line_.ends_with('\r')) line_.remove_suffix(1);
  ++number_;
  return true;
}

}  // namespace linnet
