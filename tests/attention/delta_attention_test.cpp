// The delta rule: against its definition and against the same composed of autograd's operations,
// gradients against finite differences, documents, masks with NaN behind them, carried states.
#include "attention/primitives/delta_attention/delta_attention.h"

#include "attention/primitives/common/binding.h"
#include "attention/primitives/common/tile_gemm.h"
#include "attention/primitives/delta_attention/cpu.h"
#include "autograd/grad_check.h"
#include "core/error.h"
#include "core/value_checks.h"
#include "tests/attention/delta_attention_case.h"
#include "tests/bf16_tolerance.h"

namespace linnet {
namespace {

using test::DeltaCase;
using test::random_tensor;

// Longer than the distance between kept states, and documents within it.
DeltaCase long_case() {
  return {{1, 600, 4, true, true, 0}, 1, 6, 5, true, 0.02};
}

std::vector<DeltaCase> all_cases() {
  std::vector<DeltaCase> all = test::delta_cases();
  all.push_back(long_case());
  all.push_back({{1, 300, 0, false, false, 0}, 1, 5, 4, false});
  return all;
}

std::vector<Variable> variables(const std::vector<Tensor>& inputs) {
  std::vector<Variable> out;
  for (const Tensor& x : inputs) out.push_back(x.defined() ? Variable(x) : Variable());
  return out;
}
DeltaAttentionResult call(const std::vector<Variable>& in, const DeltaAttentionContext& context) {
  return delta_attention({in[0], in[1], in[2], in[3], in[4]}, context, in[5]);
}

TEST(DeltaAttention, IsItsDefinition) {
  for (const DeltaCase& at : all_cases()) {
    const std::vector<Tensor> in = at.inputs();
    const DeltaAttentionContext context = at.context();
    const DeltaAttentionResult found = call(variables(in), context);
    using namespace binding;
    const delta::DeltaInputs<double> inputs{
        view_of<double>(in[0]), view_of<double>(in[1]), view_of<double>(in[2]),
        pointer<double>(in[3]), pointer<double>(in[4]), pointer<uint8_t>(context.key_mask),
        pointer<double>(in[5]), context.query_scale};
    const Tensor y = Tensor::zeros(in[2].shape(), DType::f64);
    const Tensor last = Tensor::zeros(found.state.shape(), DType::f64);
    delta::delta_attention_reference(inputs, spans_of(context.segments, in[0], in[5].defined()),
                                     y.data<double>(), last.data<double>());
    EXPECT_TRUE(test::close(found.y.value(), y, 1e-12, 1e-12)) << at.label();
    EXPECT_TRUE(test::close(found.state.value(), last, 1e-12, 1e-12)) << at.label();
  }
}

TEST(DeltaAttention, IsWhatItIsComposedOf) {
  for (const DeltaCase& at : all_cases()) {
    if (at.tokens.T == 0) continue;
    const std::vector<Tensor> got = at.results(DType::f64, DType::f64);
    const std::vector<Tensor> expected =
        at.results(DType::f64, DType::f64, {}, delta_attention_composed);
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(test::close(got[i], expected[i], 1e-11, 1e-11)) << at.label() << " result " << i;
    }
  }
}

TEST(DeltaAttention, GradientsAreFiniteDifferences) {
  for (const DeltaCase& at : all_cases()) {
    const DeltaAttentionContext context = at.context();
    const auto function = [&](const std::vector<Variable>& in) {
      const DeltaAttentionResult found = call(in, context);
      return std::vector<Variable>{found.y, found.state};
    };
    GradCheckOptions options;
    options.directions = 4;
    const GradCheckResult result = grad_check(function, at.inputs(), options);
    EXPECT_TRUE(result.passed) << at.label() << ": " << result.message;
  }
  const DeltaCase small{{1, 9, 4, false, true, 0}, 1, 3, 2};
  const auto function = [&](const std::vector<Variable>& in) {
    const DeltaAttentionResult found = call(in, small.context());
    return std::vector<Variable>{found.y, found.state};
  };
  const GradCheckResult result = grad_check(function, small.inputs());
  EXPECT_TRUE(result.passed) << result.message;
}

TEST(DeltaAttention, SinglePrecisionAndBf16AreCloseToDouble) {
  for (const DeltaCase& at : all_cases()) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const std::vector<Tensor> exact = at.results(dtype, DType::f64);
      const std::vector<Tensor> got = at.results(dtype, dtype);
      ASSERT_EQ(got.size(), exact.size());
      for (size_t i = 0; i < got.size(); ++i) {
        const double ulp = got[i].dtype() == DType::bf16 ? test::half_ulp_of_bf16(exact[i]) : 0;
        SCOPED_TRACE(concat(at.label(), " result ", i, " ", name_of(dtype)));
        EXPECT_CLOSE(got[i], exact[i], 5e-6 + ulp);
      }
    }
  }
}

