// The feature maps of linear attention by themselves, for mechanisms that change features further.
#include <algorithm>

#include "attention/primitives/common/binding.h"
#include "attention/primitives/linear_attention/cuda/linear_attention.h"
#include "attention/primitives/linear_attention/cuda/path.h"
#include "attention/primitives/linear_attention/linear_attention.h"
#include "attention/primitives/linear_attention/tile.h"
#include "core/cuda/backend.h"
#include "core/threads.h"

namespace linnet {
namespace {

using namespace binding;
using chunked::kChunk;
using linear_attention_detail::FeatureTile;
using linear_attention_detail::Kernel;
using linear_attention_detail::Side;

constexpr const char* kName = "linear attention features";

LinearAttentionOptions options_of(FeatureMap map, double scale) {
  LinearAttentionOptions options;
  options.feature_map = map;
  options.query_scale = scale;
  options.normalizer = Normalizer::none;
  return options;
}

// Calls body(kernel, b, first token, tokens, head, features, rows [kChunk, kp] to work on) for all
// chunks.
template <typename T, typename Body>
void for_chunks(const LinearAttentionOptions& options, const Tensor& x, const Tensor& mask,
                const Body& body) {
  LinearAttentionInputs<T> in;
  in.q = view_of<T>(x);
  in.query_mask = pointer<uint8_t>(mask);
  const Kernel<T> kernel(options, in, in.q.H, in.q.H, 1);
  parallel_for(in.q.B * in.q.H, 1, [&](int64_t begin, int64_t end) {
    chunked::Scratch<T> scratch;
    const FeatureTile<T> tile = kernel.take_features(scratch, kChunk);
    T* rows = scratch.take(kChunk * kernel.kp);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t b = task / in.q.H, h = task % in.q.H;
      for (int64_t t = 0; t < in.q.T; t += kChunk) {
        const int64_t n = std::min(kChunk, in.q.T - t);
        kernel.load_features(Side::query, b, t, n, h, tile);
        body(kernel, b, t, n, h, tile, rows);
      }
    }
  });
}

template <typename T>
void forward(const LinearAttentionOptions& options, const Tensor& x, const Tensor& mask,
             const Tensor& out) {
  const SequenceView<T> to = view_of<T>(out);
  for_chunks<T>(options, x, mask,
                [&](const auto& kernel, int64_t b, int64_t t, int64_t n, int64_t h,
                    const FeatureTile<T>& tile, T*) {
                  for (int64_t i = 0; i < n; ++i) {
                    std::copy_n(tile.plain + i * kernel.kp, kernel.K, to.at(b, t + i, h));
                  }
                });
}

template <typename T>
void backward(const LinearAttentionOptions& options, const Tensor& x, const Tensor& mask,
              const Tensor& dy, const Tensor& dx) {
  const SequenceView<T> from = view_of<T>(dy), to = view_of<T>(dx);
  for_chunks<T>(options, x, mask,
                [&](const auto& kernel, int64_t b, int64_t t, int64_t n, int64_t h,
                    const FeatureTile<T>& tile, T* rows) {
                  for (int64_t i = 0; i < n; ++i) {
                    std::copy_n(from.at(b, t + i, h), kernel.K, rows + i * kernel.kp);
                  }
                  kernel.store_feature_gradients(Side::query, b, t, n, h, tile, rows, to);
                });
}

}  // namespace

Variable linear_attention_features(const Variable& x, FeatureMap map, double scale,
                                   const Tensor& mask) {
  const DType dtype = computing_type(x);
  const LinearAttentionOptions options = options_of(map, scale);
  check_sequence(x.value(), kName);
  check_leading(mask, x.value(), 2, kName, "mask");
  if constexpr (kCuda) {
    if (on_cuda(x.value())) {
      return record("linear_attention_features",
                    cuda::linear_attention_features(options, x.value(), mask), {x},
                    [options, mask, saved = x.value()](Gradients& gradients) {
                      gradients.add(0, cuda::linear_attention_feature_gradients(
                                           options, saved, mask, gradients.output()));
                    });
    }
  }
  const Tensor values = converted(x, dtype, kName);
  const Tensor out = empty_like(values);
  dispatch(dtype, [&](auto zero) { forward<decltype(zero)>(options, values, mask, out); });
  return record("linear_attention_features", out, {x}, [=](Gradients& gradients) {
    const Tensor dx = empty_like(values);
    dispatch(dtype, [&](auto zero) {
      backward<decltype(zero)>(options, values, mask, gradients.output(), dx);
    });
    gradients.add(0, dx);
  });
}

bool linear_attention_takes_rounded(const Tensor& features, int64_t values, bool causal,
                                    bool decays) {
  if constexpr (kCuda) {
    return on_cuda(features) &&
           cuda::linear_attention_takes_rounded(features, values, causal, decays);
  }
  return false;
}

}  // namespace linnet
