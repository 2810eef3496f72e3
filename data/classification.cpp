// Batches of labelled sequences.
#include "data/classification.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/free_memory.h"
#include "core/hash.h"
#include "data/archive.h"
#include "data/permutation.h"
#include "data/registry.h"
#include "data/token_cache.h"

namespace linnet {

std::span<const int32_t> ClassificationSplit::example(int64_t index, int64_t sequence) const {
  require(0 <= index && index < size(), Cause{ErrorCode::out_of_range}, "example ", index,
          " is not in 0 to ", size() - 1);
  require(0 <= sequence && sequence < sequences_per_example, Cause{ErrorCode::out_of_range},
          "sequence ", sequence, " of an example is not in 0 to ", sequences_per_example - 1);
  const auto at = static_cast<size_t>(index * sequences_per_example + sequence);
  const auto begin = offsets[at], end = offsets[at + 1];
  return std::span(tokens).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
}

int64_t ClassificationSplit::longest() const {
  int64_t longest = 0;
  for (size_t i = 0; i + 1 < offsets.size(); ++i)
    longest = std::max(longest, offsets[i + 1] - offsets[i]);
  return longest;
}

void ClassificationSplit::add(std::span<const int32_t> example, int32_t label) {
  add_sequence(example);
  labels.push_back(label);
}

void ClassificationSplit::add_sequence(std::span<const int32_t> sequence) {
  const size_t needed = tokens.size() + sequence.size();
  if (needed > tokens.capacity()) {
    const size_t room = std::max(needed, 2 * tokens.capacity());
    const double bytes = static_cast<double>(room) * sizeof(int32_t);
    require(has_memory({}, bytes), Cause{ErrorCode::out_of_range}, "the examples of a split need ",
            memory_text(bytes), " of memory after ", size(),
            " of them, and less is free; cut them shorter or take fewer");
    tokens.reserve(room);
  }
  tokens.insert(tokens.end(), sequence.begin(), sequence.end());
  offsets.push_back(static_cast<int64_t>(tokens.size()));
}

const std::shared_ptr<const ClassificationSplit>& ClassificationDataset::split(Split split) const {
  require(has(split), Cause{ErrorCode::not_found, concat("data.", name_of(split))},
          "the data set (", layout, ") has no ", name_of(split), " split");
  return splits[static_cast<size_t>(split)];
}

std::string ClassificationDataset::fingerprint(Split split) const {
  if (!has(split)) return "";
  const ClassificationSplit& examples = *this->split(split);
  Hash128 hash;
  const auto add = [&hash](const auto& values) {
    hash.add({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0])});
  };
  add(examples.offsets);
  add(examples.tokens);
  add(examples.labels);
  if (!examples.types.empty()) add(examples.types);
  if (!examples.values.empty()) add(examples.values);
  return hash.hex();
}

ClassificationDataset load_classification(const DataConfig& config,
                                          const std::shared_ptr<const Tokenizer>& tokenizer) {
  const LabelledData* examples = find_data_kind(config.kind).examples();
  require_usage(examples != nullptr, Cause{ErrorCode::conflict, "data.kind"}, "data of kind '",
                config.kind, "' has no labels");
  DataConfig local = config;
  local.path = unpacked(config.path, token_cache_folder());
  if (auto* option = local.options.find<TokenizerOption>(); option != nullptr && tokenizer)
    option->of_checkpoint = tokenizer;
  return examples->load(local);
}

ClassificationSampler::ClassificationSampler(std::shared_ptr<const ClassificationSplit> split,
                                             int64_t length, int32_t prepend_cls, uint64_t seed,
                                             int64_t together)
    : split_(std::move(split)), length_(length), cls_(prepend_cls), seed_(seed) {
  require_usage(split_->size() > 0, Cause{ErrorCode::out_of_range}, "the split has no examples");
  require(split_->sequences_per_example == 1,
          "ClassificationSampler: pairs of sequences need two rows an example");
  const int64_t longest = split_->longest();
  const bool drops_last = split_->cls_drops_last && longest == length_;
  const int64_t needed = longest + (cls_ >= 0 && !drops_last ? 1 : 0);
  require_usage(needed <= length_, Cause{ErrorCode::out_of_range, "data.context"},
                "data.context is ", length_, ", but the longest example needs ", needed, " tokens",
                cls_ >= 0 ? " with its CLS token" : "", "; raise data.context");
  if (together == 0) return;
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < split_->size(); ++i) lengths.push_back(row_length(i));
  like_ = std::make_shared<const LikeLengthOrder>(std::move(lengths), together, seed);
}

