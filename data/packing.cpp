// Windows of a corpus as rows of batches.
#include "data/packing.h"

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "data/permutation.h"

namespace linnet {
namespace {

Batch make_batch(int64_t rows, int64_t length) {
  Batch batch;
  batch.B = rows;
  batch.T = length;
  const auto size = static_cast<size_t>(rows * length);
  batch.tokens.resize(size);
  batch.targets.assign(size, kNotScored);
  batch.positions.resize(size);
  return batch;
}

// Writes a window into a row as one segment and returns its tokens, with the one that the last
// predicts, which must lie inside the corpus.
std::vector<int32_t> fill_row(const TokenizedCorpus& corpus, const Window& window, int64_t row,
                              Batch& batch) {
  std::vector<int32_t> tokens(static_cast<size_t>(window.length) + 1);
  corpus.tokens.read(window.begin, tokens);
  const auto at = static_cast<size_t>(row * batch.T);
  std::copy_n(tokens.begin(), window.length, batch.tokens.begin() + static_cast<int64_t>(at));
  for (int64_t t = 0; t < window.length; ++t) {
    const size_t i = at + static_cast<size_t>(t);
    batch.positions[i] = static_cast<int32_t>(window.first_position + t);
    if (t >= window.context_only) batch.targets[i] = tokens[static_cast<size_t>(t) + 1];
  }
  batch.target_count += window.length - window.context_only;
  return tokens;
}

// Turns a filled row into segments, one for each document that the window touches.
void separate_documents(const TokenizedCorpus& corpus, const Window& window, int64_t row,
                        Batch& batch) {
  size_t document = corpus.document_of(window.begin);
  int64_t document_end = corpus.document_end(document);
  int32_t segment = 0, position = 0;
  for (int64_t t = 0; t < window.length; ++t) {
    const auto i = static_cast<size_t>(row * batch.T + t);
    batch.segments[i] = segment;
    batch.positions[i] = position++;
    if (window.begin + t + 1 < document_end) continue;
    // The last token of a document: what follows belongs to another.
    batch.targets[i] = kNotScored;
    --batch.target_count;
    while (document_end <= window.begin + t + 1) document_end = corpus.document_end(++document);
    ++segment;
    position = 0;
  }
}

// The windows of tokens [begin, end), which are one stream.
void append_windows(int64_t begin, int64_t end, const EvaluationOptions& options,
                    std::vector<Window>& windows) {
  const int64_t last_input = end - 2;  // predicts the last token
  const int64_t stream = last_input + 1 - begin;
  // A longer one is no other window, and sums of it could overflow.
  const int64_t context = std::min(options.context, std::max<int64_t>(stream, 1));
  const int64_t stride = options.stride == 0 ? context : std::min(options.stride, context);
  require_positions(options.carry_state ? stream : std::min(context, stream));
  int64_t scored_to = begin;  // inputs before it have been scored
  for (int64_t at = begin; scored_to <= last_input; at += stride) {
    const int64_t length = std::min(context, last_input + 1 - at);
    const bool carried = options.carry_state && at != begin;
    windows.push_back({at, length, scored_to - at, carried ? at - begin : 0, carried});
    scored_to = at + length;
  }
}

}  // namespace

void require_positions(int64_t tokens) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  require_usage(tokens <= kMax, Cause{ErrorCode::out_of_range, "data.context"}, "a sequence of ",
                tokens, " tokens is longer than the ", kMax,
                " that positions of 32 bits count; make the context shorter, or score windows "
                "without carried state");
}

LmSampler::LmSampler(std::shared_ptr<const TokenizedCorpus> corpus, int64_t context,
                     bool cross_documents, uint64_t seed)
    : corpus_(std::move(corpus)),
      context_(context),
      cross_documents_(cross_documents),
      seed_(seed) {
  require_usage(context_ > 0, Cause{ErrorCode::out_of_range, "data.context"},
                "the context must be at least 1 token, got ", context_);
  windows_ = (corpus_->size() - 1) / context_;
  require_usage(windows_ > 0, Cause{ErrorCode::out_of_range, "data.context"},
                "the training split has ", corpus_->size(), " tokens, which is not one window of ",
                context_, " and a token to predict; lower data.context or add text");
  if (!cross_documents_) leave_out_windows();
}

// A window predicts nothing when each of its tokens is the last of its document.
void LmSampler::leave_out_windows() {
  std::vector<bool> empty(static_cast<size_t>(windows_), false);
  int64_t window = -1, ends = 0;
  for (size_t i = 0; i < corpus_->documents.size(); ++i) {
    const int64_t end = corpus_->document_end(i);
    if (end == corpus_->documents[i].begin) continue;
    const int64_t found = (end - 1) / context_;
    ends = found == window ? ends + 1 : 1;
    window = found;
    if (ends < context_ || window >= windows_) continue;
    empty[static_cast<size_t>(window)] = true;
    ++left_out_;
  }
  require_usage(left_out_ < windows_, Cause{ErrorCode::out_of_range, "data.train"},
                "the training split has nothing to predict: all its documents are of one token; "
                "add longer ones, or set data.cross_documents=true");
  if (left_out_ == 0) return;
  for (int64_t i = 0; i < windows_; ++i)
    if (!empty[static_cast<size_t>(i)]) shown_.push_back(i);
  windows_ -= left_out_;
}

