// One text or two as a model reads them: special ids around them, token types, a greatest length.
#pragma once

#include <limits>
#include <optional>
#include <span>

#include "data/tokenizer.h"

namespace linnet {

struct PairEncoding {
  std::vector<int32_t> ids;
  std::vector<int32_t> types;  // 0, or 1 for the second text and its end in BERT's style
  int64_t cut = 0;             // tokens left out because of max_tokens
};

inline constexpr int64_t kAnyLength = std::numeric_limits<int64_t>::max();

// Puts the ids of one text, or of two, into a style (PairStyle). With more than `max_tokens`,
// special ids included, tokens are taken one at a time from the end of the longer text, from the
// second where both are as long, as BERT's published code does. Throws UsageError when max_tokens
// has no room for the special ids, Error when the tokenizer lacks one of them.
PairEncoding join_texts(const SpecialIds& special, PairStyle style, std::span<const int32_t> first,
                        std::optional<std::span<const int32_t>> second = std::nullopt,
                        int64_t max_tokens = kAnyLength);

// The same of texts, in the tokenizer's own style unless another is given. Words that became <unk>
// are added to `unknown`.
PairEncoding encode_text(const Tokenizer& tokenizer, std::string_view text,
                         int64_t max_tokens = kAnyLength, UnknownWords* unknown = nullptr,
                         std::optional<PairStyle> style = std::nullopt);
PairEncoding encode_pair(const Tokenizer& tokenizer, std::string_view first,
                         std::string_view second, int64_t max_tokens = kAnyLength,
                         UnknownWords* unknown = nullptr,
                         std::optional<PairStyle> style = std::nullopt);

}  // namespace linnet
