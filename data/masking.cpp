#include "data/masking.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace linnet {
namespace {

// Draws of one position.
enum Channel : uint8_t { kMasked, kReplaced, kWord, kChannels };

// Products of tensor cores take rows eight at a time.
constexpr int64_t kGranule = 8;

}  // namespace

void MaskingOptions::describe(ConfigDescription<MaskingOptions>& d) {
  d.field("rate", &MaskingOptions::rate, "masked_language_model: share of the words to predict")
      .above(0)
      .below(1);
  d.field("masked", &MaskingOptions::masked,
          "masked_language_model: share of these that the mask token replaces")
      .range(0, 1);
  d.field("random", &MaskingOptions::random,
          "masked_language_model: share that a random word replaces; the rest is kept")
      .range(0, 1);
  d.field("per_token", &MaskingOptions::per_token,
          "masked_language_model: draw for each word alone whether it is predicted (Hugging Face), "
          "else their number in a row is fixed (fairseq)");
}

Masking::Masking(const Tokenizer& tokenizer, const MaskingOptions& options)
    : options_(options), vocabulary_(tokenizer.vocabulary_size()) {
  const SpecialIds ids = tokenizer.special_ids();
  mask_ = ids.mask;
  require_usage(mask_ >= 0, Cause{ErrorCode::conflict, "data.tokenizer.kind"},
                "task.kind masked_language_model puts a mask token in the place of words, and the ",
                tokenizer.kind(),
                " tokenizer of the data has none: set data.tokenizer to one of kind wordpiece or "
                "roberta, or to a tokenizer_json with a mask token");
  for (const int32_t id : {ids.pad, ids.unk, ids.cls, ids.sep, ids.mask, ids.bos, ids.eos}) {
    if (id >= 0) specials_.push_back(id);
  }
  std::sort(specials_.begin(), specials_.end());
  specials_.erase(std::unique(specials_.begin(), specials_.end()), specials_.end());
  require_usage(std::ssize(specials_) < vocabulary_,
                Cause{ErrorCode::out_of_range, "data.tokenizer"},
                "the vocabulary of data.tokenizer is special tokens only, and there is no word to "
                "predict; name another tokenizer");
}

bool Masking::is_special(int32_t id) const {
  return std::binary_search(specials_.begin(), specials_.end(), id);
}

int32_t Masking::random_word(const RandomKey& key, uint64_t element) const {
  const auto words = static_cast<uint64_t>(vocabulary_ - std::ssize(specials_));
  auto word = static_cast<int32_t>(key.below(element, words));
  for (const int32_t special : specials_) word += word >= special ? 1 : 0;
  return word;
}

void Masking::mask(const RandomKey& key, uint64_t example, std::span<int32_t> row,
                   std::vector<int32_t>& positions, std::vector<int32_t>& words) const {
  const auto element = [example](int32_t position, Channel channel) {
    return random_element(example, static_cast<uint64_t>(position), channel, kChannels);
  };
  std::vector<std::pair<double, int32_t>> drawn;  // a number in [0, 1) for each word
  for (int32_t position = 0; position < std::ssize(row); ++position) {
    if (is_special(row[static_cast<size_t>(position)])) continue;
    drawn.emplace_back(key.uniform(element(position, kMasked)), position);
  }
  if (drawn.empty()) return;
  std::sort(drawn.begin(), drawn.end());
  const double expected = options_.rate * static_cast<double>(drawn.size());
  const double uniform = key.at("count").uniform(element(0, kMasked));
  const auto masked =
      options_.per_token
          ? std::partition_point(drawn.begin(), drawn.end(),
                                 [this](const auto& word) { return word.first < options_.rate; }) -
                drawn.begin()
          : static_cast<int64_t>(expected + uniform);
  drawn.resize(static_cast<size_t>(std::clamp<int64_t>(masked, 1, std::ssize(drawn))));
  std::sort(drawn.begin(), drawn.end(),
            [](const auto& a, const auto& b) { return a.second < b.second; });
  for (const auto& [number, position] : drawn) {
    int32_t& token = row[static_cast<size_t>(position)];
    positions.push_back(position);
    words.push_back(token);
    const double replaced = key.uniform(element(position, kReplaced));
    if (replaced < options_.masked) {
      token = mask_;
    } else if (replaced < options_.masked + options_.random) {
      token = random_word(key, element(position, kWord));
    }
  }
}

int64_t Masking::places(int64_t rows, int64_t words, int64_t masked) const {
  const double all = static_cast<double>(words) * options_.rate;
  int64_t places = 0;
  if (options_.per_token) {
    constexpr double kDeviations = 6;
    const double expected = static_cast<double>(rows) * all;
    places =
        static_cast<int64_t>(expected + kDeviations * std::sqrt(expected * (1 - options_.rate))) +
        rows;  // of which a row without a draw needs one
  } else {
    places = rows * std::max<int64_t>(1, static_cast<int64_t>(std::ceil(all)));
  }
  const auto rounded = [](int64_t count) { return (count + kGranule - 1) / kGranule * kGranule; };
  places = rounded(places);
  while (places < masked) places *= 2;
  return std::min(places, rounded(rows * words));
}

}  // namespace linnet