Batch LmSampler::batch(int64_t first_example, int64_t rows) const {
  require(first_example >= 0 && rows > 0,
          "LmSampler: expected a first example >= 0 and rows > 0, got ", first_example, " and ",
          rows);
  Batch batch = make_batch(rows, context_);
  if (!cross_documents_) batch.segments.resize(batch.tokens.size());
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t example = first_example + row;
    const int64_t at = permuted_index(seed_, example / windows_, example % windows_, windows_);
    const int64_t id = shown_.empty() ? at : shown_[static_cast<size_t>(at)];
    const Window window{id * context_, context_, 0, 0, false};
    batch.example_ids.push_back(id);
    fill_row(*corpus_, window, row, batch);
    if (!cross_documents_) separate_documents(*corpus_, window, row, batch);
  }
  return batch;
}

EvaluationSet::EvaluationSet(std::shared_ptr<const TokenizedCorpus> corpus,
                             const TokenMeasure& measure, const EvaluationOptions& options,
                             int64_t rows)
    : corpus_(std::move(corpus)), measure_(&measure) {
  require_usage(options.context > 0, Cause{ErrorCode::out_of_range, "evaluate.contexts"},
                "evaluation needs a context of at least 1 token, got ", options.context);
  require_usage(0 <= options.stride && options.stride <= options.context,
                Cause{ErrorCode::out_of_range, "evaluate.stride"},
                "the stride must be 1 to the context (", options.context,
                "), or 0 for no overlap; got ", options.stride);
  require_usage(!options.carry_state || options.stride == 0 || options.stride == options.context,
                Cause{ErrorCode::conflict, "evaluate.stride"},
                "with carried state each token is read once: leave the stride at 0");
  require_usage(rows > 0, Cause{ErrorCode::out_of_range, "evaluate.batch"},
                "the batch must be at least 1, got ", rows);
  const int64_t size = corpus_->size();
  int64_t budget = options.max_tokens > 0 ? std::min(options.max_tokens, size) : size;
  const size_t streams = options.cross_documents ? 1 : corpus_->documents.size();
  for (size_t i = 0; i < streams && budget > 0; ++i) {
    const int64_t begin = options.cross_documents ? 0 : corpus_->documents[i].begin;
    const int64_t whole_end = options.cross_documents ? corpus_->size() : corpus_->document_end(i);
    const int64_t end = std::min(whole_end, begin + 1 + budget);
    append_windows(begin, end, options, windows_);
    budget -= std::max<int64_t>(end - 1 - begin, 0);
  }
  require_usage(!windows_.empty(), Cause{ErrorCode::out_of_range},
                "there is nothing to evaluate: no document has two tokens; add longer ones, or set "
                "data.cross_documents=true");
  for (const Window& window : windows_) target_count_ += window.length - window.context_only;

  if (options.carry_state) {
    for (size_t i = 0; i <= windows_.size(); ++i) first_.push_back(i);
    return;
  }
  std::stable_sort(windows_.begin(), windows_.end(),
                   [](const Window& a, const Window& b) { return a.length > b.length; });
  first_.push_back(0);
  for (size_t i = 1; i < windows_.size(); ++i)
    if (windows_[i].length != windows_[i - 1].length ||
        i - first_.back() == static_cast<size_t>(rows))
      first_.push_back(i);
  first_.push_back(windows_.size());
}

std::pair<int64_t, int64_t> EvaluationSet::largest_batch() const {
  std::pair<int64_t, int64_t> largest{0, 0};
  for (size_t i = 0; i + 1 < first_.size(); ++i) {
    const auto rows = static_cast<int64_t>(first_[i + 1] - first_[i]);
    const int64_t length = windows_[first_[i]].length;
    if (rows * length > largest.first * largest.second) largest = {rows, length};
  }
  return largest;
}

Batch EvaluationSet::batch(int64_t index) const {
  require(0 <= index && index < batches(), "EvaluationSet: batch ", index, " is not in 0 to ",
          batches() - 1);
  const size_t first = first_[static_cast<size_t>(index)],
               end = first_[static_cast<size_t>(index) + 1];
  Batch batch = make_batch(static_cast<int64_t>(end - first), windows_[first].length);
  for (size_t w = first; w < end; ++w) {
    const Window& window = windows_[w];
    batch.continues = window.continues;
    batch.example_ids.push_back(static_cast<int64_t>(w));
    const auto tokens = fill_row(*corpus_, window, static_cast<int64_t>(w - first), batch);
    for (auto t = static_cast<size_t>(window.context_only); t + 1 < tokens.size(); ++t) {
      batch.scored_bytes += measure_->bytes(tokens[t + 1]);
      batch.scored_words += measure_->words(tokens[t], tokens[t + 1]);
    }
  }
  return batch;
}

}  // namespace linnet
