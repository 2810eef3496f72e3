// Write-time normalisation of slot weights (ABC, footnote 5): w_t = alpha_t / sum_{j <= t} alpha_j,
// which is E F in the tiles of slot attention.
#include <algorithm>

#include "attention/primitives/slot_attention/tile.h"
#include "core/error.h"

namespace linnet {
namespace {

using chunked::kChunk;
using chunked::Scratch;
using slot_attention_detail::Kernel;
using slot_attention_detail::kTileTokens;
using slot_attention_detail::RunningNormalizer;
using slot_attention_detail::Tile;

SlotAttentionOptions checked(SlotAttentionOptions options) {
  require(options.control != SlotControl::given,
          "slot_write_weights: given weights are not normalised; control must be exp, sigmoid or "
          "relu");
  options.normalizer = SlotNormalizer::read_time;
  return options;
}

template <typename T>
SlotAttentionInputs<T> only_logits(SequenceView<const T> logits, const uint8_t* key_mask) {
  SlotAttentionInputs<T> inputs;
  inputs.logits = logits;
  inputs.key_mask = key_mask;
  return inputs;
}

// One task per (span, head).
template <typename T, typename Body>
void run(const Kernel<T>& kernel, const std::vector<Span>& spans, const Body& body) {
  chunked::run_tasks(static_cast<int64_t>(spans.size()) * kernel.H, kernel.work(spans),
                     [&](int64_t task) { body(spans[task / kernel.H], task % kernel.H); });
}

// Calls body(tile, E, F) for the tiles of a span; normalizer moves from before the span to after
// it.
template <typename T, typename Body>
void for_tiles(const Kernel<T>& kernel, const Span& span, int64_t h,
               std::vector<double>& normalizer, Scratch<T> scratch, const Body& body) {
  T* weights = scratch.take(kTileTokens * kernel.np);
  T* factors = scratch.take(kTileTokens * kernel.np);
  RunningNormalizer running = kernel.begin_normalizer(normalizer);
  Tile<T> tile;
  for (int64_t t = span.begin; t < span.end; t += tile.n) {
    kernel.next_tile(span.row, h, t, span.end, running, tile);
    kernel.load_weights(span.row, h, tile, {weights, weights});
    kernel.read_factors(tile, weights, running, factors);
    body(tile, weights, factors);
  }
  normalizer = kernel.end_normalizer(running);
}

template <typename T>
std::vector<double> normalizer_before(const Kernel<T>& kernel, const Span& span, int64_t h,
                                      const double* mass_in) {
  std::vector<double> normalizer(static_cast<size_t>(kernel.np), kernel.empty_normalizer());
  if (span.carries_in && mass_in != nullptr) {
    std::copy_n(mass_in + (span.row * kernel.H + h) * kernel.N, kernel.N, normalizer.data());
  }
  return normalizer;
}

}  // namespace

template <typename T>
void slot_write_weights_forward(const SlotAttentionOptions& options, SequenceView<const T> logits,
                                const uint8_t* key_mask, const std::vector<Span>& spans,
                                const double* mass_in, double* mass_out, SequenceView<T> weights) {
  const SlotAttentionOptions at_once = checked(options);
  const SlotAttentionInputs<T> inputs = only_logits(logits, key_mask);
  const Kernel<T> kernel(at_once, inputs, logits.H, logits.K, 1, 1);
  run(kernel, spans, [&](const Span& span, int64_t h) {
    std::vector<double> normalizer = normalizer_before(kernel, span, h, mass_in);
    for_tiles(kernel, span, h, normalizer, Scratch<T>(),
              [&](const Tile<T>& tile, const T* alpha, const T* factors) {
                for (int64_t i = 0; i < tile.n; ++i) {
                  T* out = weights.at(span.row, tile.t + i, h);
                  for (int64_t l = 0; l < kernel.N; ++l) {
                    out[l] = alpha[i * kernel.np + l] * factors[i * kernel.np + l];
                  }
                }
              });
    if (span.carries_out && mass_out != nullptr) {
      std::copy_n(normalizer.data(), kernel.N, mass_out + (span.row * kernel.H + h) * kernel.N);
    }
  });
}

template <typename T>
void slot_write_weights_backward(const SlotAttentionOptions& options, SequenceView<const T> logits,
                                 const uint8_t* key_mask, const std::vector<Span>& spans,
                                 const double* mass_in, SequenceView<const T> dweights,
                                 const double* dmass_out, SequenceView<T> dlogits,
                                 double* dmass_in) {
  const SlotAttentionOptions at_once = checked(options);
  const SlotAttentionInputs<T> inputs = only_logits(logits, key_mask);
  const Kernel<T> kernel(at_once, inputs, logits.H, logits.K, 1, 1);
  const int64_t np = kernel.np, N = kernel.N;
  run(kernel, spans, [&](const Span& span, int64_t h) {
    const int64_t state = (span.row * kernel.H + h) * N, tokens = span.end - span.begin;
    Scratch<T> scratch;
    T* all_weights = scratch.take(tokens * np);
    T* all_factors = scratch.take(tokens * np);
    T* slopes = scratch.take(kChunk * np);
    T* gradients = scratch.take(kChunk * np);
    std::vector<double> normalizer = normalizer_before(kernel, span, h, mass_in);
    for_tiles(kernel, span, h, normalizer, scratch.nested(),
              [&](const Tile<T>& tile, const T* alpha, const T* factors) {
                const int64_t offset = (tile.t - span.begin) * np;
                std::copy_n(factors, tile.n * np, all_factors + offset);
                for (int64_t i = 0; i < tile.n * np; ++i) {
                  all_weights[offset + i] = alpha[i] * factors[i];
                }
              });
    // The gradient of the (log) sum after a token, on its way to before the span.
    std::vector<T> dmass(static_cast<size_t>(np));
    for (int64_t l = 0; span.carries_out && dmass_out != nullptr && l < N; ++l) {
      dmass[l] = static_cast<T>(dmass_out[state + l]);
    }
    Tile<T> tile;
    tile.reference.assign(static_cast<size_t>(np), T(0));
    for (int64_t end = span.end; end > span.begin; end = tile.t) {
      tile.t = std::max(span.begin, end - kChunk);
      tile.n = end - tile.t;
      // d alpha / d logit comes from alpha, which is relative to the sum in log space: w itself.
      if (kernel.log_space) {
        std::copy_n(all_weights + (tile.t - span.begin) * np, tile.n * np, slopes);
      } else {
        kernel.load_weights(span.row, h, tile, {slopes, slopes});
      }
      std::fill_n(gradients, tile.n * np, T(0));
      for (int64_t i = tile.n - 1; i >= 0; --i) {
        if (!is_valid(key_mask, span.row, tile.t + i, logits.T)) continue;
        const T* given = dweights.at(span.row, tile.t + i, h);
        const T* weight = all_weights + (tile.t - span.begin + i) * np;
        const T* factor = all_factors + (tile.t - span.begin + i) * np;
        T* out = gradients + i * np;
        for (int64_t l = 0; l < N; ++l) {
          if (kernel.log_space) {
            // z' = log(e^z + e^a): dz'/da = w, dz'/dz = 1 - w, and w = e^{a - z'}.
            const T after = dmass[l] - given[l] * weight[l];
            out[l] = given[l] + after;
            dmass[l] = (1 - weight[l]) * after;
          } else {
            if (!kernel.is_clamped(factor[l])) dmass[l] -= given[l] * weight[l] * factor[l];
            out[l] = given[l] * factor[l] + dmass[l];
          }
        }
      }
      kernel.store_logit_gradients(span.row, h, tile, slopes, gradients, dlogits);
    }
    if (span.carries_in && dmass_in != nullptr) {
      std::copy_n(dmass.data(), N, dmass_in + state);
    }
  });
}

#define LINNET_INSTANTIATE(T)                                                                      \
  template void slot_write_weights_forward<T>(const SlotAttentionOptions&, SequenceView<const T>,  \
                                              const uint8_t*, const std::vector<Span>&,            \
                                              const double*, double*, SequenceView<T>);            \
  template void slot_write_weights_backward<T>(const SlotAttentionOptions&, SequenceView<const T>, \
                                               const uint8_t*, const std::vector<Span>&,           \
                                               const double*, SequenceView<const T>,               \
                                               const double*, SequenceView<T>, double*);
LINNET_INSTANTIATE(float)
LINNET_INSTANTIATE(double)
#undef LINNET_INSTANTIATE

}  // namespace linnet
