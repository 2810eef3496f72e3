#include "data/recall.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "data/sequences.h"

namespace linnet {
namespace {

struct RecallOptions : SequenceOptions {
  int64_t pairs = 8;
  double alpha = 0.01;
  static void describe(ConfigDescription<RecallOptions>& d) {
    d.group<SequenceOptions>();
    d.field("pairs", &RecallOptions::pairs, "keys with a value each; every key is asked for once")
        .range(1, 1 << 22);
    d.field("alpha", &RecallOptions::alpha,
            "a key is asked for at slot g = 0, 1, ... with probability proportional to "
            "(g + 1)^(alpha - 1): 1 is uniform")
        .above(0)
        .at_most(16);
  }
};

// Keys are ids 1 .. V/2-1, values V/2 .. V-1. The first 2 x pairs positions hold keys and values
// alternately; from there on a slot is two positions, at the first of which a key may stand again
// with its value as the target. All other positions hold any id and are not scored.
class Recall {
 public:
  Recall(const RecallOptions& options, int64_t length)
      : seed_(static_cast<uint64_t>(options.seed)),
        vocabulary_(options.vocabulary),
        pairs_(options.pairs) {
    for (int64_t slot = 0; slot < length / 2 - pairs_; ++slot)
      rates_.push_back(std::pow(static_cast<double>(slot + 1), options.alpha - 1));
  }

  void operator()(Split split, int64_t index, std::span<int32_t> tokens,
                  std::span<int32_t> targets) const {
    SequenceDraws draws(seed_, split, index);
    const auto first_value = static_cast<int32_t>(vocabulary_ / 2);
    const std::vector<int32_t> keys = draws.distinct(1, first_value - 1, pairs_);
    const std::vector<int32_t> values =
        draws.distinct(first_value, vocabulary_ - first_value, pairs_);
    for (int32_t& token : tokens) token = draws.below(vocabulary_);
    std::fill(targets.begin(), targets.end(), kNotScored);
    const std::vector<size_t> slots = draw_slots(draws);
    for (size_t pair = 0; pair < keys.size(); ++pair) {
      tokens[2 * pair] = keys[pair];
      tokens[2 * pair + 1] = values[pair];
      const size_t query = 2 * (keys.size() + slots[pair]);
      tokens[query] = keys[pair];
      targets[query] = values[pair];
    }
  }

 private:
  // A slot of each pair. Slots in the order of independent exponential waiting times are draws
  // without replacement, each with probability proportional to the rates of those that are left.
  std::vector<size_t> draw_slots(SequenceDraws& draws) const {
    std::vector<double> times;
    for (const double rate : rates_) times.push_back(draws.waiting_time(rate));
    std::vector<size_t> slots(times.size());
    std::iota(slots.begin(), slots.end(), size_t{0});
    std::partial_sort(slots.begin(), slots.begin() + pairs_, slots.end(), [&](size_t a, size_t b) {
      return times[a] != times[b] ? times[a] < times[b] : a < b;
    });
    slots.resize(static_cast<size_t>(pairs_));
    return slots;
  }

  uint64_t seed_;
  int64_t vocabulary_, pairs_;
  std::vector<double> rates_;  // of the slots
};

SequenceDataset make(const DataConfig& config) {
  const auto& options = config.options.as<RecallOptions>();
  SequenceDataset data = sequences_of(
      config, concat("associative recall of ", options.pairs, " pairs, generated"), options.pairs);
  data.generate = Recall(options, config.context);
  return data;
}

void check(const DataConfig& config, const ConfigNode& at) {
  check_sequences(config, at);
  const auto& options = config.options.as<RecallOptions>();
  const int64_t keys = options.vocabulary / 2 - 1;
  if (4 * options.pairs > config.context)
    throw located_error(at.location_of("pairs"), Cause{ErrorCode::out_of_range, "pairs"},
                        options.pairs, " pairs need a data.context of at least ", 4 * options.pairs,
                        ", got ", config.context);
  if (options.pairs > keys)
    throw located_error(
        at.location_of("pairs"), Cause{ErrorCode::out_of_range, "pairs"}, options.pairs,
        " pairs need as many different keys, and of data.vocabulary ", options.vocabulary, " ",
        keys, " are keys: raise it to at least ", 2 * options.pairs + 2);
}

}  // namespace

DataKind recall_kind() {
  return {.name = "recall",
          .help = "multi-query associative recall (Arora et al. 2023), generated",
          .options = KindOptions(RecallOptions()),
          .gives = SequenceData{make},
          .without_path = "generated sequences",
          .source_keys = {"pairs", "alpha", "vocabulary", "train_examples", "validation_examples",
                          "test_examples", "seed"},
          .check = check};
}

}  // namespace linnet