// The gradient of a log-decay is a sum over the tokens before it that must not keep their rounding.
TEST(DeltaAttention, GradientsOfLogDecayKeepTheirDigitsInLongSequences) {
  const DeltaCase at{{1, 2000, 4, false, false, 0}, 1, 16, 16, true, 0.5};
  const std::vector<Tensor> exact = at.results(DType::f32, DType::f64);
  const std::vector<Tensor> got = at.results(DType::f32, DType::f32);
  EXPECT_CLOSE(got[6], exact[6], 3e-6);
}

TEST(DeltaAttention, ASequenceInPartsIsTheWhole) {
  const DeltaCase at{{2, 75, 4, true, true, 0}, 2, 16, 16};
  const std::vector<Tensor> in = at.inputs();
  const DeltaAttentionContext whole = at.context();
  const DeltaAttentionResult expected = call(variables(in), whole);
  const Tensor dy = random_tensor(expected.y.shape(), "dy");
  // Parts end inside of the last document, which the state continues.
  std::vector<Variable> leaves;
  for (const Tensor& x : in) leaves.emplace_back(x, true);
  Variable state = leaves[5];
  std::vector<Variable> outputs;
  std::vector<Tensor> seeds;
  const auto part = [&](const Tensor& x, int64_t begin, int64_t end) {
    std::vector<Tensor> rows;
    const Shape& sizes = x.shape();
    const size_t row = x.bytes() / static_cast<size_t>(sizes[0] * sizes[1]);
    const Tensor out = Tensor::empty(sizes.with(1, end - begin), x.dtype());
    for (int64_t b = 0; b < sizes[0]; ++b) {
      std::memcpy(
          static_cast<char*>(out.raw()) + static_cast<size_t>(b * out.size(1)) * row,
          static_cast<const char*>(x.raw()) + static_cast<size_t>(b * sizes[1] + begin) * row,
          static_cast<size_t>(out.size(1)) * row);
    }
    return out;
  };
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 33}, {33, 34}, {34, 75}}) {
    std::vector<Variable> now;
    for (size_t i = 0; i < 5; ++i) now.emplace_back(part(in[i], begin, end));
    DeltaAttentionContext context = whole;
    context.key_mask = part(whole.key_mask, begin, end);
    context.segments = part(whole.segments, begin, end);
    const DeltaAttentionResult found =
        delta_attention({now[0], now[1], now[2], now[3], now[4]}, context, state);
    EXPECT_TRUE(test::close(found.y.value(), part(expected.y.value(), begin, end), 1e-13, 1e-13));
    state = found.state;
    outputs.push_back(found.y);
    seeds.push_back(part(dy, begin, end));
  }
  EXPECT_TRUE(test::close(state.value(), expected.state.value(), 1e-13, 1e-13));
  backward(outputs, seeds);
  const Tensor dstate = leaves[5].grad();
  std::vector<Variable> once;
  for (const Tensor& x : in) once.emplace_back(x, true);
  backward({call(once, whole).y}, {dy});
  EXPECT_TRUE(test::close(dstate, once[5].grad(), 1e-12, 1e-12));
}

