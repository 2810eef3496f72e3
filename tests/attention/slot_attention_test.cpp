// Slot attention against its definition: controls, normalisations, forms, masks, segments, carried
// memories, extreme logits, thread counts; and its limiting cases.
#include "attention/primitives/slot_attention/slot_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "core/error.h"
#include "core/random.h"
#include "core/threads.h"
#include "tests/worst.h"

namespace linnet {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Sizes {
  int64_t B, Tq, Tk, H, N, K, V;
};

struct Problem {
  Sizes s;
  SlotAttentionContext context;
  bool causal = true;
  Tensor q, k, v, logits, keys, values, mass;  // f64
  Tensor value_logits = {};
};

Tensor draw(const Shape& shape, uint64_t site) {
  std::vector<double> out(static_cast<size_t>(shape.elements()));
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<float>(RandomKey{13, 0, site}.normal(i));
  }
  return Tensor::from(out, shape);
}

Problem make_problem(const Sizes& s, SlotControl control, SlotNormalizer normalizer, bool causal,
                     bool with_state) {
  Problem p;
  p.s = s;
  p.causal = causal;
  p.context.options.control = control;
  p.context.options.normalizer = normalizer;
  p.context.options.scale = 1 / std::sqrt(static_cast<double>(s.K));
  p.q = draw({s.B, s.Tq, s.H, s.K}, 1);
  p.k = draw({s.B, s.Tk, s.H, s.K}, 2);
  p.v = draw({s.B, s.Tk, s.H, s.V}, 3);
  p.logits = draw({s.B, s.Tk, s.H, s.N}, 4);
  if (control == SlotControl::given) {
    double* weights = p.logits.data<double>();
    for (int64_t i = 0; i < p.logits.elements(); ++i) {
      // Sums may have any sign; weights divided by their sum may not.
      if (normalizer == SlotNormalizer::read_time) weights[i] = std::abs(weights[i]);
      if (i % s.N == 0) weights[i] = 0;  // a slot that is never written
    }
  }
  if (with_state) {
    p.keys = draw({s.B, s.H, s.N, s.K}, 5);
    p.values = draw({s.B, s.H, s.N, s.V}, 6);
    p.mass = draw({s.B, s.H, s.N}, 7);
    double* mass = p.mass.data<double>();
    for (int64_t i = 0; i < p.mass.elements(); ++i) {
      if (control != SlotControl::exp) mass[i] = std::abs(mass[i]);
      if (i % 3 != 1) continue;
      mass[i] = slot_empty_mass(p.context.options);
      for (int64_t c = 0; c < s.K; ++c) p.keys.data<double>()[i * s.K + c] = 0;
      for (int64_t c = 0; c < s.V; ++c) p.values.data<double>()[i * s.V + c] = 0;
    }
  }
  return p;
}

void mask_some(Problem& p) {
  const auto mask = [&](int64_t T, int64_t period, std::initializer_list<Tensor> sequences) {
    std::vector<uint8_t> valid(static_cast<size_t>(p.s.B * T));
    for (size_t i = 0; i < valid.size(); ++i) valid[i] = i % period != 1;
    // The last row has no valid token.
    std::fill(valid.end() - T, valid.end(), 0);
    for (const Tensor& x : sequences) {
      const int64_t width = x.elements() / (p.s.B * T);
      for (int64_t i = 0; i < x.elements(); ++i) {
        if (valid[i / width] == 0) x.data<double>()[i] = std::nan("");
      }
    }
    return Tensor::from(valid, {p.s.B, T});
  };
  p.context.query_mask = mask(p.s.Tq, 4, {p.q});
  p.context.key_mask = mask(p.s.Tk, p.causal ? 4 : 3, {p.k, p.v, p.logits});
}

void drop_some(Problem& p) {
  p.context.options.dropout = 0.4;
  p.context.options.dropout_key = RandomKey{3, 8, 0}.at("layer");
  std::vector<int64_t> examples;
  for (int64_t b = 0; b < p.s.B; ++b) examples.push_back(90 - 7 * b);
  p.context.place = {Tensor::from(examples, {p.s.B}), 11};
}

