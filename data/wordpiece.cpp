// Greedy longest matches in a trie.
#include "data/wordpiece.h"

#include <numeric>

#include "data/unicode.h"

namespace linnet {

WordPiece::WordPiece(const std::vector<std::string>& tokens, WordPieceOptions options)
    : options_(std::move(options)),
      trie_(std::accumulate(tokens.begin(), tokens.end(), size_t{0},
                            [](size_t sum, const auto& token) { return sum + token.size(); })) {
  for (size_t id = 0; id < tokens.size(); ++id)
    if (!tokens[id].empty()) trie_.insert(tokens[id], static_cast<int32_t>(id));
  continuation_ = trie_.node_of(options_.prefix);
}

void WordPiece::encode_word(std::string_view word, PieceCache& cache,
                            std::vector<int32_t>& ids) const {
  cache.append(word, ids, [&] { encode_new_word(word, ids); });
}

void WordPiece::encode_new_word(std::string_view word, std::vector<int32_t>& ids) const {
  const size_t before = ids.size();
  const auto unknown = [&] {
    ids.resize(before);
    ids.push_back(options_.unknown_id);
  };
  if (static_cast<int64_t>(count_characters(word)) > options_.longest_word) return unknown();
  for (size_t at = 0; at < word.size();) {
    const int32_t from = at == 0 ? ByteTrie::kRoot : continuation_;
    const ByteTrie::Match match =
        from < 0 ? ByteTrie::Match() : trie_.longest(word.substr(at), from);
    if (match.id < 0) return unknown();
    ids.push_back(match.id);
    at += match.bytes;
  }
}

void WordPiece::append_token(std::string_view token, std::string& text) const {
  if (continues(token)) {
    text += token.substr(options_.prefix.size());
    return;
  }
  if (!text.empty() && text.back() != '\n') text += ' ';
  text += token;
}

}  // namespace linnet
