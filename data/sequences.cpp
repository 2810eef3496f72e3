#include "data/sequences.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_map>

#include "core/error.h"
#include "core/hash.h"
#include "data/permutation.h"
#include "data/registry.h"

namespace linnet {

void SequenceOptions::describe(ConfigDescription<SequenceOptions>& d) {
  constexpr double kMaxExamples = 1e9;
  d.field("vocabulary", &SequenceOptions::vocabulary, "ids of the sequences").range(4, 1 << 24);
  d.field("train_examples", &SequenceOptions::train_examples, "size of the training split")
      .range(1, kMaxExamples);
  d.field("validation_examples", &SequenceOptions::validation_examples, "size of validation")
      .range(1, kMaxExamples);
  d.field("test_examples", &SequenceOptions::test_examples, "size of the test split")
      .range(1, kMaxExamples);
  d.field("seed", &SequenceOptions::seed, "all examples depend on it").at_least(0);
}

std::string SequenceDataset::fingerprint(Split split) const {
  constexpr int64_t kSequences = 16;
  const Batch first = batch_in_order(*this, split, 0, kSequences);
  const std::string sizes = concat(size(split), " of ", vocabulary_size, " ids");
  Hash128 hash;
  hash.add(sizes);
  for (const auto* array : {&first.tokens, &first.targets}) {
    hash.add({reinterpret_cast<const char*>(array->data()), array->size() * sizeof(int32_t)});
  }
  return hash.hex();
}

SequenceDataset sequences_of(const DataConfig& config, std::string layout, int64_t scored) {
  const auto& options = config.options.as<SequenceOptions>();
  SequenceDataset data;
  data.layout = std::move(layout);
  data.vocabulary_size = static_cast<int32_t>(options.vocabulary);
  data.length = config.context;
  data.scored = scored;
  data.examples = {options.train_examples, options.validation_examples, options.test_examples};
  return data;
}

SequenceDataset make_sequences(const DataConfig& config) {
  const SequenceData* sequences = find_data_kind(config.kind).sequences();
  require_usage(sequences != nullptr, Cause{ErrorCode::conflict, "data.kind"}, "data of kind '",
                config.kind, "' are no generated sequences");
  return sequences->make(config);
}

void check_sequences(const DataConfig& config, const ConfigNode& section) {
  if (!config.path.empty())
    throw located_error(section.location_of("path"), Cause{ErrorCode::conflict, "path"}, "kind ",
                        config.kind,
                        " generates its sequences and reads no files: leave out "
                        "data.path");
  if (config.context % 2 != 0)
    throw located_error(section.location_of("context"), Cause{ErrorCode::out_of_range, "context"},
                        "kind ", config.kind, " needs an even data.context, got ", config.context);
}

Batch batch_of(const SequenceDataset& data, Split split, std::span<const int64_t> examples) {
  Batch batch;
  batch.B = std::ssize(examples);
  batch.T = data.length;
  const auto length = static_cast<size_t>(data.length);
  batch.tokens.resize(examples.size() * length);
  batch.targets.resize(examples.size() * length);
  for (size_t row = 0; row < examples.size(); ++row) {
    data.generate(split, examples[row], std::span(batch.tokens).subspan(row * length, length),
                  std::span(batch.targets).subspan(row * length, length));
  }
  batch.example_ids.assign(examples.begin(), examples.end());
  batch.target_count = std::ssize(batch.targets) -
                       std::count(batch.targets.begin(), batch.targets.end(), kNotScored);
  return batch;
}

Batch with_source(const SequenceDataset& data, const Batch& batch) {
  require(data.source > 0, "these sequences have no source");
  Batch pairs = batch;
  pairs.T = batch.T - data.source;
  pairs.tokens.clear();
  pairs.targets.clear();
  for (int64_t row = 0; row < batch.B; ++row) {
    const int64_t begin = row * batch.T, middle = begin + data.source, end = begin + batch.T;
    const auto append = [](std::vector<int32_t>& to, const std::vector<int32_t>& from,
                           int64_t first, int64_t last) {
      to.insert(to.end(), from.begin() + first, from.begin() + last);
    };
    append(pairs.source, batch.tokens, begin, middle);
    append(pairs.tokens, batch.tokens, middle, end);
    append(pairs.targets, batch.targets, middle, end);
  }
  for (const int32_t token : pairs.source) pairs.source_mask.push_back(token != 0 ? 1 : 0);
  return pairs;
}

Batch batch_in_order(const SequenceDataset& data, Split split, int64_t first, int64_t rows) {
  require(first >= 0 && first < data.size(split) && rows > 0, "sequence ", first,
          " is not in 0 to ", data.size(split) - 1);
  std::vector<int64_t> examples(static_cast<size_t>(std::min(rows, data.size(split) - first)));
  std::iota(examples.begin(), examples.end(), first);
  return batch_of(data, split, examples);
}

Batch training_batch(const SequenceDataset& data, uint64_t seed, int64_t first, int64_t rows) {
  const int64_t count = data.size(Split::train);
  std::vector<int64_t> examples;
  for (int64_t place = first; place < first + rows; ++place)
    examples.push_back(permuted_index(seed, place / count, place % count, count));
  return batch_of(data, Split::train, examples);
}

double SequenceDraws::waiting_time(double rate) {
  return -std::log1p(-key_.uniform(next_++)) / rate;
}

std::vector<int32_t> SequenceDraws::distinct(int32_t first, int64_t choices, int64_t count) {
  // The first `count` steps of a shuffle, of which only the moved elements are kept.
  std::unordered_map<int64_t, int64_t> moved;
  const auto at = [&moved](int64_t place) {
    const auto found = moved.find(place);
    return found == moved.end() ? place : found->second;
  };
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t taken = i + below(choices - i);
    ids.push_back(first + static_cast<int32_t>(at(taken)));
    moved[taken] = at(i);
  }
  return ids;
}

}  // namespace linnet
