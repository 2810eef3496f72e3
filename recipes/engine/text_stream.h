// The text of generated tokens as they come: whole characters, up to a stop string.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace linnet {

// A token may end inside a character, and text may turn out to be the beginning of a stop string:
// what is not certain yet is held back. Bytes that are no UTF-8 become U+FFFD.
class TextStream {
 public:
  // `before`: the token that the text follows on. Stop strings must not be empty (throws
  // UsageError). Refers to the tokenizer.
  TextStream(const Tokenizer& tokenizer, int32_t before, std::vector<std::string> stop = {});
  // The text that is certain now and was not given before.
  std::string add(int32_t token);
  // What was held back, at the end of the tokens.
  std::string finish();
  // A stop string came, of several the one that was complete first: the text ends before it.
  bool stopped() const { return stopped_; }

 private:
  // Cuts held_ before a stop string, or gives what can no longer be part of one.
  std::string release();

  const Tokenizer& tokenizer_;
  std::vector<std::string> stop_;
  std::vector<int32_t> before_, pending_;  // pending_: ids whose characters are not whole yet
  std::string held_;
  bool stopped_ = false;
};

}  // namespace linnet
