#include "recipes/engine/later_targets.h"

#include <algorithm>

#include "autograd/indexing.h"

namespace linnet {
namespace {

// Logits that are held at a time.
constexpr int64_t kHeldLogits = int64_t{1} << 22;

std::vector<int32_t> later_targets(int64_t heads, const Batch& batch) {
  const int64_t size = batch.B * batch.T;
  std::vector<int32_t> later(static_cast<size_t>(heads * size), kNotScored);
  for (int64_t k = 1; k <= heads; ++k) {
    for (int64_t i = 0; i < size; ++i) {
      const auto from = static_cast<size_t>(i), to = static_cast<size_t>(i + k);
      const bool in_row = i % batch.T + k < batch.T;
      if (!in_row || batch.targets[from] == kNotScored) continue;
      if (!batch.segments.empty() && batch.segments[from] != batch.segments[to]) continue;
      later[static_cast<size_t>((k - 1) * size + i)] = batch.targets[to];
    }
  }
  return later;
}

// How many logits are larger, or as large and of a lower id.
size_t rank_of(std::span<const float> logits, int32_t token) {
  const float own = logits[static_cast<size_t>(token)];
  size_t rank = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    rank += logits[i] > own || (logits[i] == own && i < static_cast<size_t>(token)) ? 1 : 0;
  }
  return rank;
}

}  // namespace

void add_later_targets(int64_t heads, Batch& batch) {
  if (heads > 0) batch.later_targets = later_targets(heads, batch);
}

double GuessCounts::share(size_t guess) const {
  return tokens == 0 ? 0 : static_cast<double>(right.at(guess)) / static_cast<double>(tokens);
}

void count_guesses(const MedusaHeads& heads, const Tensor& hidden, const Batch& batch,
                   std::vector<GuessCounts>& counts) {
  const int64_t size = batch.B * batch.T, width = hidden.size(hidden.shape().rank() - 1);
  const std::vector<int32_t> later = later_targets(heads.count(), batch);
  const Variable vectors(hidden.reshape({size, width}));
  for (int64_t k = 1; k <= heads.count(); ++k) {
    GuessCounts& own = counts.at(static_cast<size_t>(k - 1));
    std::vector<int32_t> places;
    const int32_t* targets = later.data() + (k - 1) * size;
    for (int64_t i = 0; i < size; ++i) {
      if (own.tokens + std::ssize(places) == kGuessedTokens) break;
      if (targets[i] != kNotScored) places.push_back(static_cast<int32_t>(i));
    }
    const auto chunk = std::max<size_t>(1, kHeldLogits / static_cast<size_t>(heads.vocabulary()));
    for (size_t begin = 0; begin < places.size(); begin += chunk) {
      const auto part =
          std::span<const int32_t>(places).subspan(begin, std::min(chunk, places.size() - begin));
      const Tensor at = Tensor::from(part, {std::ssize(part)}, hidden.device());
      const auto logits = heads.logits(k, gather(vectors, at).value()).to_vector<float>();
      const size_t words = logits.size() / part.size();
      for (size_t row = 0; row < part.size(); ++row) {
        const size_t rank =
            rank_of(std::span(logits).subspan(row * words, words), targets[part[row]]);
        if (rank < kGuesses) ++own.right[rank];
      }
    }
    own.tokens += std::ssize(places);
  }
}

JsonValue guess_shares(const std::vector<GuessCounts>& counts) {
  JsonValue all = JsonValue::array();
  for (const GuessCounts& head : counts) {
    JsonValue shares = JsonValue::array();
    for (size_t guess = 0; guess < kGuesses; ++guess) shares.push(head.share(guess));
    all.push(std::move(shares));
  }
  return all;
}

}  // namespace linnet
