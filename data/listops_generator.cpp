// The ListOps generator.
#include <unordered_set>

#include "core/error.h"
#include "core/free_memory.h"
#include "core/hash.h"
#include "core/random.h"
#include "data/listops.h"

namespace linnet {
namespace {

// One random tree; stops early when it exceeds the largest length.
class Tree {
 public:
  Tree(const ListopsConfig& config, uint64_t attempt)
      : config_(config), key_{static_cast<uint64_t>(config.seed), attempt, hash_name("listops")} {
    grow(1);
  }
  uint64_t size() const { return symbols_.size(); }
  // The symbols, or nothing when the length is out of range.
  const std::vector<int32_t>* symbols() const {
    const auto length = static_cast<int64_t>(symbols_.size());
    return length >= config_.min_length && length <= config_.max_length ? &symbols_ : nullptr;
  }

 private:
  // One draw a node: whether it is an operator, its digit or operator, its argument count.
  void grow(int64_t depth) {
    if (static_cast<int64_t>(symbols_.size()) > config_.max_length) return;
    const auto word = key_.words(node_++);
    const auto below = [&](size_t i, uint64_t count) {
      return static_cast<int64_t>((uint64_t{word[i]} * count) >> 32);
    };
    constexpr uint64_t kOperatorOneIn = 4;
    if (depth >= config_.max_depth || below(0, kOperatorOneIn) != 0) {
      symbols_.push_back(static_cast<int32_t>(1 + below(1, 10)));
      return;
    }
    symbols_.push_back(static_cast<int32_t>(kListopsMin + below(1, 4)));
    const int64_t arguments = 2 + below(2, static_cast<uint64_t>(config_.max_arguments - 1));
    for (int64_t i = 0; i < arguments; ++i) grow(depth + 1);
    symbols_.push_back(kListopsEnd);
  }

  const ListopsConfig& config_;
  RandomKey key_;
  uint64_t node_ = 0;
  std::vector<int32_t> symbols_;
};

// Throws UsageError where memory cannot hold the examples, each of the least length.
void require_memory(const ListopsConfig& config) {
  const int64_t examples =
      config.train_examples + config.validation_examples + config.test_examples;
  // Without closing brackets at least half of the symbols stay.
  const double symbols = static_cast<double>(config.min_length) / (config.brackets ? 1 : 2);
  const double needed =
      static_cast<double>(examples) * (symbols * sizeof(int32_t) + sizeof(int64_t));
  if (has_memory({}, needed)) return;
  throw UsageError(
      {ErrorCode::out_of_range, "data.listops"},
      concat(examples, " ListOps examples of at least ", config.min_length, " symbols need ",
             memory_text(needed), ", and ", memory_text(static_cast<double>(free_memory({}))),
             " are free; ask for fewer or shorter ones"));
}

}  // namespace

ClassificationDataset generate_listops(const ListopsConfig& config) {
  require_memory(config);
  ClassificationDataset data;
  data.layout = "generated ListOps";
  data.vocabulary_size = kListopsVocabulary;
  data.classes = 10;
  // Expressions seen, by hash: a collision would only drop an example.
  std::unordered_set<uint64_t> seen;
  uint64_t attempt = 0, last_success = 0, futile_symbols = 0;
  // Both end a search within a minute.
  constexpr uint64_t kFutileAttempts = 1'000'000, kFutileSymbols = 1'000'000'000;
  const std::pair<Split, int64_t> wanted[] = {{Split::test, config.test_examples},
                                              {Split::validation, config.validation_examples},
                                              {Split::train, config.train_examples}};
  for (const auto& [name, examples] : wanted) {
    auto split = std::make_shared<ClassificationSplit>();
    while (split->size() < examples) {
      require_usage(attempt - last_success < kFutileAttempts && futile_symbols < kFutileSymbols,
                    Cause{ErrorCode::out_of_range, "data.listops"}, "only ", seen.size(),
                    " distinct ListOps expressions of length ", config.min_length, " to ",
                    config.max_length, " were found; ask for fewer examples or a wider range");
      const Tree tree(config, attempt++);
      futile_symbols += tree.size();
      const auto* symbols = tree.symbols();
      if (symbols == nullptr) continue;
      const std::string_view bytes(reinterpret_cast<const char*>(symbols->data()),
                                   symbols->size() * sizeof(int32_t));
      if (!seen.insert(hash64(bytes)).second) continue;
      last_success = attempt;
      futile_symbols = 0;
      const int32_t label = evaluate_listops(*symbols);
      std::vector<int32_t> kept = *symbols;
      if (!config.brackets) std::erase(kept, kListopsEnd);
      split->add(kept, label);
    }
    data.splits[static_cast<size_t>(name)] = std::move(split);
  }
  return data;
}

}  // namespace linnet
