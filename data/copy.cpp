#include "data/copy.h"

#include <algorithm>

#include "data/sequences.h"

namespace linnet {
namespace {

struct CopyOptions : SequenceOptions {
  static void describe(ConfigDescription<CopyOptions>& d) { d.group<SequenceOptions>(); }
};

constexpr int32_t kSeparator = 0;

// x_0 .. x_(n-1), 0, x_0 .. x_(n-2) with n half the length and symbols of 1 .. V-1. From the
// separator on, the target is the symbol that comes next: x_0 .. x_(n-1).
SequenceDataset make(const DataConfig& config) {
  const auto& options = config.options.as<CopyOptions>();
  SequenceDataset data = sequences_of(
      config, concat("copies of ", config.context / 2, " symbols, generated"), config.context / 2);
  const int64_t symbols = options.vocabulary - 1;
  data.generate = [seed = static_cast<uint64_t>(options.seed), symbols](
                      Split split, int64_t index, std::span<int32_t> tokens,
                      std::span<int32_t> targets) {
    SequenceDraws draws(seed, split, index);
    const size_t half = tokens.size() / 2;
    std::fill(targets.begin(), targets.end(), kNotScored);
    for (size_t i = 0; i < half; ++i) {
      tokens[i] = targets[half + i] = 1 + draws.below(symbols);
      if (i + 1 < half) tokens[half + i + 1] = tokens[i];
    }
    tokens[half] = kSeparator;
  };
  return data;
}

}  // namespace

DataKind copy_kind() {
  return {.name = "copy",
          .help = "copies of random symbols, generated",
          .options = KindOptions(CopyOptions()),
          .gives = SequenceData{make},
          .without_path = "generated sequences",
          .source_keys = {"vocabulary", "train_examples", "validation_examples", "test_examples",
                          "seed"},
          .check = check_sequences};
}

}  // namespace linnet
