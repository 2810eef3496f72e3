#include "attention/lara/cuda/optimal.h"

#include "attention/lara/optimal_rule.h"
#include "core/cuda/for_each.h"

namespace linnet::cuda {
namespace {

struct Exp {
  __host__ __device__ float operator()(float x) const { return expf(x); }
};
struct Log {
  __host__ __device__ float operator()(float x) const { return logf(x); }
};

landmark_rule::Optimal<float> rule_of(const OptimalTensors& in) {
  return {in.found.size(1),
          in.found.size(2),
          in.found.size(3),
          in.keys.size(3),
          pointer<float>(in.found),
          pointer<float>(in.near),
          pointer<float>(in.keys),
          pointer<double>(in.totals),
          pointer<double>(in.relative),
          in.mask.defined() ? pointer<uint8_t>(in.mask) : nullptr};
}

}  // namespace

void optimal_logits(const OptimalTensors& in, const Tensor& y) {
  const auto rule = rule_of(in);
  float* out = pointer<float>(y);
  for_each("optimal_logits", in.found.size(0) * rule.tokens * rule.H,
           [=] __device__(int64_t row) { rule.forward(row, out, Exp{}, Log{}); });
}

void optimal_logits_backward(const OptimalTensors& in, const Tensor& dy, const Tensor& dalpha,
                             const OptimalTensors& d) {
  const auto rule = rule_of(in);
  const float* dout = pointer<float>(dy);
  float *alpha = pointer<float>(dalpha), *found = pointer<float>(d.found);
  float *near = pointer<float>(d.near), *keys = pointer<float>(d.keys);
  double *totals = pointer<double>(d.totals), *relative = pointer<double>(d.relative);
  for_each("optimal_logits_rows", in.found.size(0) * rule.tokens * rule.H,
           [=] __device__(int64_t row) { rule.backward(row, dout, alpha, found, near, Exp{}); });
  for_each("optimal_logits_landmarks", in.totals.elements(), [=] __device__(int64_t n) {
    rule.landmark(n, alpha, found, near, totals, relative, keys, Exp{});
  });
}

}  // namespace linnet::cuda
