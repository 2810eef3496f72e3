// The orthogonal memory on Variables: gradients of the carried state, sequences split anywhere,
// encoded sources, half precision.
#include "attention/primitives/orthogonal_memory/orthogonal_memory.h"

#include <gtest/gtest.h>

#include "autograd/arithmetic.h"
#include "autograd/grad_check.h"
#include "core/error.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

using test::close;
using test::random_tensor;

TEST(OrthogonalMemoryVariable, GradientsIncludeTheCarriedState) {
  for (const bool shared : {false, true}) {
    OrthogonalMemoryContext context;
    context.options = {MemoryScope::completed_windows, 2, 0.7, false};
    context.positions = Tensor::from(std::vector<int32_t>{3, 4, 5, 7, 8, 9}, {2, 3});
    context.code_mask = Tensor::from(std::vector<uint8_t>{1, 0, 1, 1, 1, 1}, {2, 3});
    const Tensor counts = Tensor::from(std::vector<int64_t>{2, 1, 6, 1}, {2, 2});
    const int64_t M = shared ? 1 : 2;
    const GradCheckResult result = grad_check(
        [&](const std::vector<Variable>& x) {
          const OrthogonalMemoryResult r =
              orthogonal_memory(x[0], x[1], x[2], {x[3], x[4], counts}, context);
          return std::vector<Variable>{r.y, r.carry.completed, r.carry.partial};
        },
        {random_tensor({2, 3, 2, 3}, "1"), random_tensor({2, 3, 2, 3}, "2"),
         shared ? random_tensor({4, 6}, "3") : random_tensor({2, 4, 3}, "3"),
         random_tensor({2, M, 4}, "4"), random_tensor({2, M, 4}, "5")});
    EXPECT_TRUE(result.passed) << result.message;
  }
}

TEST(OrthogonalMemoryVariable, AnyCutGivesTheWholeSequence) {
  const int64_t T = 29;
  const Tensor q = random_tensor({1, T, 2, 3}, "1"), f = random_tensor({1, T, 2, 3}, "2");
  const Variable basis(random_tensor({2, 4, 3}, "3"));
  std::vector<uint8_t> mask(T, 1);
  mask[4] = mask[5] = mask[17] = 0;
  OrthogonalMemoryContext whole;
  whole.code_mask = whole.query_mask = Tensor::from(mask, {1, T});
  for (const MemoryScope scope : {MemoryScope::completed_windows, MemoryScope::prefix}) {
    whole.options = {scope, 4, 0.7, false, 0.3, RandomKey{3, 1, 9}};
    const OrthogonalMemoryResult expected =
        orthogonal_memory(Variable(q), Variable(f), basis, {}, whole);
    for (const int64_t step : {1, 3, 4, 20}) {
      OrthogonalMemoryCarry carry;
      for (int64_t t = 0; t < T; t += step) {
        const int64_t n = std::min(step, T - t);
        OrthogonalMemoryContext context = whole;
        context.place.time_offset = t;
        context.code_mask = context.query_mask = whole.code_mask.slice(t, {1, n});
        const OrthogonalMemoryResult part =
            orthogonal_memory(Variable(q.slice(t * 6, {1, n, 2, 3})),
                              Variable(f.slice(t * 6, {1, n, 2, 3})), basis, carry, context);
        carry = part.carry;
        EXPECT_TRUE(
            close(part.y.value(), expected.y.value().slice(t * 6, {1, n, 2, 3}), 1e-13, 1e-13))
            << "step " << step << ", token " << t;
        EXPECT_EQ(part.memory_tokens.to_vector<int64_t>()[0],
                  expected.memory_tokens.to_vector<int64_t>()[t]);
      }
      EXPECT_TRUE(close(carry.completed.value(), expected.carry.completed.value(), 1e-13, 1e-13));
      EXPECT_EQ(carry.counts.to_vector<int64_t>(), expected.carry.counts.to_vector<int64_t>());
    }
  }
}

TEST(OrthogonalMemoryVariable, AnEncodedSourceIsReadLater) {
  OrthogonalMemoryContext context;
  context.options.scope = MemoryScope::whole;
  context.cross = true;
  const Variable q(random_tensor({2, 5, 2, 3}, "1")), source(random_tensor({2, 7, 2, 3}, "2"));
  const Variable basis(random_tensor({2, 4, 3}, "3")),
      nothing(Tensor::zeros({2, 0, 2, 3}, DType::f64));
  context.code_mask = Tensor::full({2, 7}, 1, DType::u8);
  context.code_mask.data<uint8_t>()[3] = 0;
  const OrthogonalMemoryResult at_once = orthogonal_memory(q, source, basis, {}, context);
  context.code_mask = Tensor();
  const OrthogonalMemoryResult later = orthogonal_memory(q, nothing, basis, at_once.carry, context);
  EXPECT_EQ(at_once.y.value().to_vector<double>(), later.y.value().to_vector<double>());
}

TEST(OrthogonalMemoryVariable, HalfPrecisionCarriesSinglePrecision) {
  OrthogonalMemoryContext context;
  context.options = {MemoryScope::completed_windows, 8, 0.25, false};
  const Variable q(random_tensor({1, 40, 2, 16}, "1", DType::bf16), true);
  const Variable f(random_tensor({1, 40, 2, 16}, "2", DType::bf16), true);
  const Variable basis(random_tensor({2, 16, 16}, "3", DType::f32), true);
  const OrthogonalMemoryResult result = orthogonal_memory(q, f, basis, {}, context);
  EXPECT_EQ(result.y.dtype(), DType::bf16);
  EXPECT_EQ(result.carry.completed.dtype(), DType::f32);
  const Variable q32(q.value().to(DType::f32)), f32(f.value().to(DType::f32));
  const OrthogonalMemoryResult wide = orthogonal_memory(q32, f32, basis, {}, context);
  EXPECT_EQ(result.y.value().to_vector<float>(), wide.y.value().to(DType::bf16).to_vector<float>());
  backward(sum_all(result.y));
  EXPECT_EQ(q.grad().dtype(), DType::bf16);
  EXPECT_EQ(basis.grad().dtype(), DType::f32);
}

TEST(OrthogonalMemoryVariable, RefusesWhatDoesNotFit) {
  OrthogonalMemoryContext context;
  const Variable x(random_tensor({1, 4, 2, 3}, "1")), basis(random_tensor({2, 4, 3}, "2"));
  EXPECT_THROW(orthogonal_memory(x, x, basis, {}, context), Error);  // window 0
  context.options.window = 2;
  EXPECT_THROW(orthogonal_memory(x, x, Variable(random_tensor({3, 4, 3}, "2")), {}, context),
               Error);
  const Variable source(random_tensor({1, 5, 2, 3}, "1"));
  EXPECT_THROW(orthogonal_memory(x, source, basis, {}, context), Error);
}

}  // namespace
}  // namespace linnet
