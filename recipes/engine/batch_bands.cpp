#include "recipes/engine/batch_bands.h"

#include <utility>

#include "layers/bands.h"

namespace linnet {

void add_bands(const ModelConfig& model, int64_t vocabulary, Batch& batch) {
  const bool adaptive_input = model.embedding == "adaptive";
  if (!adaptive_input && !model.has_adaptive_head()) return;
  const Bands bands = bands_of(model, vocabulary);
  if (adaptive_input) {
    BandRows rows = token_bands(bands, batch.tokens);
    batch.token_band_sizes = std::move(rows.sizes);
    batch.token_band_ids = std::move(rows.ids);
    batch.token_band_rows = std::move(rows.rows);
  }
  if (!model.has_adaptive_head()) return;
  TargetBands targets = target_bands(bands, batch.targets, model.head_compat);
  batch.head_targets = std::move(targets.head);
  batch.target_tail_sizes = std::move(targets.tails.sizes);
  batch.target_tail_ids = std::move(targets.tails.ids);
  batch.target_tail_rows = std::move(targets.tails.rows);
}

}  // namespace linnet