SlotAttentionVariables variables_of(const Problem& p, DType dtype) {
  return {Variable(p.q.to(dtype)), Variable(p.k.to(dtype)), Variable(p.v.to(dtype)),
          Variable(p.logits.to(dtype)),
          p.value_logits.defined() ? Variable(p.value_logits.to(dtype)) : Variable()};
}

std::vector<double> run(const Problem& p, DType dtype) {
  const SlotAttentionVariables variables = variables_of(p, dtype);
  const auto optional = [&](const Tensor& x, DType type) {
    return x.defined() ? Variable(x.to(type)) : Variable();
  };
  if (!p.causal) {
    return slot_attention_read(variables, slot_attention_memory(variables, p.context), p.context)
        .value()
        .to_vector<double>();
  }
  const SlotMemory state{optional(p.keys, dtype), optional(p.values, dtype),
                         optional(p.mass, DType::f64)};
  return slot_attention_causal(variables, p.context, state).o.value().to_vector<double>();
}

std::vector<double> reference(const Problem& p) {
  SlotAttentionInputs<double> in;
  const auto view = [](const Tensor& x) {
    return SequenceView<const double>(x.data<double>(), x.size(0), x.size(1), x.size(2), x.size(3));
  };
  in.q = view(p.q);
  in.k = view(p.k);
  in.v = view(p.v);
  in.logits = view(p.logits);
  if (p.value_logits.defined()) in.value_logits = view(p.value_logits);
  const SlotAttentionContext& c = p.context;
  if (c.place.examples.defined()) in.examples = c.place.examples.data<int64_t>();
  in.time_offset = c.place.time_offset;
  if (c.query_mask.defined()) in.query_mask = c.query_mask.data<uint8_t>();
  if (c.key_mask.defined()) in.key_mask = c.key_mask.data<uint8_t>();
  const int32_t* segments = c.segments.defined() ? c.segments.data<int32_t>() : nullptr;
  const auto spans = make_spans(segments, p.s.B, p.s.Tq, p.keys.defined());
  const auto key_spans = p.causal ? spans : make_spans(segments, p.s.B, p.s.Tk, false);
  SlotAttentionState<const double> state;
  if (p.keys.defined()) {
    state = {p.keys.data<double>(), p.values.data<double>(), p.mass.data<double>()};
  }
  std::vector<double> o(static_cast<size_t>(p.s.B * p.s.Tq * p.s.H * p.s.V));
  slot_attention_reference(c.options, c.write_time, in, p.causal, spans, key_spans, state,
                           {o.data(), p.s.B, p.s.Tq, p.s.H, p.s.V});
  return o;
}

double worst_error(const Problem& p, DType dtype) {
  const std::vector<double> got = run(p, dtype), expected = reference(p);
  double largest = 1e-3, worst = 0;
  for (const double x : expected) largest = std::max(largest, std::abs(x));
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(got[i] - expected[i]) / largest;
    test::keep_worst(worst, error);
  }
  return worst;
}

// Errors of the read logits, about sqrt(T) units of sums of T terms, are amplified by the softmax
// up to their magnitude.
constexpr double kDouble = 2e-12, kSingle = 2e-4;

using Kinds = std::tuple<SlotControl, SlotNormalizer, bool>;  // the last: write_time
const Kinds kKinds[] = {{SlotControl::exp, SlotNormalizer::read_time, false},
                        {SlotControl::exp, SlotNormalizer::read_time, true},
                        {SlotControl::sigmoid, SlotNormalizer::read_time, false},
                        {SlotControl::sigmoid, SlotNormalizer::none, true},
                        {SlotControl::sigmoid, SlotNormalizer::none, false},
                        {SlotControl::relu, SlotNormalizer::read_time, false},
                        {SlotControl::relu, SlotNormalizer::read_time, true},
                        {SlotControl::relu, SlotNormalizer::none, false},
                        {SlotControl::given, SlotNormalizer::read_time, false},
                        {SlotControl::given, SlotNormalizer::none, false}};

class SlotAttentionForms : public testing::TestWithParam<std::tuple<Kinds, bool, bool>> {};

