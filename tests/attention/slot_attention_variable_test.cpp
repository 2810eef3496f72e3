// Slot attention on Variables: every gradient by finite differences, carried memories, padding,
// causality, low precision, repeatability.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "attention/primitives/common/tile_gemm.h"
#include "attention/primitives/slot_attention/slot_attention.h"
#include "autograd/grad_check.h"
#include "core/random.h"
#include "core/threads.h"
#include "tests/worst.h"

namespace linnet {
namespace {

// Values away from the kink of relu, so that differences do not straddle it.
Tensor draw(const Shape& shape, uint64_t site) {
  std::vector<double> out(static_cast<size_t>(shape.elements()));
  for (size_t i = 0; i < out.size(); ++i) {
    const double x = RandomKey{17, 0, site}.normal(i);
    out[i] = x + (x > 0 ? 0.05 : -0.05);
  }
  return Tensor::from(out, shape);
}

// q, k, v, logits, and keys, values, mass of a carried memory.
std::vector<Tensor> inputs_for(int64_t Tq, int64_t Tk, SlotControl control, bool with_state) {
  const int64_t B = 2, H = 1, N = 3, K = 2, V = 2;
  std::vector<Tensor> out{draw({B, Tq, H, K}, 1), draw({B, Tk, H, K}, 2), draw({B, Tk, H, V}, 3),
                          draw({B, Tk, H, N}, 4)};
  if (!with_state) return out;
  out.push_back(draw({B, H, N, K}, 5));
  out.push_back(draw({B, H, N, V}, 6));
  out.push_back(draw({B, H, N}, 7));
  if (control != SlotControl::exp) {
    double* mass = out.back().data<double>();
    for (int64_t i = 0; i < B * H * N; ++i) mass[i] = std::abs(mass[i]);
  }
  return out;
}

std::vector<Variable> forward(const std::vector<Variable>& in, const SlotAttentionContext& context,
                              bool causal) {
  const SlotAttentionVariables variables{in[0], in[1], in[2], in[3]};
  if (causal) {
    const SlotMemory state = in.size() > 4 ? SlotMemory{in[4], in[5], in[6]} : SlotMemory{};
    const auto result = slot_attention_causal(variables, context, state);
    return {result.o, result.state.keys, result.state.values, result.state.mass};
  }
  const SlotMemory memory = slot_attention_memory(variables, context);
  return {slot_attention_read(variables, memory, context), memory.keys, memory.values, memory.mass};
}

using Kinds = std::tuple<SlotControl, SlotNormalizer, bool>;  // the last: write_time
const Kinds kKinds[] = {{SlotControl::exp, SlotNormalizer::read_time, false},
                        {SlotControl::exp, SlotNormalizer::read_time, true},
                        {SlotControl::sigmoid, SlotNormalizer::read_time, false},
                        {SlotControl::sigmoid, SlotNormalizer::read_time, true},
                        {SlotControl::relu, SlotNormalizer::read_time, false},
                        {SlotControl::relu, SlotNormalizer::read_time, true},
                        {SlotControl::relu, SlotNormalizer::none, false},
                        {SlotControl::given, SlotNormalizer::none, false}};

SlotAttentionContext context_of(const Kinds& kinds) {
  SlotAttentionContext context;
  std::tie(context.options.control, context.options.normalizer, context.write_time) = kinds;
  return context;
}

class SlotAttentionGradient : public testing::TestWithParam<Kinds> {};

TEST_P(SlotAttentionGradient, MatchesFiniteDifferences) {
  SlotAttentionContext context = context_of(GetParam());
  context.options.scale = 0.8;
  context.options.floor = 0.2;
  context.query_mask = Tensor::from(std::vector<uint8_t>{1, 1, 0, 1, 1, 1, 1, 1, 1, 0}, {2, 5});
  context.key_mask = context.query_mask;
  // Where weights are not divided by their sum, mass has no gradient (it marks used slots).
  const bool mass_matters = context.options.normalizer == SlotNormalizer::read_time;
  const auto check = [&](bool causal, std::vector<Tensor> in) {
    const Tensor fixed = in.size() > 4 && !mass_matters ? in.back() : Tensor();
    if (fixed.defined()) in.pop_back();
    const auto function = [&](const std::vector<Variable>& variables) {
      std::vector<Variable> all = variables;
      if (fixed.defined()) all.emplace_back(fixed);
      std::vector<Variable> out = forward(all, context, causal);
      if (!mass_matters) out.pop_back();
      return out;
    };
    const GradCheckResult result = grad_check(function, in);
    EXPECT_TRUE(result.passed) << causal << in.size() << ": " << result.message;
  };
  for (const bool segmented : {false, true}) {
    for (const bool mask_empty : {false, true}) {
      context.options.mask_empty = mask_empty;
      context.options.dropout = mask_empty ? 0.3 : 0;
      if (segmented) {
        context.segments = Tensor::from(std::vector<int32_t>{0, 0, 1, 1, 1, 4, 5, 5, 5, 5}, {2, 5});
      }
      check(true, inputs_for(5, 5, context.options.control, false));
      check(true, inputs_for(5, 5, context.options.control, true));
      check(false, inputs_for(5, 5, context.options.control, false));
    }
  }
  context.segments = Tensor();
  context.query_mask = Tensor::from(std::vector<uint8_t>{1, 1, 0, 1, 1, 1}, {2, 3});
  check(false, inputs_for(3, 5, context.options.control, false));
}
INSTANTIATE_TEST_SUITE_P(All, SlotAttentionGradient, testing::ValuesIn(kKinds));

TEST(SlotAttentionVariable, LogitsOfValuesHaveTheirGradients) {
  for (const bool write_time : {false, true}) {
    for (const bool accumulate : {true, false}) {
      if (!write_time && !accumulate) continue;
      SlotAttentionContext context;
      context.write_time = write_time;
      context.accumulate = accumulate;
      context.options.dropout = 0.3;
      context.query_mask = context.key_mask =
          Tensor::from(std::vector<uint8_t>{1, 1, 0, 1, 1, 1, 1, 1, 1, 0}, {2, 5});
      if (!write_time) {
        context.options.control = SlotControl::given;
        context.options.normalizer = SlotNormalizer::none;
      }
      std::vector<Tensor> in =
          inputs_for(5, 5, write_time ? SlotControl::exp : SlotControl::given, true);
      const Variable used(Tensor::full(in[6].shape(), 1, DType::f64));
      in.push_back(draw(in[3].shape(), 8));
      in.push_back(draw(in[6].shape(), 9));
      const auto function = [&](const std::vector<Variable>& x) {
        SlotMemory state;
        if (accumulate) state = {x[4], x[5], {}};
        state.mass = write_time ? x[6] : used;
        if (write_time) state.value_mass = x[8];
        const SlotAttentionResult result =
            slot_attention_causal({x[0], x[1], x[2], x[3], x[7]}, context, state);
        std::vector<Variable> out{result.o};
        if (accumulate) out.insert(out.end(), {result.state.keys, result.state.values});
        if (write_time) out.insert(out.end(), {result.state.mass, result.state.value_mass});
        return out;
      };
      const GradCheckResult result = grad_check(function, in);
      EXPECT_TRUE(result.passed) << write_time << accumulate << ": " << result.message;
    }
  }
}

// Outputs, then gradients of all inputs for fixed seeds.
std::vector<Tensor> results(const std::vector<Tensor>& tensors, const SlotAttentionContext& context,
                            bool causal) {
  std::vector<Variable> in;
  for (const Tensor& tensor : tensors) in.emplace_back(tensor, true);
  const std::vector<Variable> outputs = forward(in, context, causal);
  std::vector<Tensor> seeds, found;
  for (size_t i = 0; i < outputs.size(); ++i) {
    found.push_back(outputs[i].value());
    seeds.push_back(draw(outputs[i].shape(), 20 + i).to(outputs[i].dtype()));
  }
  backward(outputs, seeds);
  for (const Variable& variable : in) found.push_back(variable.grad());
  return found;
}

double largest_difference(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  double worst = 0;
  EXPECT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    const auto x = a[i].to_vector<double>(), y = b[i].to_vector<double>();
    double scale = 1e-3;
    for (const double value : y) {
      if (std::isfinite(value)) scale = std::max(scale, std::abs(value));
    }
    for (size_t j = 0; j < x.size(); ++j) {
      const double error = x[j] == y[j] ? 0 : std::abs(x[j] - y[j]) / scale;
      test::keep_worst(worst, error);
    }
  }
  return worst;
}

TEST(SlotAttentionVariable, LongSequencesSplitAmongThreadsHaveTheSameGradients) {
  const int before = thread_count();
  for (const Kinds& kinds : kKinds) {
    SlotAttentionContext context = context_of(kinds);
    for (const bool causal : {true, false}) {
      const std::vector<Tensor> in = inputs_for(600, 600, context.options.control, causal);
      set_thread_count(1);
      const std::vector<Tensor> whole = results(in, context, causal);
      set_thread_count(16);
      const std::vector<Tensor> split = results(in, context, causal);
      EXPECT_LE(largest_difference(split, whole), 1e-10);
      EXPECT_EQ(largest_difference(split, results(in, context, causal)), 0);
    }
  }
  set_thread_count(before);
}

// Backward goes from tile to tile of 128 tokens, and from split to split.
TEST(SlotAttentionVariable, GradientsAcrossTilesMatchADifferenceAlongADirection) {
  constexpr int64_t kTokens = 300;
  std::vector<int32_t> segments(2 * kTokens);
  for (int64_t t = 140; t < kTokens; ++t) segments[kTokens + t] = 1;
  const int before = thread_count();
  for (const Kinds& kinds : kKinds) {
    SlotAttentionContext context = context_of(kinds);
    context.segments = Tensor::from(segments, {2, kTokens});
    // With `none` the mass, the last output, has no gradient.
    const bool with_mass = context.options.normalizer == SlotNormalizer::read_time;
    const std::vector<Tensor> in = inputs_for(kTokens, kTokens, context.options.control, with_mass);
    // The loss of results(), `step` along a direction.
    const auto loss = [&](double step) {
      std::vector<Tensor> moved;
      for (size_t i = 0; i < in.size(); ++i) {
        const Tensor direction = draw(in[i].shape(), 50 + i);
        moved.push_back(in[i].clone());
        axpy_row(in[i].elements(), step, direction.data<double>(), moved[i].data<double>());
      }
      const std::vector<Tensor> found = results(moved, context, true);
      double sum = 0;
      for (size_t i = 0; i < (with_mass ? 4 : 3); ++i) {
        const Tensor seed = draw(found[i].shape(), 20 + i);
        sum += dot_row(seed.data<double>(), found[i].data<double>(), seed.elements());
      }
      return sum;
    };
    const double expected = (loss(1e-6) - loss(-1e-6)) / 2e-6;
    for (const int threads : {1, 16}) {
      set_thread_count(threads);
      const std::vector<Tensor> found = results(in, context, true);
      double got = 0, squares = 0;
      for (size_t i = 0; i < in.size(); ++i) {
        const Tensor direction = draw(in[i].shape(), 50 + i);
        for (int64_t c = 0; c < in[i].elements(); ++c) {
          const double term = found[4 + i].data<double>()[c] * direction.data<double>()[c];
          got += term;
          squares += term * term;
        }
      }
      EXPECT_LE(std::abs(got - expected), 1e-6 * std::sqrt(squares)) << threads;
    }
    set_thread_count(before);
  }
}

TEST(SlotAttentionVariable, SinglePrecisionGradientsStayCloseForExtremeLogits) {
  std::vector<uint8_t> valid(2 * 150, 1);
  for (int64_t i = 0; i < 2 * 150; ++i) valid[i] = i % 150 >= 5;
  for (const bool masked : {false, true}) {
    SlotAttentionContext context;
    if (masked) context.key_mask = context.query_mask = Tensor::from(valid, {2, 150});
    for (const double range : {1.0, 30.0, 200.0}) {
      std::vector<Tensor> in = inputs_for(150, 150, SlotControl::exp, true);
      for (int64_t i = 0; i < in[3].elements(); ++i) in[3].data<double>()[i] *= range;
      std::vector<Tensor> narrow;
      for (Tensor& tensor : in) {
        narrow.push_back(tensor.to(DType::f32));
        tensor = narrow.back().to(DType::f64);
      }
      for (const bool causal : {true, false}) {
        const std::vector<Tensor> wide = results(in, context, causal);
        // Behind masked tokens the gradient of the carried normalizer, of which little is left, is
        // of f32's rounding: 2.6e-4.
        EXPECT_LE(largest_difference(results(narrow, context, causal), wide), masked ? 4e-4 : 2e-4)
            << range << masked;
        if (!causal) continue;
        in.resize(4);
        narrow.resize(4);
      }
    }
  }
}

// Moving all logits of a slot changes nothing, also where it was empty for whole tiles before.
TEST(SlotAttentionVariable, SlotsThatWereEmptyBeginWithAnyLogit) {
  constexpr int64_t kTokens = 210, kEmpty = 140, kSlots = 3;
  for (const bool masked : {false, true}) {
    SlotAttentionContext context;
    std::vector<uint8_t> valid(2 * kTokens, 1);
    for (int64_t i = 0; masked && i < 2 * kTokens; ++i) valid[i] = i % kTokens >= kEmpty;
    context.key_mask = Tensor::from(valid, {2, kTokens});
    const auto moved = [&](double by, DType dtype, bool causal) {
      std::vector<Tensor> in = inputs_for(kTokens, kTokens, SlotControl::exp, false);
      double* logits = in[3].data<double>();
      for (int64_t i = 1; i < in[3].elements(); i += kSlots) {
        const bool empty = i / kSlots % kTokens < kEmpty;
        // Values that f32 has, also when they are moved.
        logits[i] = empty ? -std::numeric_limits<double>::infinity()
                          : std::round(logits[i] * 512) / 512 + by;
      }
      for (Tensor& tensor : in) tensor = tensor.to(dtype);
      std::vector<Tensor> found = results(in, context, causal);
      found.erase(found.begin() + 3);  // the log normalizer moves too
      return found;
    };
    for (const double by : {-1e4, -100.0, 100.0}) {
      for (const bool causal : {true, false}) {
        for (const auto& [dtype, tolerance] : {std::pair(DType::f64, 1e-10), {DType::f32, 2e-4}}) {
          EXPECT_LE(largest_difference(moved(by, dtype, causal), moved(0, dtype, causal)),
                    tolerance)
              << by << causal << masked;
        }
      }
    }
  }
}

Tensor part(const Tensor& x, int64_t begin, int64_t end) {
  // Tokens of every row: [B,T,...] -> [B,n,...].
  const int64_t B = x.size(0), T = x.size(1), width = x.elements() / (B * T);
  const auto all = x.to_vector<double>();
  std::vector<double> out;
  for (int64_t b = 0; b < B; ++b) {
    out.insert(out.end(), all.begin() + (b * T + begin) * width,
               all.begin() + (b * T + end) * width);
  }
  return Tensor::from(out, x.shape().with(1, end - begin));
}

TEST(SlotAttentionVariable, WholeIsTheSameAsSplits) {
  for (const Kinds& kinds : kKinds) {
    SlotAttentionContext context = context_of(kinds);
    context.options.dropout = 0.3;
    const std::vector<Tensor> in = inputs_for(140, 140, context.options.control, false);
    const auto whole = slot_attention_causal(
        {Variable(in[0]), Variable(in[1]), Variable(in[2]), Variable(in[3])}, context);
    SlotMemory state;
    for (int64_t begin = 0; begin < 140;) {
      const int64_t end = begin < 128 ? begin + 16 : begin + 1;
      const auto split = [&](int i) { return Variable(part(in[i], begin, end)); };
      context.place.time_offset = begin;
      const auto result =
          slot_attention_causal({split(0), split(1), split(2), split(3)}, context, state);
      state = result.state;
      EXPECT_LE(largest_difference({result.o.value()}, {part(whole.o.value(), begin, end)}), 1e-11);
      begin = end;
    }
    EXPECT_LE(largest_difference(
                  {state.keys.value(), state.values.value(), state.mass.value()},
                  {whole.state.keys.value(), whole.state.values.value(), whole.state.mass.value()}),
              1e-11);
  }
}

TEST(SlotAttentionVariable, LaterTokensDoNotTouchEarlierOutputs) {
  for (const Kinds& kinds : kKinds) {
    SlotAttentionContext context = context_of(kinds);
    std::vector<Tensor> in = inputs_for(160, 160, context.options.control, false);
    for (Tensor& tensor : in) tensor = tensor.to(DType::f32);
    const auto run = [&] {
      return slot_attention_causal({Variable(in[0].clone()), Variable(in[1].clone()),
                                    Variable(in[2].clone()), Variable(in[3].clone())},
                                   context)
          .o.value()
          .to_vector<float>();
    };
    const std::vector<float> before = run();
    for (const Tensor& x : in) {
      const int64_t width = x.elements() / 320;
      for (int64_t c = 37 * width; c < 160 * width; ++c) x.data<float>()[c] *= 40;
    }
    const std::vector<float> after = run();
    for (int64_t i = 0; i < 37 * 2; ++i) EXPECT_EQ(before[i], after[i]);
    EXPECT_NE(before[37 * 2], after[37 * 2]);
  }
}

TEST(SlotAttentionVariable, PaddingHoldsAnythingAndHasNoGradient) {
  const std::vector<uint8_t> valid{1, 0, 1, 1, 0, 0, 0, 0, 0, 0};
  for (const Kinds& kinds : kKinds) {
    SlotAttentionContext context = context_of(kinds);
    context.query_mask = context.key_mask = Tensor::from(valid, {2, 5});
    for (const bool causal : {true, false}) {
      std::vector<Tensor> in = inputs_for(5, 5, context.options.control, false);
      const std::vector<Tensor> clean = results(in, context, causal);
      for (const Tensor& x : in) {
        const int64_t width = x.elements() / 10;
        for (int64_t c = 0; c < x.elements(); ++c) {
          if (valid[c / width] == 0) x.data<double>()[c] = std::nan("");
        }
      }
      const std::vector<Tensor> spoiled = results(in, context, causal);
      EXPECT_EQ(largest_difference(spoiled, clean), 0);
      // o, and after the memory's three tensors the gradients: zero where masked.
      for (const size_t t : {0, 4, 5, 6, 7}) {
        const int64_t width = spoiled[t].elements() / 10;
        for (int64_t c = 0; c < spoiled[t].elements(); ++c) {
          if (valid[c / width] == 0) {
            EXPECT_EQ(spoiled[t].data<double>()[c], 0) << t;
          }
        }
      }
    }
  }
}

TEST(SlotAttentionVariable, HalfPrecisionIsComputedInSingle) {
  std::vector<Tensor> narrow, single;
  for (const Tensor& tensor : inputs_for(20, 20, SlotControl::exp, false)) {
    narrow.push_back(tensor.to(DType::bf16));
    single.push_back(narrow.back().to(DType::f32));
  }
  for (const bool causal : {true, false}) {
    const std::vector<Tensor> a = results(narrow, {}, causal), b = results(single, {}, causal);
    EXPECT_EQ(a[0].dtype(), DType::bf16);
    EXPECT_EQ(a[1].dtype(), DType::f32);
    EXPECT_EQ(largest_difference({a[0]}, {b[0].to(DType::bf16)}), 0);
    EXPECT_EQ(largest_difference({a[1], a[2], a[3]}, {b[1], b[2], b[3]}), 0);
  }
}

}  // namespace
}  // namespace linnet
