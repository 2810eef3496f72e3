// The kernels on tensor cores of the orthogonal memory and of LAVO's pass read parts of a fused
// projection, and write parts of its gradient, in place: bit for bit what dense tensors give.
#include "attention/lavo/cuda/lavo_pass_fast.h"
#include "core/cuda/kernel.h"
#include "tests/cuda_helpers.h"

namespace linnet {
namespace {

using cuda::pointer;
using test::kGpu;
using test::random_tensor;
using View = SequenceView<cuda::kernel_bf16>;

constexpr int64_t B = 2, T = 70, H = 2, kRank = 8, kWindow = 6;

// Sequences [B,T,H,d] in one tensor: side by side in every token, or one after the other.
struct Parts {
  Tensor all;
  int64_t count, d;
  bool fused;

  int64_t token() const { return H * d; }
  int64_t size() const { return B * T * token(); }
  View operator[](int64_t part) const {
    auto* data = pointer<cuda::kernel_bf16>(all);
    if (!fused) return {data + part * size(), B, T, H, d};
    return {data + part * token(), B, T, H, d, T * count * token(), count * token(), d};
  }
  // Where number i of a part is.
  size_t at(int64_t part, int64_t i) const {
    if (!fused) return static_cast<size_t>(part * size() + i);
    return static_cast<size_t>((i / token() * count + part) * token() + i % token());
  }
  void append_to(std::vector<float>& numbers) const {
    const std::vector<float> stored = all.to_vector<float>();
    for (int64_t part = 0; part < count; ++part) {
      for (int64_t i = 0; i < size(); ++i) numbers.push_back(stored[at(part, i)]);
    }
  }
};

Parts empty_parts(int64_t count, int64_t d, bool fused) {
  return {Tensor::empty({count * B * T * H * d}, DType::bf16, kGpu), count, d, fused};
}

// The same numbers, fused or not.
Parts random_parts(int64_t count, int64_t d, bool fused) {
  Parts parts{{}, count, d, fused};
  const int64_t size = parts.size();
  const std::vector<double> numbers = random_tensor({count * size}, "parts").to_vector<double>();
  std::vector<double> stored(numbers.size());
  for (int64_t i = 0; i < count * size; ++i) {
    stored[parts.at(i / size, i % size)] = numbers[static_cast<size_t>(i)];
  }
  parts.all = Tensor::from(stored, {count * size}).to(DType::bf16).to(kGpu);
  return parts;
}

Tensor numbers_of(const Shape& shape) {
  return Tensor::empty(shape, DType::f32, kGpu);
}

// The outputs of both passes of the memory besides y, dq and df.
struct Memory {
  int64_t d;
  Tensor basis = random_tensor({H, kRank, d}, "basis").to(DType::f32).to(kGpu);
  Tensor completed = numbers_of({B, H, kRank}), partial = numbers_of({B, H, kRank});
  Tensor counts = Tensor::empty({B, 2}, DType::i64, kGpu);
  Tensor tokens = Tensor::empty({B, T}, DType::i64, kGpu);
  Tensor sums = numbers_of({B, 2, H, 2, kRank});
  Tensor phases = Tensor::empty({B, 2}, DType::i32, kGpu);
  Tensor dbasis = numbers_of({B, H, kRank, d}), df_dot_f = numbers_of({B, T, H});