TEST(DeltaAttention, ThreadsChangeNoBit) {
  const DeltaCase at{{3, 300, 4, true, true, 0}, 3, 32, 32};
  std::vector<std::vector<Tensor>> found;
  for (const int threads : {1, 2, 3}) {
    const test::Threads use(threads);
    found.push_back(at.results(DType::f32, DType::f32));
  }
  for (size_t i = 0; i < found[0].size(); ++i) {
    EXPECT_TRUE(test::same_bits(found[0][i], found[1][i])) << i;
    EXPECT_TRUE(test::same_bits(found[0][i], found[2][i])) << i;
  }
}

// beta 0 writes nothing: what is read is the carried state, faded.
TEST(DeltaAttention, BetaOfZeroWritesNothing) {
  const DeltaCase at{{1, 40, 4, false, false, 0}, 1, 4, 4};
  std::vector<Tensor> in = at.inputs();
  in[3] = Tensor::zeros(in[3].shape(), DType::f64);
  const DeltaAttentionResult found = call(variables(in), at.context());
  double sum = 0;
  for (int64_t t = 0; t < 40; ++t) sum += in[4].data<double>()[t];
  for (int64_t i = 0; i < 16; ++i) {
    EXPECT_NEAR(found.state.value().data<double>()[i], std::exp(sum) * in[5].data<double>()[i],
                1e-14);
  }
}

// A log-decay at which everything is forgotten leaves no NaN.
TEST(DeltaAttention, EverythingMayBeForgotten) {
  const DeltaCase at{{1, 70, 4, false, false, 0}, 1, 4, 4, true, 1e6};
  for (const Tensor& x : at.results(DType::f32, DType::f32)) {
    for (const double value : x.to_vector<double>()) ASSERT_TRUE(std::isfinite(value));
  }
}

TEST(DeltaAttention, APositiveLogDecayIsRefused) {
  const DeltaCase at{{1, 9, 0, false, true, 0}};
  const std::vector<Tensor> in = at.inputs();
  const ValueChecks checked;
  in[4].data<double>()[2] = 1e-3;  // token 1, which is masked
  EXPECT_NO_THROW(call(variables(in), at.context()));
  in[4].data<double>()[5] = 1e-3;
  EXPECT_NE(test::message_of<Error>([&] {
              call(variables(in), at.context());
            }).find("log-decays of at most 0, with which a state never grows, got 0.001"),
            std::string::npos);
}

TEST(DeltaAttention, ShapesThatDoNotFitAreRefused) {
  const DeltaCase at{{2, 9, 4, true, true, 0}};
  const std::vector<Tensor> in = at.inputs();
  for (size_t i = 0; i < in.size(); ++i) {
    std::vector<Tensor> wrong = in;
    wrong[i] = Tensor::zeros(in[i].shape().with(1, in[i].size(1) + 1), DType::f64);
    EXPECT_THROW(call(variables(wrong), at.context()), Error) << i;
  }
  DeltaAttentionContext context = at.context();
  context.key_mask = Tensor::zeros({2, 8}, DType::u8);
  EXPECT_THROW(call(variables(in), context), Error);
  context = at.context();
  context.segments = Tensor::zeros({1, 9}, DType::i32);
  EXPECT_THROW(call(variables(in), context), Error);
}

TEST(DeltaAttention, StatesTheMultiplyAddsThatItMakes) {
  const test::Threads one(1);
  for (const int64_t T : {1, 37, 384}) {
    const DeltaCase at{{1, T, 0, false, false, 0}, 1, 64, 32};
    const double before = tile_multiply_adds();
    call(variables(at.inputs()), at.context());
    const double made = tile_multiply_adds() - before;
    const double stated = delta_attention_multiply_adds(T, 64, 32);
    EXPECT_GE(made, stated) << T;
    EXPECT_LE(made, (T < 32 ? 1.5 : 1.2) * stated) << T;
  }
}

}  // namespace
}  // namespace linnet
