// Masked language modelling (Devlin et al. 2019): which tokens of a row are masked, and what the
// model sees in their place.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/config.h"
#include "core/random.h"
#include "data/tokenizer.h"

namespace linnet {

struct MaskingOptions {
  double rate = 0.15;      // share of the words to predict
  double masked = 0.8;     // share of those that become the mask token
  double random = 0.1;     // share of those that become a random word; the rest is kept
  bool per_token = false;  // each word is drawn alone, else their number is fixed
  static void describe(ConfigDescription<MaskingOptions>& d);
};

// Masks rows of tokens. Special tokens are never masked, and never drawn as random words.
// Immutable.
class Masking {
 public:
  // Throws UsageError for a tokenizer without a mask token.
  Masking(const Tokenizer& tokenizer, const MaskingOptions& options);

  // Masks tokens of row number `example`, which has n that are not special: floor(rate n + u) with
  // u uniform in [0, 1), without replacement, as fairseq does, or with `per_token` each with
  // probability `rate`, as Hugging Face's collator does; in both at least one, as BERT's code has
  // it. Every draw is a function of (key, example, position) alone. Appends their positions, in
  // order, and the words that were there.
  void mask(const RandomKey& key, uint64_t example, std::span<int32_t> row,
            std::vector<int32_t>& positions, std::vector<int32_t>& words) const;

  // Places for the masked tokens of `rows` rows of at most `words` words that are no special
  // tokens: at least `masked` of them, and the same number for nearly every batch. A fixed count
  // never needs more than the first choice; draws of each word alone need another in one batch of
  // 10^9, and get twice as many.
  int64_t places(int64_t rows, int64_t words, int64_t masked) const;

 private:
  bool is_special(int32_t id) const;
  int32_t random_word(const RandomKey& key, uint64_t element) const;

  MaskingOptions options_;
  std::vector<int32_t> specials_;  // in order, each once
  int32_t mask_ = -1, vocabulary_ = 0;
};

}  // namespace linnet
