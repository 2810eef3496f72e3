// Viterbi's best path through the tokens that a trie finds.
#include "data/unigram.h"

#include <algorithm>
#include <numeric>

#include "data/unicode.h"

namespace linnet {

Unigram::Unigram(const std::vector<std::string>& tokens, std::vector<double> scores,
                 int32_t unknown_id)
    : trie_(std::accumulate(tokens.begin(), tokens.end(), size_t{0},
                            [](size_t sum, const auto& token) { return sum + token.size(); })),
      scores_(std::move(scores)),
      unknown_id_(unknown_id),
      unknown_score_(*std::min_element(scores_.begin(), scores_.end()) - 10) {
  for (size_t id = 0; id < scores_.size(); ++id) trie_.insert(tokens[id], static_cast<int32_t>(id));
}

void Unigram::encode_piece(std::string_view piece, PieceCache& cache,
                           std::vector<int32_t>& ids) const {
  cache.append(piece, ids, [&] { encode_new_piece(piece, ids); });
}

void Unigram::encode_new_piece(std::string_view piece, std::vector<int32_t>& ids) const {
  struct Best {
    double score = 0;
    int32_t id = -1;   // of the last token; -1: no path ends here yet
    size_t begin = 0;  // of that token
  };
  std::vector<Best> best(piece.size() + 1);  // by the byte that a path ends before
  for (size_t at = 0; at < piece.size();) {
    size_t next = at;
    next_character(piece, next);
    const double before = best[at].score;
    const auto consider = [&](size_t end, int32_t id, double score) {
      Best& there = best[end];
      if (there.id < 0 || before + score > there.score) there = {before + score, id, at};
    };
    bool known = false;
    trie_.for_each_prefix(piece.substr(at), [&](const ByteTrie::Match& match) {
      known = known || at + match.bytes == next;
      consider(at + match.bytes, match.id, scores_[static_cast<size_t>(match.id)]);
    });
    if (!known) consider(next, unknown_id_, unknown_score_);
    at = next;
  }
  const size_t first = ids.size();
  for (size_t end = piece.size(); end > 0; end = best[end].begin) {
    const int32_t id = best[end].id;
    if (id != unknown_id_ || ids.size() == first || ids.back() != id) ids.push_back(id);
  }
  std::reverse(ids.begin() + static_cast<std::ptrdiff_t>(first), ids.end());
}

}  // namespace linnet
