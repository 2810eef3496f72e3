#include "layers/bands.h"

#include <algorithm>

namespace linnet {
namespace {

// Band of a word, by binary search.
int64_t band_of(const Bands& bands, int32_t word, size_t at, const char* what) {
  require(word >= 0 && word < bands.begins.back(), "model: ", what, " ", word, " at position ", at,
          " is outside the vocabulary of ", bands.begins.back());
  return std::upper_bound(bands.begins.begin(), bands.begins.end(), word) - bands.begins.begin() -
         1;
}

// Rows of bands as lists, to be padded.
class Gathered {
 public:
  explicit Gathered(int64_t bands) : ids_(static_cast<size_t>(bands)), rows_(ids_.size()) {}
  void add(int64_t band, int32_t id, size_t row) {
    ids_[static_cast<size_t>(band)].push_back(id);
    rows_[static_cast<size_t>(band)].push_back(static_cast<int32_t>(row));
  }
  // `empty`: the id of empty places.
  BandRows padded(size_t tokens, int32_t empty) const {
    const size_t step = (std::max<size_t>(tokens, 1) - 1) / 32 + 1;
    BandRows result;
    for (size_t band = 0; band < ids_.size(); ++band) {
      const size_t taken = ids_[band].size();
      size_t places = step;
      while (places < taken) places *= 2;
      result.sizes.push_back(static_cast<int64_t>(places));
      result.ids.insert(result.ids.end(), ids_[band].begin(), ids_[band].end());
      result.ids.insert(result.ids.end(), places - taken, empty);
      result.rows.insert(result.rows.end(), rows_[band].begin(), rows_[band].end());
      result.rows.insert(result.rows.end(), places - taken, -1);
    }
    return result;
  }

 private:
  std::vector<std::vector<int32_t>> ids_, rows_;
};

}  // namespace

Bands bands_of(const ModelConfig& config, int64_t vocabulary) {
  Bands bands;
  bands.begins = {0};
  bands.begins.insert(bands.begins.end(), config.cutoffs.begin(), config.cutoffs.end());
  const Cause cause{ErrorCode::out_of_range, "model.cutoffs"};
  require_usage(bands.begins.back() < vocabulary, cause, "model.cutoffs: ", bands.begins.back(),
                " leaves no words of the ", vocabulary,
                " that the data have; lower it, or use model.embedding=table");
  bands.begins.push_back(vocabulary);
  int64_t width = config.width;
  for (size_t band = 0; band + 1 < bands.begins.size(); ++band) {
    require_usage(width > 0, cause, "model.cutoffs: band ", band,
                  " would have no channels: its width is model.width ", config.width,
                  " divided by model.cutoff_factor ", config.cutoff_factor,
                  " once for each band before it; name fewer cut-offs");
    bands.widths.push_back(width);
    width /= config.cutoff_factor;
  }
  return bands;
}

BandRows token_bands(const Bands& bands, std::span<const int32_t> tokens) {
  Gathered gathered(bands.count());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t band = band_of(bands, tokens[i], i, "token");
    gathered.add(band, tokens[i] - static_cast<int32_t>(bands.begins[static_cast<size_t>(band)]),
                 i);
  }
  return gathered.padded(tokens.size(), 0);
}

TargetBands target_bands(const Bands& bands, std::span<const int32_t> targets, bool compat) {
  TargetBands result;
  Gathered tails(bands.count() - 1);
  const auto first_tail = static_cast<int32_t>(bands.begins[1]);
  for (size_t i = 0; i < targets.size(); ++i) {
    const int64_t band = targets[i] == -1 ? 0 : band_of(bands, targets[i], i, "target");
    result.head.push_back(band == 0 ? targets[i] : first_tail + static_cast<int32_t>(band) - 1);
    if (band == 0) continue;
    const int32_t id = targets[i] - static_cast<int32_t>(bands.begins[static_cast<size_t>(band)]);
    if (!compat || id != 1) tails.add(band - 1, id, i);
  }
  result.tails = tails.padded(targets.size(), -1);
  return result;
}

}  // namespace linnet
