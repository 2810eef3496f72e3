// Special ids around texts.
#include "data/pair_encoding.h"

#include <algorithm>

#include "core/error.h"

namespace linnet {
namespace {

int64_t special_count(PairStyle style, bool pair) {
  if (style == PairStyle::plain) return 0;
  if (style == PairStyle::t5) return pair ? 2 : 1;
  return style == PairStyle::bert ? (pair ? 3 : 2) : (pair ? 4 : 2);
}

// Lengths of both texts after cutting to `room` tokens: the longer is cut down to the other first,
// then both in turn, the second before the first.
std::pair<size_t, size_t> fit(size_t first, size_t second, size_t room) {
  if (first + second <= room) return {first, second};
  const size_t shorter = std::min(first, second);
  if (shorter <= room / 2) {
    const size_t longer = room - shorter;
    return first > second ? std::pair(longer, shorter) : std::pair(shorter, longer);
  }
  return {room - room / 2, room / 2};
}

}  // namespace

PairEncoding join_texts(const SpecialIds& special, PairStyle style, std::span<const int32_t> first,
                        std::optional<std::span<const int32_t>> second, int64_t max_tokens) {
  const int64_t around = special_count(style, second.has_value());
  require_usage(max_tokens >= around, Cause{ErrorCode::out_of_range},
                "the special tokens alone are ", around, ", more than the greatest length ",
                max_tokens);
  const bool begins = around > 0 && style != PairStyle::t5;
  require((!begins || special.cls >= 0) && (around == 0 || special.sep >= 0),
          Cause{ErrorCode::not_found},
          "the tokenizer has no tokens for the beginning and the end of a text");
  const auto room = static_cast<size_t>(max_tokens - around);
  const size_t second_size = second ? second->size() : 0;
  const auto [a, b] = fit(first.size(), second_size, room);
  PairEncoding made;
  made.cut = static_cast<int64_t>(first.size() - a + second_size - b);
  auto& ids = made.ids;
  ids.reserve(a + b + static_cast<size_t>(around));
  if (begins) ids.push_back(special.cls);
  ids.insert(ids.end(), first.begin(), first.begin() + static_cast<std::ptrdiff_t>(a));
  if (around > 0) ids.push_back(special.sep);
  const size_t first_end = ids.size();
  if (second) {
    if (style == PairStyle::roberta) ids.push_back(special.sep);
    ids.insert(ids.end(), second->begin(), second->begin() + static_cast<std::ptrdiff_t>(b));
    if (around > 0) ids.push_back(special.sep);
  }
  made.types.assign(ids.size(), 0);
  if (style == PairStyle::bert)
    std::fill(made.types.begin() + static_cast<std::ptrdiff_t>(first_end), made.types.end(), 1);
  return made;
}

PairEncoding encode_text(const Tokenizer& tokenizer, std::string_view text, int64_t max_tokens,
                         UnknownWords* unknown, std::optional<PairStyle> style) {
  const std::vector<int32_t> ids = tokenizer.encode(text, unknown);
  return join_texts(tokenizer.special_ids(), style.value_or(tokenizer.pair_style()), ids,
                    std::nullopt, max_tokens);
}

PairEncoding encode_pair(const Tokenizer& tokenizer, std::string_view first,
                         std::string_view second, int64_t max_tokens, UnknownWords* unknown,
                         std::optional<PairStyle> style) {
  const std::vector<int32_t> a = tokenizer.encode(first, unknown);
  const std::vector<int32_t> b = tokenizer.encode(second, unknown);
  return join_texts(tokenizer.special_ids(), style.value_or(tokenizer.pair_style()), a,
                    std::span<const int32_t>(b), max_tokens);
}

}  // namespace linnet
