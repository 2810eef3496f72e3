#include "data/copy.h"

#include <algorithm>

#include "core/error.h"
#include "data/sequences.h"

namespace linnet {
namespace {

struct CopyOptions : SequenceOptions {
  int64_t min_symbols = 0;
  static void describe(ConfigDescription<CopyOptions>& d) {
    d.group<SequenceOptions>();
    d.field("min_symbols", &CopyOptions::min_symbols,
            "fewest symbols of a sequence, which has up to data.context / 2 - 1, and 0 as the end "
            "of its copy; 0: always data.context / 2, and no end")
        .range(0, 1 << 23);
  }
};

constexpr int32_t kSeparator = 0;

// x_0 .. x_(n-1), 0, x_0 .. x_(n-2) with n half the length and symbols of 1 .. V-1. From the
// separator on, the target is the symbol that comes next: x_0 .. x_(n-1). With fewer symbols, k <
// n, both halves end in 0, and so do the targets: x_0 .. x_(k-1), 0.
class Copies {
 public:
  Copies(const CopyOptions& options)
      : seed_(static_cast<uint64_t>(options.seed)),
        symbols_(options.vocabulary - 1),
        least_(options.min_symbols) {}

  void operator()(Split split, int64_t index, std::span<int32_t> tokens,
                  std::span<int32_t> targets) const {
    SequenceDraws draws(seed_, split, index);
    const auto half = static_cast<int64_t>(tokens.size() / 2);
    const int64_t count = least_ == 0 ? half : least_ + draws.below(half - least_);
    std::fill(tokens.begin(), tokens.end(), kSeparator);
    std::fill(targets.begin(), targets.end(), kNotScored);
    const auto at = [](int64_t place) { return static_cast<size_t>(place); };
    for (int64_t i = 0; i < count; ++i) {
      const int32_t symbol = 1 + draws.below(symbols_);
      tokens[at(i)] = targets[at(half + i)] = symbol;
      if (i + 1 < half) tokens[at(half + i + 1)] = symbol;
    }
    if (count < half) targets[at(half + count)] = kSeparator;
  }

 private:
  uint64_t seed_;
  int64_t symbols_, least_;
};

SequenceDataset make(const DataConfig& config) {
  const auto& options = config.options.as<CopyOptions>();
  const int64_t half = config.context / 2, least = options.min_symbols;
  SequenceDataset data =
      sequences_of(config,
                   concat("copies of ", least == 0 ? concat(half) : concat(least, " to ", half - 1),
                          " symbols, generated"),
                   least == 0 ? half : least + 1);
  data.source = half;
  data.generate = Copies(options);
  return data;
}

void check(const DataConfig& config, const ConfigNode& at) {
  check_sequences(config, at);
  const int64_t least = config.options.as<CopyOptions>().min_symbols;
  if (least < config.context / 2 || least == 0) return;
  throw located_error(at.location_of("min_symbols"), Cause{ErrorCode::out_of_range, "min_symbols"},
                      least,
                      " symbols, their copy and an end of each need a data.context of at "
                      "least ",
                      2 * least + 2, ", got ", config.context);
}

}  // namespace

DataKind copy_kind() {
  return {.name = "copy",
          .help = "copies of random symbols, generated",
          .options = KindOptions(CopyOptions()),
          .gives = SequenceData{make},
          .without_path = "generated sequences",
          .source_keys = {"min_symbols", "vocabulary", "train_examples", "validation_examples",
                          "test_examples", "seed"},
          .check = check};
}

}  // namespace linnet
