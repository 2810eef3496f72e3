#include "attention/probsparse/active_queries.h"

#include <vector>

#include "attention/primitives/common/binding.h"
#include "attention/probsparse/active_queries_rule.h"
#include "attention/probsparse/cuda/active_queries.h"
#include "core/cuda/backend.h"
#include "core/sort.h"
#include "core/threads.h"

namespace linnet {
namespace {

using active_queries_rule::Queries;

template <typename Number>
constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(Number));  // of a cache

// The valid tokens of every row in order, i32 [B,T], and their number [B].
struct ValidTokens {
  Tensor places, counts;
};

ValidTokens valid_tokens(const Tensor& mask) {
  if (!mask.defined()) return {};
  const int64_t B = mask.size(0), T = mask.size(1);
  const ValidTokens tokens{Tensor::empty({B, T}, DType::i32, mask.device()),
                           Tensor::empty({B}, DType::i32, mask.device())};
  if constexpr (kCuda) {
    if (on_cuda(mask)) {
      cuda::valid_tokens(mask, tokens.places, tokens.counts);
      return tokens;
    }
  }
  for (int64_t b = 0; b < B; ++b) {
    int32_t count = 0;
    for (int64_t t = 0; t < T; ++t) {
      if (mask.data<uint8_t>()[b * T + t] == 0) continue;
      tokens.places.data<int32_t>()[b * T + count++] = static_cast<int32_t>(t);
    }
    tokens.counts.data<int32_t>()[b] = count;
  }
  return tokens;
}

// A token's heads after each other: they read the same keys.
template <typename Number>
void rank_queries(const Queries<Number>& rule, int64_t B, float* ranking) {
  const int64_t T = rule.tokens, H = rule.heads, row = H * rule.width;
  parallel_for(B * T, 16, [&](int64_t begin, int64_t end) {
    std::vector<int64_t> keys;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / T, t = i % T;
      const bool valid = rule.is_valid(b, t);
      const int64_t samples =
          valid ? active_queries_rule::sample_count(rule.count(b), rule.factor) : 0;
      keys.clear();
      for (int64_t s = 0; s < samples; ++s) {
        keys.push_back(rule.sampled_key(b, t, s));
        // The keys of a long sequence exceed the cache.
        const Number* key = rule.k + (b * rule.sources + keys.back()) * row;
        for (int64_t c = 0; c < row; c += kLine<Number>) __builtin_prefetch(key + c);
      }
      for (int64_t h = 0; h < H; ++h) {
        const int64_t item = (b * H + h) * T + t;
        ranking[item] = rule.order(item, [&](int64_t s) { return keys[static_cast<size_t>(s)]; });
      }
    }
  });
}

template <typename Body>
void for_all(int64_t count, const Body& body) {
  parallel_for(count, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i);
  });
}

}  // namespace

int64_t probsparse_count(int64_t n, int64_t factor) {
  return active_queries_rule::sample_count(n, factor);
}

Tensor probsparse_draws(const RandomKey& key, int64_t T, int64_t S, int64_t factor) {
  const int64_t columns = probsparse_count(S, factor);
  const Tensor draws = Tensor::empty({T, columns}, DType::f64);
  for (int64_t i = 0; i < draws.elements(); ++i) {
    draws.data<double>()[i] =
        key.uniform(active_queries_rule::draw_element(i / columns, i % columns));
  }
  return draws;
}

Tensor active_queries(const Tensor& q, const Tensor& k, const ProbsparseMasks& masks,
                      const Tensor& draws, const RandomKey& key, int64_t factor) {
  const int64_t B = q.size(0), T = q.size(1), H = q.size(2), K = q.size(3), S = k.size(1);
  const Device device = q.device();
  const int64_t most = probsparse_count(T, factor), samples = probsparse_count(S, factor);
  require(!draws.defined() || draws.shape() == Shape({T, samples}),
          "active_queries: expected draws [", T, ", ", samples, "], got ",
          draws.defined() ? draws.shape() : Shape());
  const ValidTokens keys = valid_tokens(masks.keys);
  const Tensor query_counts = valid_tokens(masks.queries).counts;
  const Tensor ranking = Tensor::empty({B, H, T}, DType::f32, device);
  const Tensor sorted = Tensor::empty(ranking.shape(), DType::f32, device);
  const Tensor order = Tensor::empty(ranking.shape(), DType::i32, device);
  const Tensor active = Tensor::empty({B, H, most}, DType::i32, device);
  if constexpr (kCuda) {
    if (on_cuda(q)) {
      const cuda::ActiveQueries all{
          q, k, masks.queries, keys.places, keys.counts, query_counts, draws, key, factor};
      cuda::rank_queries(all, ranking);
      sort_rows(ranking, sorted, order);
      cuda::take_active(all, order, active);
      return active;
    }
  }
  binding::dispatch(q.dtype(), [&](auto zero) {
    using Number = decltype(zero);
    const Queries<Number> rule{T,
                               S,
                               H,
                               K,
                               factor,
                               q.data<Number>(),
                               k.data<Number>(),
                               binding::pointer<uint8_t>(masks.queries),
                               binding::pointer<int32_t>(keys.places),
                               binding::pointer<int32_t>(keys.counts),
                               binding::pointer<int32_t>(query_counts),
                               binding::pointer<double>(draws),
                               samples,
                               key};
    rank_queries(rule, B, ranking.data<float>());
    sort_rows(ranking, sorted, order);
    for_all(active.elements(), [&](int64_t i) {
      active.data<int32_t>()[i] = rule.active(order.data<int32_t>(), most, i);
    });
  });
  return active;
}

}  // namespace linnet
