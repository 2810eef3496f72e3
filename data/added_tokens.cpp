// Leftmost-longest search for added tokens.
#include "data/added_tokens.h"

#include <algorithm>
#include <numeric>

#include "data/unicode.h"

namespace linnet {
namespace {

bool is(std::string_view text, size_t at, CharacterClasses wanted) {
  return (character_classes()[next_character(text, at)] & wanted) != 0;
}

bool touches_word(std::string_view text, size_t begin, size_t end) {
  return (begin > 0 && is(text, previous_character(text, begin), kWordCharacter)) ||
         (end < text.size() && is(text, end, kWordCharacter));
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)),
      trie_(std::accumulate(
          tokens_.begin(), tokens_.end(), size_t{0},
          [](size_t sum, const AddedToken& token) { return sum + token.content.size(); })) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    trie_.insert(tokens_[i].content, static_cast<int32_t>(i));
    first_[static_cast<unsigned char>(tokens_[i].content.front())] = true;
  }
}

void AddedTokens::split(std::string_view text, const std::function<void(std::string_view)>& on_text,
                        const std::function<void(int32_t)>& on_token) const {
  size_t done = 0;  // everything before has been given away
  for (size_t at = 0; at < text.size() && !empty();) {
    const ByteTrie::Match match = first_[static_cast<unsigned char>(text[at])]
                                      ? trie_.longest(text.substr(at))
                                      : ByteTrie::Match();
    if (match.id < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(match.id)];
    size_t begin = at, end = at + match.bytes;
    at = end;
    if (token.single_word && touches_word(text, begin, end)) continue;
    if (token.lstrip) {
      while (begin > done && is(text, previous_character(text, begin), kWhiteSpace))
        begin = previous_character(text, begin);
    }
    if (token.rstrip) {
      while (end < text.size() && is(text, end, kWhiteSpace)) next_character(text, end);
    }
    if (begin > done) on_text(text.substr(done, begin - done));
    on_token(token.id);
    done = at = end;
  }
  if (done < text.size()) on_text(text.substr(done));
}

}  // namespace linnet
