#include "layers/adaptive_tables.h"

#include <cmath>
#include <numeric>

#include "autograd/arithmetic.h"
#include "autograd/embedding.h"
#include "autograd/indexing.h"
#include "autograd/layout.h"
#include "autograd/linear.h"
#include "core/cuda/backend.h"
#include "core/cuda/runtime.h"
#include "layers/token_mixer.h"

namespace linnet {
namespace {

// Words by `words`, the rows behind them by `others`.
Initializer two_parts(int64_t words, Initializer of_words, Initializer of_others) {
  return [words, of_words = std::move(of_words), of_others = std::move(of_others)](
             const Tensor& values, const RandomKey& key) {
    of_words(values.rows(0, words), key);
    if (values.size(0) > words) {
      of_others(values.rows(words, values.size(0)), key.at("clusters"));
    }
  };
}

}  // namespace

AdaptiveTables::AdaptiveTables(const ModelConfig& config, const Bands& bands,
                               const ParameterScope& scope, Use use)
    : bands_(bands), width_(config.width) {
  for (int64_t band = 0; band < bands.count(); ++band) {
    const ParameterScope own = scope.child("bands").child(std::to_string(band));
    const int64_t words = bands.words(band), width = bands.width(band);
    const int64_t tails = use.output && band == 0 ? bands.count() - 1 : 0;
    const double deviation =
        config.scale_embedding ? 1 / std::sqrt(static_cast<double>(width)) : 0.02;
    tables_.push_back(
        own.parameter("weight", {words + tails, width},
                      two_parts(words, init_normal(deviation),
                                projection_init(config.init, 1, config.width, tails))));
    projections_.push_back(band > 0 || use.input
                               ? own.parameter("projection", {config.width, width},
                                               projection_init(config.init, 1, width, config.width))
                               : Variable());
  }
}

Variable AdaptiveTables::embed(const Tensor& tokens, const BandTensors& given,
                               double factor) const {
  BandTensors rows = given;
  if (!rows.ids.defined()) {
    rows = to_device(token_bands(bands_, ids_on_host(tokens)), tokens.device());
  }
  std::vector<Variable> parts;
  for (int64_t band = 0; band < bands_.count(); ++band) {
    const Variable vectors = embedding(of_band(rows.ids, rows.sizes, band), table(band), factor);
    parts.push_back(linear(vectors, projection(band)));
  }
  const Variable all = scatter_add(concatenate(parts, 0), rows.rows, tokens.elements());
  return reshape(all, {tokens.size(0), tokens.size(1), width_});
}

BandTensors to_device(const BandRows& rows, Device device) {
  const Shape shape{static_cast<int64_t>(rows.ids.size())};
  return {rows.sizes, Tensor::from(rows.ids, shape, device),
          Tensor::from(rows.rows, shape, device)};
}

Tensor of_band(const Tensor& values, const std::vector<int64_t>& sizes, int64_t band) {
  const auto first = std::accumulate(sizes.begin(), sizes.begin() + band, int64_t{0});
  return values.slice(first, {sizes[static_cast<size_t>(band)]});
}

std::vector<int32_t> ids_on_host(const Tensor& ids) {
  if constexpr (kCuda) {
    if (on_cuda(ids)) cuda::refuse_capture("a batch whose tokens the host has not sorted by band");
  }
  return ids.to_vector<int32_t>();
}

}  // namespace linnet
