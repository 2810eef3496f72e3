#include "attention/reformer/buckets.h"

#include <algorithm>
#include <cmath>

#include "attention/primitives/common/binding.h"
#include "attention/primitives/common/cuda/token_spans.h"
#include "attention/primitives/common/tile_gemm.h"
#include "attention/reformer/bucket_rule.h"
#include "attention/reformer/cuda/chunks.h"
#include "core/cuda/backend.h"
#include "core/threads.h"

namespace linnet {

BucketRule::BucketRule(int64_t chunk_in, int64_t longest_in, int64_t fixed_in)
    : chunk(chunk_in), longest(longest_in), fixed(fixed_in) {
  const int64_t chunks = longest / chunk;
  const auto root = static_cast<int64_t>(std::sqrt(static_cast<double>(chunks)));
  limit = 2 * std::max(root, chunk);
}

int64_t BucketRule::directions() const {
  int64_t most = factors(longest).directions();
  // Shorter sequences may have more directions, where their buckets are not factored yet.
  for (int64_t tokens = longest; fixed == 0 && tokens > 0; tokens /= 2) {
    most = std::max(most, factors(tokens).directions());
  }
  return most;
}

Tensor document_spans(const Tensor& segments) {
  if (!segments.defined()) return {};
  if constexpr (kCuda) {
    if (on_cuda(segments)) return cuda::token_spans(segments);
  }
  const int64_t B = segments.size(0), T = segments.size(1);
  const Tensor spans = Tensor::empty({2, B, T}, DType::i32);
  for (const Span& span : make_spans(segments.data<int32_t>(), B, T, false)) {
    int32_t* begins = spans.data<int32_t>() + span.row * T;
    std::fill(begins + span.begin, begins + span.end, static_cast<int32_t>(span.begin));
    std::fill(begins + B * T + span.begin, begins + B * T + span.end,
              static_cast<int32_t>(span.end));
  }
  return spans;
}

Tensor hash_buckets(const Tensor& x, const Tensor& rotations, const BucketContext& context) {
  const int64_t rounds = context.rounds, stride = context.rule.directions();
  require(x.shape().rank() == 4 && rounds > 0 &&
              rotations.shape() == Shape({x.size(2), rounds * stride, x.size(3)}),
          "hash buckets: expected x [B,T,H,K] and rotations [H, ", rounds, " * ", stride,
          ", K], got ", x.shape(), " and ", rotations.shape());
  const int64_t B = x.size(0), T = x.size(1), H = x.size(2), K = x.size(3);
  const Tensor buckets = Tensor::empty({B, T, H, rounds}, DType::i32, x.device());
  if constexpr (kCuda) {
    if (on_cuda(x)) {
      cuda::hash_buckets(x, rotations, context, buckets);
      return buckets;
    }
  }
  const BucketHash hash{context.rule,
                        T,
                        H,
                        rounds,
                        binding::pointer<uint8_t>(context.mask),
                        binding::pointer<int32_t>(context.spans),
                        B * T};
  const Tensor wide_x = x.to(DType::f64), wide_rotations = rotations.to(DType::f64);
  const double *vectors = wide_x.data<double>(), *directions = wide_rotations.data<double>();
  int32_t* to = buckets.data<int32_t>();
  const int64_t few = std::max<int64_t>((1 << 17) / (stride * K), 1);
  parallel_for(buckets.elements(), few, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t vector = i / rounds, first = (vector % H * rounds + i % rounds) * stride;
      to[i] = hash.bucket(i, [&](int64_t r) {
        count_multiply_adds(K);
        return dot_row(directions + (first + r) * K, vectors + vector * K, K);
      });
    }
  });
  return buckets;
}

}  // namespace linnet
