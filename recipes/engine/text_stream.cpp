#include "recipes/engine/text_stream.h"

#include <algorithm>

#include "core/utf8.h"
#include "recipes/engine/generator.h"

namespace linnet {

TextStream::TextStream(const Tokenizer& tokenizer, int32_t before, std::vector<std::string> stop)
    : tokenizer_(tokenizer), stop_(std::move(stop)), before_{before} {
  for (const std::string& text : stop_) {
    require_usage(!text.empty(), Cause{ErrorCode::out_of_range, "generate.stop"},
                  "a stop string must have a character");
    require_utf8(text, "a stop string");
  }
}

std::string TextStream::add(int32_t token) {
  if (stopped_) return "";
  pending_.push_back(token);
  const std::string text = continuation(tokenizer_, before_, pending_);
  const size_t valid = std::min(text.size(), find_invalid_utf8(text));
  // A character has at most four bytes.
  if (valid < text.size() && text.size() - valid < 4) return "";
  held_ += replace_invalid_utf8(text);
  before_ = {token};
  pending_.clear();
  return release();
}

std::string TextStream::finish() {
  if (stopped_) return "";
  if (!pending_.empty()) {
    held_ += replace_invalid_utf8(continuation(tokenizer_, before_, pending_));
    pending_.clear();
  }
  std::string text = release();
  if (!stopped_) text += std::exchange(held_, "");
  return text;
}

std::string TextStream::release() {
  // The one that is complete first ends the text, whatever the tokens are.
  size_t begin = std::string::npos, end = std::string::npos;
  for (const std::string& stop : stop_) {
    const size_t found = held_.find(stop);
    if (found == std::string::npos) continue;
    if (std::pair(found + stop.size(), found) < std::pair(end, begin)) {
      begin = found;
      end = found + stop.size();
    }
  }
  if (begin != std::string::npos) {
    stopped_ = true;
    return held_.substr(0, begin);
  }
  size_t kept = 0;  // the longest end of held_ that a stop string begins with
  for (const std::string& stop : stop_) {
    for (size_t length = std::min(stop.size() - 1, held_.size()); length > kept; --length) {
      if (held_.ends_with(std::string_view(stop).substr(0, length))) kept = length;
    }
  }
  std::string text = held_.substr(0, held_.size() - kept);
  held_.erase(0, text.size());
  return text;
}

}  // namespace linnet
