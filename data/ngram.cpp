// Interpolated n-gram models with absolute discounting.
#include "data/ngram.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <unordered_map>
#include <vector>

#include "core/error.h"

namespace linnet {
namespace {

constexpr double kDiscount = 0.75;

// Calls visit(previous, token) for each token that is predicted, in order.
void for_each_prediction(const TokenizedCorpus& corpus, bool cross_documents,
                         const std::function<void(int32_t, int32_t)>& visit) {
  const size_t streams = cross_documents ? 1 : corpus.documents.size();
  for (size_t i = 0; i < streams; ++i) {
    const int64_t begin = cross_documents ? 0 : corpus.documents[i].begin;
    const int64_t end = cross_documents ? corpus.size() : corpus.document_end(i);
    int32_t previous = -1;
    corpus.tokens.for_each(begin, end, [&](int32_t id) {
      if (previous >= 0) visit(previous, id);
      previous = id;
    });
  }
}

class Model {
 public:
  Model(const TokenizedCorpus& train, int32_t vocabulary_size, bool cross_documents)
      : unigrams_(train, vocabulary_size),
        followed_(static_cast<size_t>(vocabulary_size), 0),
        followers_(followed_.size(), 0) {
    for_each_prediction(train, cross_documents, [&](int32_t previous, int32_t id) {
      ++followed_[static_cast<size_t>(previous)];
      if (++bigrams_[pack(previous, id)] == 1) ++followers_[static_cast<size_t>(previous)];
    });
  }
  double unigram(int32_t id) const { return unigrams_.probability(id); }
  double bigram(int32_t previous, int32_t id) const {
    const auto context = static_cast<double>(followed_[static_cast<size_t>(previous)]);
    if (context == 0) return unigram(id);
    const auto found = bigrams_.find(pack(previous, id));
    const double count = found == bigrams_.end() ? 0 : static_cast<double>(found->second);
    const double left = kDiscount * static_cast<double>(followers_[static_cast<size_t>(previous)]);
    return (std::max(count - kDiscount, 0.0) + left * unigram(id)) / context;
  }

 private:
  static uint64_t pack(int32_t previous, int32_t id) {
    return (static_cast<uint64_t>(static_cast<uint32_t>(previous)) << 32) |
           static_cast<uint32_t>(id);
  }
  UnigramModel unigrams_;
  std::vector<int64_t> followed_;   // how often an id is followed by any
  std::vector<int64_t> followers_;  // by how many different ones
  std::unordered_map<uint64_t, int64_t> bigrams_;
};

}  // namespace

UnigramModel::UnigramModel(const TokenizedCorpus& train, int32_t vocabulary_size)
    : counts_(static_cast<size_t>(vocabulary_size), 0), total_(train.size()) {
  require(total_ > 0, Cause{ErrorCode::out_of_range},
          "n-gram baselines: the training split is empty");
  train.tokens.for_each(0, total_, [&](int32_t id) { ++counts_.at(static_cast<size_t>(id)); });
  types_ = std::count_if(counts_.begin(), counts_.end(), [](int64_t c) { return c > 0; });
}

double UnigramModel::probability(int32_t id) const {
  const double seen =
      std::max(static_cast<double>(counts_[static_cast<size_t>(id)]) - kDiscount, 0.0);
  const double left = kDiscount * static_cast<double>(types_);
  return (seen + left / static_cast<double>(counts_.size())) / static_cast<double>(total_);
}

double NgramScore::perplexity() const {
  return std::exp(nll / static_cast<double>(tokens));
}
double NgramScore::word_perplexity() const {
  return std::exp(nll / static_cast<double>(words));
}
double NgramScore::bits_per_byte() const {
  return nll / std::log(2.0) / static_cast<double>(bytes);
}

NgramBaselines ngram_baselines(const TokenizedCorpus& train, const TokenizedCorpus& held_out,
                               const TokenMeasure& measure, int32_t vocabulary_size,
                               bool cross_documents, int64_t max_tokens) {
  const Model model(train, vocabulary_size, cross_documents);
  NgramBaselines result;
  NgramScore& total = result.unigram;
  for_each_prediction(held_out, cross_documents, [&](int32_t previous, int32_t id) {
    if (max_tokens > 0 && total.tokens == max_tokens) return;
    total.nll -= std::log(model.unigram(id));
    result.bigram.nll -= std::log(model.bigram(previous, id));
    ++total.tokens;
    total.bytes += measure.bytes(id);
    total.words += measure.words(previous, id);
  });
  require(total.tokens > 0, Cause{ErrorCode::out_of_range},
          "n-gram baselines: there is no held-out token to score");
  result.bigram.tokens = total.tokens;
  result.bigram.bytes = total.bytes;
  result.bigram.words = total.words;
  return result;
}

}  // namespace linnet