  template <typename Call>
  Call call(const View& q, const View& f) const {
    Call call;
    call.q = q;
    call.f = f;
    call.basis = pointer<const float>(basis);
    call.rank = kRank;
    call.window = kWindow;
    call.scale = 0.7f;
    call.tokens = pointer<int64_t>(tokens);
    call.saved.sums = pointer<float>(sums);
    call.saved.phases = pointer<int32_t>(phases);
    return call;
  }
  cuda::orthogonal_memory_fast::Forward forward(const View& q, const View& f, const View& y) const {
    auto forward = call<cuda::orthogonal_memory_fast::Forward>(q, f);
    forward.y = y;
    forward.completed_out = pointer<float>(completed);
    forward.partial_out = pointer<float>(partial);
    forward.counts_out = pointer<int64_t>(counts);
    return forward;
  }
  cuda::orthogonal_memory_fast::Backward backward(const View& q, const View& f, const View& dy,
                                                  const View& dq, const View& df) const {
    auto backward = call<cuda::orthogonal_memory_fast::Backward>(q, f);
    backward.dy = dy;
    backward.dq = dq;
    backward.df = df;
    backward.dbasis = pointer<float>(dbasis);
    backward.df_dot_f = pointer<float>(df_dot_f);
    return backward;
  }
};

void append(const std::vector<Tensor>& tensors, std::vector<float>& to) {
  for (const Tensor& x : tensors) {
    const std::vector<float> numbers = x.to_vector<float>();
    to.insert(to.end(), numbers.begin(), numbers.end());
  }
}

void expect_same_and_finite(const std::vector<float>& got, const std::vector<float>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(std::isfinite(expected[i]) && got[i] == expected[i])
        << i << ": " << got[i] << ", dense " << expected[i];
  }
}

// Everything that both passes of the memory leave.
std::vector<float> memory_of(int64_t d, bool fused) {
  const Parts in = random_parts(3, d, fused), out = empty_parts(3, d, fused);
  const Memory memory{d};
  cuda::orthogonal_memory_fast::forward(memory.forward(in[0], in[1], out[0]));
  cuda::orthogonal_memory_fast::backward(memory.backward(in[0], in[1], in[2], out[1], out[2]));
  std::vector<float> found;
  out.append_to(found);
  append({memory.completed, memory.dbasis, memory.df_dot_f}, found);
  return found;
}

// The same of LAVO's pass, whose window goes back in so many runs; the gradients of its bias are
// those of all runs one after the other.
struct Pass {
  std::vector<float> found, dbias;
};
Pass pass_of(int64_t d, bool fused, int runs) {
  const Parts in = random_parts(4, d, fused), out = empty_parts(2, d, fused);  // q, k, v, dy; y, f
  const Parts gradients = empty_parts(4, d, fused);                            // q, k, v, f
  const Memory memory{d};
  const Tensor log_sum_exp = numbers_of({B, T, H});
  const Tensor dbias = numbers_of({runs * B, H, 2 * kWindow - 1});
  const Tensor bias = random_tensor({H, 2 * kWindow - 1}, "bias").to(DType::f32).to(kGpu);

  cuda::lavo_pass_fast::Forward forward;
  forward.memory = memory.forward(in[0], in[0], out[0]);
  forward.k = in[1];
  forward.v = in[2];
  forward.bias = pointer<const float>(bias);
  forward.bias_heads = H;
  forward.local = out[1];
  forward.log_sum_exp = pointer<float>(log_sum_exp);
  cuda::lavo_pass_fast::forward(forward);

  auto backward = memory.backward(in[0], out[1], in[3], gradients[0], gradients[3]);
  backward.share = backward.code_share = backward.empty_code_share = 0.5f;
  cuda::orthogonal_memory_fast::backward(backward);
  cuda::lavo_pass_fast::WindowBackward window;
  window.memory = backward;
  window.k = in[1];
  window.v = in[2];
  window.df = gradients[3];
  window.bias = forward.bias;
  window.bias_heads = H;
  window.log_sum_exp = forward.log_sum_exp;
  window.df_dot_f = backward.df_dot_f;
  window.memory_dq = gradients[0];
  window.dq = gradients[0];
  window.dk = gradients[1];
  window.dv = gradients[2];
  window.dbias = pointer<float>(dbias);
  cuda::lavo_pass_fast::plan_runs(window);
  EXPECT_EQ(window.runs, 1);
  window.runs = runs;
  window.run_chunks = 2 / runs;
  cuda::lavo_pass_fast::window_backward(window);
  Pass pass;
  out.append_to(pass.found);
  gradients.append_to(pass.found);
  append({memory.completed, memory.dbasis, log_sum_exp}, pass.found);
  append({dbias}, pass.dbias);
  return pass;
}

TEST(CudaOrthogonalMemoryFast, ReadsFusedProjectionsInPlace) {
  for (const int64_t d : {16, 128}) {
    SCOPED_TRACE(d);
    expect_same_and_finite(memory_of(d, true), memory_of(d, false));
  }
}

// Runs of one chunk each leave what one run leaves, but for the order in which the gradients of the
// bias are summed in f32: those of up to 70 tokens for each distance and head, to sums of up to
// some 200, of which 70 2^-24 are 8e-4.
TEST(CudaLavoPass, ReadsFusedProjectionsInPlace) {
  for (const int64_t d : {16, 128}) {
    SCOPED_TRACE(d);
    const Pass dense = pass_of(d, false, 1), runs = pass_of(d, true, 2);
    expect_same_and_finite(runs.found, dense.found);
    expect_same_and_finite(pass_of(d, true, 1).dbias, dense.dbias);
    for (size_t i = 0; i < dense.dbias.size(); ++i) {
      ASSERT_NEAR(runs.dbias[i] + runs.dbias[dense.dbias.size() + i], dense.dbias[i], 1e-3) << i;
    }
  }
}

}  // namespace
}  // namespace linnet
