// Listed attention on the device against the CPU's in double: results and all gradients, f32 and
// bf16; the same bits again; an index beyond the keys.
#include "tests/attention/listed_attention_case.h"
#include "tests/bf16_tolerance.h"

namespace linnet {
namespace {

using test::kGpu;
using test::ListedCase;
using test::ListedSizes;

void expect_as_on_the_cpu(const ListedCase& p, const std::string& what) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::vector<Tensor> expected = p.results(dtype, DType::f64);
    const std::vector<Tensor> got = p.results(dtype, dtype, kGpu);
    const std::vector<Tensor> plain =
        dtype == DType::bf16 ? plain_results(p) : p.results(dtype, dtype);
    test::drop_infinities(plain[1], expected[1].clone());
    test::drop_infinities(got[1], expected[1]);
    test::expect_close_in(
        dtype, got, expected, 3e-6, [&] { return plain; }, concat(what, ", ", name_of(dtype)));
  }
}

TEST(CudaListedAttention, ListsOfEveryQuery) {
  ListedCase p(ListedSizes{.Tq = 37, .Tk = 41, .length = 45});
  expect_as_on_the_cpu(p, "plain");
  p.mask();
  p.add_bias(2, 4);
  p.drop(0.3);
  expect_as_on_the_cpu(p, "masks, bias, dropout");
}

TEST(CudaListedAttention, SharedLists) {
  ListedSizes sizes{
      .Tq = 37, .Tk = 41, .K = 33, .V = 34, .length = 35, .group = 8, .index_heads = 1};
  ListedCase grouped(sizes);
  expect_as_on_the_cpu(grouped, "groups");
  sizes.index_rows = 1;
  sizes.index_heads = 4;
  sizes.group = 19;
  ListedCase p(sizes);
  p.mask();
  for (const int64_t rows : {1, 2}) {
    for (const int64_t heads : {1, 4}) {
      if (rows * heads == 8) continue;
      p.add_bias(rows, heads);
      expect_as_on_the_cpu(p, "groups, masks, a bias that is shared");
    }
  }
}

TEST(CudaListedAttention, EmptySequencesAndLists) {
  expect_as_on_the_cpu(ListedCase(ListedSizes{.Tq = 0}), "no query");
  expect_as_on_the_cpu(ListedCase(ListedSizes{.length = 0}), "no place");
}

TEST(CudaListedAttention, SameBitsAgain) {
  ListedCase p(ListedSizes{.Tq = 37, .Tk = 11, .length = 45});
  p.add_bias(1, 1);
  const std::vector<Tensor> first = p.results(DType::f32, DType::f32, kGpu);
  const std::vector<Tensor> second = p.results(DType::f32, DType::f32, kGpu);
  for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(test::same_bits(first[i], second[i])) << i;
}

// The kernels cannot refuse it: the queries that would read it become NaN, others do not.
TEST(CudaListedAttention, AnIndexBeyondTheKeysGivesNan) {
  ListedCase p(ListedSizes{.B = 1, .index_rows = 1});
  p.context.index.data<int32_t>()[2] = static_cast<int32_t>(p.s.Tk);
  const Tensor y = p.results(DType::f32, DType::f32, kGpu)[0];
  EXPECT_TRUE(std::isnan(y.data<float>()[0]));
  EXPECT_TRUE(std::isfinite(y.data<float>()[p.s.V]));
}

TEST(CudaListedAttention, ACallOnTheCpuRefusesTensorsOnTheDevice) {
  ListedCase p;
  p.mask();
  p.drop(0.3);
  const ListedAttentionVariables in{Variable(p.q), Variable(p.k), Variable(p.v), {}};
  EXPECT_NO_THROW(listed_attention(in, p.context));
  for (const int which : {0, 1, 2, 3}) {
    ListedAttentionContext context = p.context;
    Tensor* const tensors[] = {&context.index, &context.query_mask, &context.key_mask,
                               &context.place.examples};
    *tensors[which] = tensors[which]->to(kGpu);
    EXPECT_THROW(listed_attention(in, context), Error) << which;
  }
}

TEST(CudaListedAttention, RefusesDouble) {
  const ListedCase p;
  const std::string message =
      test::message_of<Error>([&] { p.results(DType::f64, DType::f64, kGpu); });
  EXPECT_NE(message.find("has kernels for f32 and bf16"), std::string::npos) << message;
}

}  // namespace
}  // namespace linnet
