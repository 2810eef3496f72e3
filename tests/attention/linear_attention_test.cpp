// Linear attention kernels against their definition: all forms, maps, normalisers, masks, spans,
// carried states, thread counts.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "attention/primitives/linear_attention/cpu.h"
#include "core/error.h"
#include "core/random.h"
#include "core/threads.h"
#include "tests/worst.h"

namespace linnet {
namespace {

struct Sizes {
  int64_t B, Tq, Tk, H, G, K, V;
};

// One problem in double and, rounded, in T.
struct Problem {
  Sizes s;
  LinearAttentionOptions options;
  bool reweighted = false, causal = true;
  std::vector<double> q, k, v, pq, pk, memory, mass;
  std::vector<uint8_t> query_mask, key_mask;
  std::vector<Span> query_spans, key_spans;
  std::vector<double> log_decay;
  bool channel_decay = false;

  int64_t m() const { return reweighted ? 2 * s.K : s.K; }
};

std::vector<double> draws(int64_t n, uint64_t site) {
  std::vector<double> out(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    out[i] = static_cast<float>(RandomKey{7, 0, site}.normal(static_cast<uint64_t>(i)));
  }
  return out;
}

std::vector<double> fractions(int64_t n, uint64_t site) {
  std::vector<double> out = draws(n, site);
  for (double& x : out) x = static_cast<float>(1 / (1 + std::exp(-x)));
  return out;
}

Problem make_problem(const Sizes& s, const LinearAttentionOptions& options, bool reweighted,
                     bool causal, bool with_state, const std::vector<int32_t>& segments = {}) {
  Problem p{s, options, reweighted, causal, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, false};
  p.q = draws(s.B * s.Tq * s.H * s.K, 1);
  p.k = draws(s.B * s.Tk * s.G * s.K, 2);
  p.v = draws(s.B * s.Tk * s.G * s.V, 3);
  if (reweighted) {
    p.pq = fractions(s.B * s.Tq * s.H, 4);
    p.pk = fractions(s.B * s.Tk * s.G, 5);
  }
  const int32_t* ids = segments.empty() ? nullptr : segments.data();
  p.query_spans = make_spans(ids, s.B, s.Tq, with_state);
  p.key_spans = causal ? p.query_spans : make_spans(ids, s.B, s.Tk, false);
  if (with_state) {
    p.memory = draws(s.B * s.G * p.m() * s.V, 6);
    p.mass = fractions(s.B * s.G * p.m(), 7);
  }
  return p;
}

// Log-decays of heads or channels down to about -3 times `strength`.
void make_decay(Problem& p, double strength, bool of_channels = false) {
  p.channel_decay = of_channels;
  p.log_decay = draws(p.s.B * p.s.Tk * p.s.G * (of_channels ? p.s.K : 1), 8);
  for (double& g : p.log_decay) g = static_cast<float>(-strength * std::abs(g));
}

// Masks tokens and puts NaN into everything that belongs to them.
void mask_some(Problem& p, bool same_mask) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto spoil = [&](std::vector<double>& x, int64_t token, int64_t width) {
    for (int64_t c = 0; c < width && !x.empty(); ++c) x[token * width + c] = nan;
  };
  p.query_mask.assign(p.s.B * p.s.Tq, 1);
  p.key_mask.assign(p.s.B * p.s.Tk, 1);
  for (int64_t i = 0; i < p.s.B * p.s.Tq; ++i) p.query_mask[i] = i % 5 != 3;
  for (int64_t j = 0; j < p.s.B * p.s.Tk; ++j) p.key_mask[j] = same_mask ? j % 5 != 3 : j % 3 != 1;
  // A row without a valid key.
  for (int64_t j = 0; j < p.s.Tk; ++j) p.key_mask[(p.s.B - 1) * p.s.Tk + j] = 0;
  for (int64_t i = 0; i < p.s.B * p.s.Tq; ++i) {
    if (p.query_mask[i] != 0) continue;
    spoil(p.q, i, p.s.H * p.s.K);
    spoil(p.pq, i, p.s.H);
  }
  for (int64_t j = 0; j < p.s.B * p.s.Tk; ++j) {
    if (p.key_mask[j] != 0) continue;
    spoil(p.k, j, p.s.G * p.s.K);
    spoil(p.v, j, p.s.G * p.s.V);
    spoil(p.pk, j, p.s.G);
    spoil(p.log_decay, j, p.channel_decay ? p.s.G * p.s.K : p.s.G);
  }
}

template <typename T>
std::vector<T> rounded(const std::vector<double>& x) {
  return std::vector<T>(x.begin(), x.end());
}

// Runs kernel and reference; returns the worst error of y and of the final state, relative to
// `scale` + |expected|.
template <typename T>
double worst_error(const Problem& p) {
  const Sizes& s = p.s;
  const auto q = rounded<T>(p.q), k = rounded<T>(p.k), v = rounded<T>(p.v), pq = rounded<T>(p.pq),
             pk = rounded<T>(p.pk), log_decay = rounded<T>(p.log_decay),
             memory = rounded<T>(p.memory), mass = rounded<T>(p.mass);
  const auto or_null = [](const auto& x) { return x.empty() ? nullptr : x.data(); };
  LinearAttentionInputs<T> in;
  in.q = SequenceView<const T>(q.data(), s.B, s.Tq, s.H, s.K);
  in.k = SequenceView<const T>(k.data(), s.B, s.Tk, s.G, s.K);
  in.v = SequenceView<const T>(v.data(), s.B, s.Tk, s.G, s.V);
  in.query_proportions = or_null(pq);
  in.key_proportions = or_null(pk);
  in.log_decay = or_null(log_decay);
  in.query_mask = or_null(p.query_mask);
  in.key_mask = or_null(p.key_mask);
  in.channel_decay = p.channel_decay;
  LinearAttentionInputs<double> wide;
  wide.q = SequenceView<const double>(p.q.data(), s.B, s.Tq, s.H, s.K);
  wide.k = SequenceView<const double>(p.k.data(), s.B, s.Tk, s.G, s.K);
  wide.v = SequenceView<const double>(p.v.data(), s.B, s.Tk, s.G, s.V);
  wide.query_proportions = or_null(p.pq);
  wide.key_proportions = or_null(p.pk);
  wide.log_decay = or_null(p.log_decay);
  wide.query_mask = in.query_mask;
  wide.key_mask = in.key_mask;
  wide.channel_decay = p.channel_decay;

  const T nan = std::numeric_limits<T>::quiet_NaN();
  const int64_t outputs = s.B * s.Tq * s.H * s.V, states = s.B * s.G * p.m();
  std::vector<T> y(outputs, nan), denominators(s.B * s.Tq * s.H, nan);
  std::vector<T> memory_out(states * s.V, nan), mass_out(states, nan);
  std::vector<double> y_expected(outputs), memory_expected(states * s.V), mass_expected(states);
  const SequenceView<T> y_view(y.data(), s.B, s.Tq, s.H, s.V);
  linear_attention_reference(
      p.options, wide, p.causal, p.query_spans, p.key_spans, {or_null(p.memory), or_null(p.mass)},
      {memory_expected.data(), mass_expected.data()}, {y_expected.data(), s.B, s.Tq, s.H, s.V});
  if (p.causal) {
    linear_attention_causal_forward<T>(
        p.options, in, p.query_spans, {or_null(memory), or_null(mass)},
        {memory_out.data(), mass_out.data()}, y_view, denominators.data());
  } else {
    std::vector<T> sums(p.key_spans.size() * s.G * p.m() * s.V, nan);
    std::vector<T> masses(p.key_spans.size() * s.G * p.m(), nan);
    LinearAttentionInputs<T> keys = in, queries = in;
    keys.q = {};
    queries.k = queries.v = {};
    linear_attention_memory_forward<T>(p.options, keys, p.key_spans, {sums.data(), masses.data()});
    linear_attention_read_forward<T>(p.options, queries, p.query_spans, s.G,
                                     {sums.data(), masses.data()}, y_view, denominators.data());
  }
  double worst = 0;
  const auto compare = [&worst](const std::vector<T>& got, const std::vector<double>& expected) {
    double largest = 0;
    for (const double x : expected) largest = std::max(largest, std::abs(x));
    for (size_t i = 0; i < got.size(); ++i) {
      const double error = std::abs(got[i] - expected[i]) / (largest + 1e-3);
      test::keep_worst(worst, error);
    }
  };
  compare(y, y_expected);
  if (p.causal) {
    compare(memory_out, memory_expected);
    compare(mass_out, mass_expected);
  }
  return worst;
}

// Sums of up to `terms` products round by about sqrt(terms) units; 8 covers the maps and divisions.
template <typename T>
double tolerance(int64_t terms) {
  return 8 * std::sqrt(static_cast<double>(terms)) * std::numeric_limits<T>::epsilon();
}

// Map and normaliser. A denominator of signed features would cross epsilon, where y has no digits.
using Kinds = std::pair<FeatureMap, Normalizer>;
const Kinds kKinds[] = {
    {FeatureMap::identity, Normalizer::none}, {FeatureMap::elu, Normalizer::none},
    {FeatureMap::elu1, Normalizer::none},     {FeatureMap::elu1, Normalizer::clamp},
    {FeatureMap::elu1, Normalizer::add},      {FeatureMap::relu, Normalizer::none},
    {FeatureMap::relu, Normalizer::clamp},    {FeatureMap::relu, Normalizer::add}};

class LinearAttentionForms : public testing::TestWithParam<std::tuple<Kinds, bool, bool>> {};

TEST_P(LinearAttentionForms, AgreeWithTheDefinition) {
  const auto& [kinds, reweighted, causal] = GetParam();
  LinearAttentionOptions options;
  std::tie(options.feature_map, options.normalizer) = kinds;
  options.query_scale = 0.5;
  options.epsilon = 0.1;
  const Sizes sizes[] = {{2, 1, 1, 1, 1, 1, 1},       {1, 7, 7, 2, 2, 5, 3},
                         {2, 64, 64, 2, 1, 16, 16},   {1, 65, 65, 4, 2, 8, 33},
                         {2, 131, 131, 3, 3, 17, 20}, {1, 515, 515, 1, 1, 18, 33}};
  for (Sizes s : sizes) {
    if (!causal) s.Tq = s.Tq / 2 + 1;
    for (const bool with_state : {false, true}) {
      if (with_state && !causal) continue;
      Problem p = make_problem(s, options, reweighted, causal, with_state);
      EXPECT_LE(worst_error<double>(p), tolerance<double>(s.Tk * s.K)) << s.Tk;
      EXPECT_LE(worst_error<float>(p), tolerance<float>(s.Tk * s.K)) << s.Tk;
      mask_some(p, causal);
      EXPECT_LE(worst_error<double>(p), tolerance<double>(s.Tk * s.K)) << "masked " << s.Tk;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(All, LinearAttentionForms,
                         testing::Combine(testing::ValuesIn(kKinds), testing::Bool(),
                                          testing::Bool()));

TEST(LinearAttention, SegmentsAreIndependent) {
  const Sizes s{2, 150, 150, 2, 1, 6, 5};
  std::vector<int32_t> segments(s.B * s.Tq);
  for (int64_t t = 0; t < s.Tq; ++t) {
    segments[t] = t < 3 ? 0 : t < 80 ? 1 : t < 81 ? 2 : 3;
    segments[s.Tq + t] = t < 149 ? 5 : 6;
  }
  for (const bool causal : {true, false}) {
    Problem p = make_problem(s, {}, causal, causal, causal, segments);
    EXPECT_LE(worst_error<double>(p), tolerance<double>(s.Tk * s.K));
    mask_some(p, true);
    EXPECT_LE(worst_error<double>(p), tolerance<double>(s.Tk * s.K));
  }
}

class LinearAttentionDecays : public testing::TestWithParam<bool> {};

TEST_P(LinearAttentionDecays, AgreeWithTheDefinition) {
  const bool of_channels = GetParam();
  const Sizes sizes[] = {
      {2, 1, 1, 1, 1, 1, 1}, {2, 64, 64, 2, 1, 6, 5}, {2, 131, 131, 4, 2, 17, 20}};
  for (const Sizes& s : sizes) {
    // As gates do, hardly, and so strongly that products of decays underflow inside a chunk.
    for (const double strength : {0.1, 1e-6, 200.0}) {
      for (const bool with_state : {false, true}) {
        Problem p = make_problem(s, {}, with_state && !of_channels, true, with_state);
        make_decay(p, strength, of_channels);
        EXPECT_LE(worst_error<double>(p), tolerance<double>(s.Tk * s.K)) << s.Tk << " " << strength;
        EXPECT_LE(worst_error<float>(p), tolerance<float>(s.Tk * s.K)) << s.Tk << " " << strength;
        mask_some(p, true);
        EXPECT_LE(worst_error<double>(p), tolerance<double>(s.Tk * s.K)) << "masked " << s.Tk;
      }
    }
  }
  std::vector<int32_t> segments(2 * 131);
  for (size_t i = 0; i < segments.size(); ++i) segments[i] = static_cast<int32_t>(i / 50);
  Problem packed = make_problem({2, 131, 131, 2, 2, 4, 3}, {}, false, true, true, segments);
  make_decay(packed, 0.5, of_channels);
  EXPECT_LE(worst_error<double>(packed), tolerance<double>(131 * 4));
}
INSTANTIATE_TEST_SUITE_P(OfHeadsAndChannels, LinearAttentionDecays, testing::Bool());

TEST(LinearAttention, SplittingAmongThreadsChangesOnlyRounding) {
  const int before = thread_count();
  for (const bool causal : {true, false}) {
    for (const int64_t key_heads : {1, 2}) {
      Problem p = make_problem({1, 600, 600, 2, key_heads, 8, 8}, {}, true, causal, causal);
      for (const int threads : {1, 2, 64}) {
        set_thread_count(threads);
        EXPECT_LE(worst_error<double>(p), tolerance<double>(p.s.Tk * p.s.K)) << threads;
        if (!causal || threads < 64) continue;
        make_decay(p, 0.01);
        EXPECT_LE(worst_error<double>(p), tolerance<double>(p.s.Tk * p.s.K)) << "decaying";
      }
    }
  }
  set_thread_count(before);
}

// No tokens: states and their gradients pass through.
TEST(LinearAttention, SpansMayBeEmpty) {
  for (const int64_t heads : {2, 4}) {
    const int64_t G = 2, K = 3, V = 5;
    const std::vector<double> memory = draws(G * K * V, 1), mass = draws(G * K, 2);
    LinearAttentionInputs<double> in;
    in.q = SequenceView<const double>(memory.data(), 1, 0, heads, K);
    in.k = SequenceView<const double>(memory.data(), 1, 0, G, K);
    in.v = SequenceView<const double>(memory.data(), 1, 0, G, V);
    const std::vector<Span> spans = {{0, 0, 0, true, true}};
    std::vector<double> memory_out(memory.size()), mass_out(mass.size());
    linear_attention_causal_forward<double>({}, in, spans, {memory.data(), mass.data()},
                                            {memory_out.data(), mass_out.data()}, {}, nullptr);
    EXPECT_EQ(memory_out, memory);
    EXPECT_EQ(mass_out, mass);
    const std::vector<double> dmemory = draws(G * K * V, 3), dmass = draws(G * K, 4);
    linear_attention_causal_backward<double>({}, in, spans, {memory.data(), mass.data()}, {},
                                             nullptr, nullptr, {}, {dmemory.data(), dmass.data()},
                                             {}, {memory_out.data(), mass_out.data()});
    EXPECT_EQ(memory_out, dmemory);
    EXPECT_EQ(mass_out, dmass);
  }
}

TEST(LinearAttention, RefusesWhatDoesNotFit) {
  std::vector<double> x(64), y(64);
  LinearAttentionInputs<double> in;
  in.q = SequenceView<const double>(x.data(), 1, 2, 3, 4);
  in.k = in.v = SequenceView<const double>(x.data(), 1, 2, 2, 4);
  const SequenceView<double> out(y.data(), 1, 2, 3, 4);
  const std::vector<Span> spans = make_spans(nullptr, 1, 2, false);
  const auto run = [&](const LinearAttentionOptions& options) {
    linear_attention_causal_forward<double>(options, in, spans, {}, {}, out, nullptr);
  };
  EXPECT_THROW(run({}), Error);  // 3 query heads over 2 key heads
  in.k = in.v = SequenceView<const double>(x.data(), 1, 2, 1, 4);
  run({});
  LinearAttentionOptions zero;
  zero.epsilon = 0;
  EXPECT_THROW(run(zero), Error);
  in.key_proportions = x.data();
  EXPECT_THROW(run({}), Error);
}

}  // namespace
}  // namespace linnet