TEST_P(SlotAttentionForms, AgreeWithTheDefinition) {
  const auto& [kinds, causal, mask_empty] = GetParam();
  const auto& [control, normalizer, write_time] = kinds;
  const Sizes sizes[] = {{2, 1, 1, 1, 1, 1, 1}, {1, 7, 7, 2, 5, 4, 3}, {2, 130, 130, 2, 18, 9, 17}};
  for (Sizes s : sizes) {
    if (!causal) s.Tq = s.Tq / 2 + 1;
    for (const bool with_state : {false, true}) {
      if (with_state && !causal) continue;
      Problem p = make_problem(s, control, normalizer, causal, with_state);
      // Order matters to write_time alone, and only the causal form has one.
      p.context.write_time = write_time && causal;
      p.context.options.mask_empty = mask_empty;
      EXPECT_LE(worst_error(p, DType::f64), kDouble) << s.Tk << with_state;
      EXPECT_LE(worst_error(p, DType::f32), kSingle) << s.Tk << with_state;
      mask_some(p);
      EXPECT_LE(worst_error(p, DType::f64), kDouble) << "masked " << s.Tk << with_state;
      drop_some(p);
      EXPECT_LE(worst_error(p, DType::f64), kDouble) << "dropped " << s.Tk << with_state;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(All, SlotAttentionForms,
                         testing::Combine(testing::ValuesIn(kKinds), testing::Bool(),
                                          testing::Bool()));

TEST(SlotAttention, ValuesCanHaveLogitsOfTheirOwn) {
  for (const bool with_state : {false, true}) {
    Problem p = make_problem({2, 130, 130, 2, 18, 9, 17}, SlotControl::given, SlotNormalizer::none,
                             true, with_state);
    p.value_logits = draw(p.logits.shape(), 8);
    EXPECT_LE(worst_error(p, DType::f64), kDouble) << with_state;
    EXPECT_LE(worst_error(p, DType::f32), kSingle) << with_state;
    const std::vector<double> apart = run(p, DType::f64);
    p.value_logits = Tensor();
    EXPECT_NE(run(p, DType::f64), apart);
  }
}

TEST(SlotAttention, WithoutAccumulationATokenReadsWhatItWrites) {
  const int64_t T = 5, N = 3;
  Problem p =
      make_problem({1, T, T, 1, N, 2, 2}, SlotControl::exp, SlotNormalizer::read_time, true, false);
  p.context.write_time = true;
  p.context.accumulate = false;
  p.value_logits = draw(p.logits.shape(), 8);
  const std::vector<double> o = run(p, DType::f64);
  const double *q = p.q.data<double>(), *k = p.k.data<double>(), *v = p.v.data<double>();
  const double *a = p.logits.data<double>(), *b = p.value_logits.data<double>();
  for (int64_t t = 0; t < T; ++t) {
    const double product = q[t * 2] * k[t * 2] + q[t * 2 + 1] * k[t * 2 + 1];
    double weighted = 0, total = 0;
    for (int64_t l = 0; l < N; ++l) {
      double of_keys = 0, of_values = 0;
      for (int64_t j = 0; j <= t; ++j) {
        of_keys += std::exp(a[j * N + l] - a[t * N + l]);
        of_values += std::exp(b[j * N + l] - b[t * N + l]);
      }
      const double read = std::exp(product / of_keys / std::sqrt(2.0));
      total += read;
      weighted += read / of_values;
    }
    for (int64_t c = 0; c < 2; ++c) {
      EXPECT_NEAR(o[t * 2 + c], weighted / total * v[t * 2 + c], 1e-13);
    }
  }
}

TEST(SlotAttention, SegmentsAreIndependent) {
  const Sizes s{2, 90, 90, 2, 6, 5, 4};
  std::vector<int32_t> segments(s.B * s.Tq);
  for (int64_t t = 0; t < s.Tq; ++t) {
    segments[t] = t < 3 ? 0 : t < 80 ? 1 : t < 81 ? 2 : 3;
    segments[s.Tq + t] = t < 89 ? 5 : 6;
  }
  for (const bool causal : {true, false}) {
    for (const bool write_time : {true, false}) {
      Problem p = make_problem(s, SlotControl::exp, SlotNormalizer::read_time, causal, causal);
      p.context.write_time = write_time && causal;
      p.context.segments = Tensor::from(segments, {s.B, s.Tq});
      EXPECT_LE(worst_error(p, DType::f64), kDouble);
      mask_some(p);
      EXPECT_LE(worst_error(p, DType::f64), kDouble);
    }
  }
}

TEST(SlotAttention, LogitsOfAnySizeAreExact) {
  // Logits that rise and fall by hundreds from token to token, and slots that are never written.
  for (const double range : {30.0, 80.0, 300.0, 1e4}) {
    for (const bool causal : {true, false}) {
      Problem p = make_problem({1, 80, 80, 1, 8, 4, 4}, SlotControl::exp, SlotNormalizer::read_time,
                               causal, causal);
      double* logits = p.logits.data<double>();
      for (int64_t i = 0; i < p.logits.elements(); ++i) {
        logits[i] = static_cast<float>(logits[i] * range);
        if (i % 8 == 2)
          logits[i] = static_cast<double>(i - 2) / 8 * range / 20;  // only ever rising
        if (i % 8 == 5) logits[i] = -kInfinity;
      }
      EXPECT_LE(worst_error(p, DType::f64), 1e-11 * std::max(1.0, range / 300)) << range;
      EXPECT_LE(worst_error(p, DType::f32), kSingle) << range;
    }
  }
}

TEST(SlotAttention, ReferencesAreKeptAsLongAsTheyReach) {
  // Logits that stay (a reference is kept), whose sums leave its reach by and by, that rise beyond
  // it inside a tile or with its first token, and that fall.
  constexpr int64_t kTokens = 200, kSlots = 3;
  for (const double rise : {0.0, 0.3, 3.0, 50.0, -3.0}) {
    for (const int64_t period : {1, 32}) {
      Problem p = make_problem({1, kTokens, kTokens, 1, kSlots, 4, 4}, SlotControl::exp,
                               SlotNormalizer::read_time, true, false);
      for (int64_t i = 0; i < p.logits.elements(); ++i) {
        const int64_t steps = i / kSlots / period;
        double& logit = p.logits.data<double>()[i];
        logit = static_cast<float>(logit + static_cast<double>(steps) * rise);
      }
      EXPECT_LE(worst_error(p, DType::f64), 1e-11) << rise << " " << period;
      EXPECT_LE(worst_error(p, DType::f32), kSingle) << rise << " " << period;
    }
  }
}

// Tokens before the first that writes read the carried state, however far that one's logits are.
TEST(SlotAttention, ReadersBeforeTheFirstWriterSeeWhatWasCarried) {
  constexpr int64_t kTokens = 140, kFirst = 5, kSlots = 3;
  std::vector<uint8_t> valid(kTokens, 1);
  std::fill_n(valid.begin(), kFirst, 0);
  for (const double rise : {0.0, 60.0, 95.0, 1000.0}) {
    Problem p = make_problem({1, kTokens, kTokens, 1, kSlots, 4, 4}, SlotControl::exp,
                             SlotNormalizer::read_time, true, true);
    p.context.key_mask = Tensor::from(valid, {1, kTokens});
    for (int64_t i = 0; i < p.logits.elements(); ++i) p.logits.data<double>()[i] += rise;
    EXPECT_LE(worst_error(p, DType::f64), 1e-11) << rise;
    EXPECT_LE(worst_error(p, DType::f32), kSingle) << rise;
  }
}

TEST(SlotAttention, NanOfAQueryIsNotHidden) {
  constexpr int64_t kToken = 3, kWidth = 4;
  for (const int64_t slots : {5, 16, 21}) {
    for (const bool mask_empty : {false, true}) {
      Problem p = make_problem({1, 40, 40, 1, slots, kWidth, kWidth}, SlotControl::exp,
                               SlotNormalizer::read_time, true, false);
      p.context.options.mask_empty = mask_empty;
      std::fill_n(p.q.data<double>() + kToken * kWidth, kWidth, std::nan(""));
      for (const DType dtype : {DType::f32, DType::f64}) {
        const std::vector<double> o = run(p, dtype);
        for (size_t i = 0; i < o.size(); ++i) {
          ASSERT_EQ(std::isnan(o[i]), i / kWidth == kToken) << slots << ": " << i;
        }
      }
    }
  }
}

TEST(SlotAttention, SplittingAmongThreadsChangesOnlyRounding) {
  const int before = thread_count();
  for (const auto& [control, normalizer, write_time] : kKinds) {
    Problem p = make_problem({1, 600, 600, 1, 5, 4, 4}, control, normalizer, true, true);
    p.context.write_time = write_time;
    set_thread_count(1);
    const std::vector<double> whole = run(p, DType::f64);
    set_thread_count(16);
    const std::vector<double> split = run(p, DType::f64);
    for (size_t i = 0; i < whole.size(); ++i) ASSERT_LE(std::abs(split[i] - whole[i]), 1e-11);
  }
  set_thread_count(before);
}

TEST(SlotAttention, OneSlotPerTokenIsSoftmaxAttention) {
  const int64_t T = 12;
  Problem p =
      make_problem({1, T, T, 1, T, 4, 3}, SlotControl::given, SlotNormalizer::none, true, false);
  for (int64_t i = 0; i < T * T; ++i) p.logits.data<double>()[i] = i / T == i % T ? 1 : 0;
  const std::vector<double> o = run(p, DType::f64);
  const double *q = p.q.data<double>(), *k = p.k.data<double>(), *v = p.v.data<double>();
  for (int64_t t = 0; t < T; ++t) {
    double sum = 0, expected[3] = {};
    for (int64_t j = 0; j <= t; ++j) {
      double product = 0;
      for (int64_t c = 0; c < 4; ++c) product += q[t * 4 + c] * k[j * 4 + c];
      const double weight = std::exp(product / 2);
      sum += weight;
      for (int64_t c = 0; c < 3; ++c) expected[c] += weight * v[j * 3 + c];
    }
    for (int64_t c = 0; c < 3; ++c) EXPECT_NEAR(o[t * 3 + c], expected[c] / sum, 1e-13);
  }
}

TEST(SlotAttention, EqualControlGivesTheRunningMeanOfValues) {
  const int64_t T = 9;
  Problem p =
      make_problem({1, T, T, 1, 4, 3, 2}, SlotControl::exp, SlotNormalizer::read_time, true, false);
  p.logits.fill(0);
  const std::vector<double> o = run(p, DType::f64);
  double sums[2] = {};
  for (int64_t t = 0; t < T; ++t) {
    for (int64_t c = 0; c < 2; ++c) {
      sums[c] += p.v.data<double>()[t * 2 + c];
      EXPECT_NEAR(o[t * 2 + c], sums[c] / static_cast<double>(t + 1), 1e-14);
    }
  }
}

TEST(SlotAttention, RefusesWhatDoesNotFit) {
  Problem p =
      make_problem({1, 4, 4, 1, 3, 2, 2}, SlotControl::exp, SlotNormalizer::none, true, false);
  EXPECT_THROW(run(p, DType::f64), Error);
  p.context.options.normalizer = SlotNormalizer::read_time;
  EXPECT_EQ(run(p, DType::f64).size(), 8u);
  p.context.options.floor = 0;
  EXPECT_THROW(run(p, DType::f64), Error);
  p.context.options.floor = 1;
  p.context.options.dropout = 1;
  EXPECT_THROW(run(p, DType::f64), Error);
  p.context.options.dropout = 0;
  p.value_logits = p.logits;
  EXPECT_THROW(run(p, DType::f64), Error);
  p.context.options.control = SlotControl::given;
  p.context.options.normalizer = SlotNormalizer::none;
  EXPECT_EQ(run(p, DType::f64).size(), 8u);
  p.value_logits = draw({1, 4, 1, 2}, 8);
  EXPECT_THROW(run(p, DType::f64), Error);
  p = make_problem({1, 4, 4, 1, 3, 2, 2}, SlotControl::exp, SlotNormalizer::read_time, true, true);
  p.mass = draw({1, 1, 4}, 7);
  EXPECT_THROW(run(p, DType::f64), Error);
  p.mass = Tensor();
  p.keys = Tensor();
  p.values = Tensor();
  p.k = draw({1, 5, 1, 2}, 2);
  EXPECT_THROW(run(p, DType::f64), Error);
}

}  // namespace
}  // namespace linnet
