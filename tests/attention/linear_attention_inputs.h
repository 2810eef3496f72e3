// Shared by tests of linear attention on Variables: inputs, and all gradients of a call.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "attention/primitives/linear_attention/linear_attention.h"
#include "core/random.h"
#include "tests/worst.h"

namespace linnet::test {

// Values away from the kinks of relu, so that differences do not straddle them.
inline Tensor draw(const Shape& shape, uint64_t site, bool fraction = false) {
  std::vector<double> out(static_cast<size_t>(shape.elements()));
  for (size_t i = 0; i < out.size(); ++i) {
    const double x = RandomKey{11, 0, site}.normal(i);
    out[i] = fraction ? 1 / (1 + std::exp(-x)) : x + (x > 0 ? 0.05 : -0.05);
  }
  return Tensor::from(out, shape);
}

inline LinearAttentionVariables variables_of(const std::vector<Variable>& in) {
  return {in[0], in[1], in[2], in[3], in[4]};
}

// Two query heads, which share a key head or (G = 2) have one each: on the CPU other kernels.
inline std::vector<Tensor> inputs_for(int64_t Tq, int64_t Tk, bool reweighted, bool with_state,
                                      int64_t G = 1) {
  const int64_t B = 2, H = 2, K = 3, V = 2, m = reweighted ? 2 * K : K;
  return {draw({B, Tq, H, K}, 1),
          draw({B, Tk, G, K}, 2),
          draw({B, Tk, G, V}, 3),
          reweighted ? draw({B, Tq, H}, 4, true) : Tensor(),
          reweighted ? draw({B, Tk, G}, 5, true) : Tensor(),
          with_state ? draw({B, G, m, V}, 6) : Tensor(),
          with_state ? draw({B, G, m}, 7, true) : Tensor()};
}

// Log-decays between -1 and 0, such that no difference step reaches 0.
inline Tensor draw_decay(const Shape& shape) {
  const Tensor decay = draw(shape, 8, true);
  for (int64_t i = 0; i < decay.elements(); ++i) decay.data<double>()[i] *= -1;
  return decay;
}

// Gradients of sum(w y) + sum(w state) for every input, f64.
inline std::vector<Tensor> gradients_of(const std::vector<Tensor>& tensors,
                                        const LinearAttentionContext& context, bool causal) {
  std::vector<Variable> in;
  for (const Tensor& tensor : tensors) {
    in.push_back(tensor.defined() ? Variable(tensor, true) : Variable());
  }
  std::vector<Variable> outputs;
  if (causal) {
    LinearAttentionVariables variables = variables_of(in);
    if (in.size() > 7) variables.log_decay = in[7];
    const auto result = linear_attention_causal(variables, context, {in[5], in[6]});
    outputs = {result.y, result.state.memory, result.state.mass};
  } else {
    outputs = {linear_attention_read(variables_of(in),
                                     linear_attention_memory(variables_of(in), context), context)};
  }
  std::vector<Tensor> seeds, found;
  for (size_t i = 0; i < outputs.size(); ++i) {
    found.push_back(outputs[i].value());
    seeds.push_back(draw(outputs[i].shape(), 20 + i).to(outputs[i].dtype()));
  }
  backward(outputs, seeds);
  for (const Variable& variable : in) {
    if (variable.defined()) found.push_back(variable.grad());
  }
  return found;
}

inline double largest_difference(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  double worst = 0;
  EXPECT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    const auto x = a[i].to_vector<double>(), y = b[i].to_vector<double>();
    double scale = 1e-3;
    for (const double value : y) scale = std::max(scale, std::abs(value));
    for (size_t j = 0; j < x.size(); ++j) {
      const double error = std::abs(x[j] - y[j]) / scale;
      keep_worst(worst, error);
    }
  }
  return worst;
}

}  // namespace linnet::test