int64_t ClassificationSampler::row_length(int64_t example) const {
  const auto tokens = static_cast<int64_t>(split_->example(example).size());
  return std::min(length_, tokens + (cls_ >= 0 ? 1 : 0));
}

Batch ClassificationSampler::make_batch(int64_t rows, int64_t length) const {
  Batch batch;
  batch.B = rows;
  batch.T = length;
  const auto size = static_cast<size_t>(rows * length);
  batch.tokens.assign(size, split_->pad_id);
  if (!split_->types.empty()) batch.token_types.assign(size, 0);
  batch.positions.resize(size);
  batch.mask.assign(size, 0);
  for (size_t i = 0; i < size; ++i)
    batch.positions[i] = static_cast<int32_t>(static_cast<int64_t>(i) % length);
  return batch;
}

void ClassificationSampler::fill_row(int64_t example, int64_t row, Batch& batch) const {
  auto at = static_cast<size_t>(row * batch.T);
  const size_t end = at + static_cast<size_t>(batch.T);
  const auto put = [&](int32_t id) {
    if (at == end) return;  // the last token, which CLS took the room of
    batch.tokens[at] = id;
    batch.mask[at++] = id != 0 || !split_->zero_is_pad;
  };
  if (cls_ >= 0) put(cls_);
  const std::span<const int32_t> ids = split_->example(example);
  if (!split_->types.empty()) {
    const auto types =
        std::span(split_->types).subspan(static_cast<size_t>(ids.data() - split_->tokens.data()));
    std::copy_n(types.begin(), std::min(ids.size(), end - at), batch.token_types.begin() + at);
  }
  for (const int32_t id : ids) put(id);
  batch.example_ids.push_back(example);
  batch.labels.push_back(split_->labels[static_cast<size_t>(example)]);
  if (!split_->values.empty()) batch.values.push_back(split_->values[static_cast<size_t>(example)]);
  ++batch.target_count;
}

Batch ClassificationSampler::batch_of(std::span<const int64_t> examples) const {
  int64_t length = length_;
  if (like_ != nullptr) {
    int64_t longest = 0;
    for (const int64_t example : examples) longest = std::max(longest, row_length(example));
    length = padded_length(longest, length_);
  }
  Batch batch = make_batch(std::ssize(examples), length);
  for (int64_t row = 0; row < batch.B; ++row)
    fill_row(examples[static_cast<size_t>(row)], row, batch);
  return batch;
}

Batch ClassificationSampler::batch(int64_t first_example, int64_t rows) const {
  require(first_example >= 0 && rows > 0,
          "ClassificationSampler: expected a first example >= 0 and rows > 0, got ", first_example,
          " and ", rows);
  const int64_t count = split_->size();
  std::vector<int64_t> examples;
  for (int64_t place = first_example; place < first_example + rows; ++place) {
    examples.push_back(like_ != nullptr
                           ? like_->example(place)
                           : permuted_index(seed_, place / count, place % count, count));
  }
  return batch_of(examples);
}

std::vector<int64_t> ClassificationSampler::scoring_order(int64_t count) const {
  if (like_ != nullptr) return like_->longest_first(count);
  std::vector<int64_t> examples(static_cast<size_t>(count));
  std::iota(examples.begin(), examples.end(), int64_t{0});
  return examples;
}

Batch ClassificationSampler::in_order(int64_t first_example, int64_t rows) const {
  require(first_example >= 0 && first_example < split_->size() && rows > 0,
          "ClassificationSampler: example ", first_example, " is not in 0 to ", split_->size() - 1);
  std::vector<int64_t> examples(
      static_cast<size_t>(std::min(rows, split_->size() - first_example)));
  std::iota(examples.begin(), examples.end(), first_example);
  return batch_of(examples);
}

}  // namespace linnet
