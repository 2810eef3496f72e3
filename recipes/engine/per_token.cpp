#include "recipes/engine/per_token.h"

#include <algorithm>
#include <numeric>

namespace linnet {
namespace {

// The token of the corpus that a window predicts first.
int64_t first_target(const Window& window) {
  return window.begin + window.context_only + 1;
}

// The rows of each window: those of all tokens that are scored before its own.
std::vector<int64_t> rows_of(const std::vector<Window>& windows) {
  std::vector<size_t> order(windows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return first_target(windows[a]) < first_target(windows[b]);
  });
  std::vector<int64_t> rows(windows.size());
  int64_t row = 0;
  for (const size_t i : order) {
    rows[i] = row;
    row += windows[i].length - windows[i].context_only;
  }
  return rows;
}

}  // namespace

PerTokenFile::PerTokenFile(const PerTokenRequest& request, const EvaluationSet& set)
    : set_(&set),
      first_rows_(rows_of(set.windows())),
      file_(request.path,
            {{"nll", DType::f64},
             {"position", DType::i64},
             {"id", DType::i32},
             {"document", DType::i32}},
            set.target_count(), request.about) {}

void PerTokenFile::add(const Batch& batch, std::span<const double> losses) {
  const TokenizedCorpus& corpus = set_->corpus();
  for (int64_t row = 0; row < batch.B; ++row) {
    const auto index = static_cast<size_t>(batch.example_ids[static_cast<size_t>(row)]);
    const Window& window = set_->windows()[index];
    int64_t token = first_target(window);
    size_t document = corpus.document_of(token);
    std::vector<double> nlls;
    std::vector<int64_t> positions;
    std::vector<int32_t> ids, documents;
    for (int64_t t = window.context_only; t < window.length; ++t, ++token) {
      while (token >= corpus.document_end(document)) ++document;
      const auto at = static_cast<size_t>(row * batch.T + t);
      nlls.push_back(losses[at]);
      positions.push_back(token - corpus.documents[document].begin);
      ids.push_back(batch.targets[at]);
      documents.push_back(static_cast<int32_t>(document));
    }
    const Shape shape{static_cast<int64_t>(ids.size())};
    const int64_t first = first_rows_[index];
    file_.write(0, first, Tensor::from(nlls, shape));
    file_.write(1, first, Tensor::from(positions, shape));
    file_.write(2, first, Tensor::from(ids, shape));
    file_.write(3, first, Tensor::from(documents, shape));
  }
}

}  // namespace linnet
