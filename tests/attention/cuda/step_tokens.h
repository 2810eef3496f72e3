// Sequences on the host as tokens, and tokens as a sequence.
#pragma once

#include <cstring>
#include <vector>

#include "core/tensor.h"

namespace linnet::test {

// Token t of every row of x [B,T,...] on the host.
inline Tensor token_of(const Tensor& x, int64_t t) {
  const Shape sizes = x.shape().with(1, 1);
  const Tensor token = Tensor::empty(sizes, x.dtype());
  const size_t bytes = token.bytes() / static_cast<size_t>(sizes[0]);
  for (int64_t b = 0; b < sizes[0]; ++b) {
    std::memcpy(static_cast<char*>(token.raw()) + static_cast<size_t>(b) * bytes,
                static_cast<const char*>(x.raw()) + static_cast<size_t>(b * x.size(1) + t) * bytes,
                bytes);
  }
  return token;
}
// The tokens [B,1,...] one after the other, in double on the host.
inline Tensor sequence_of(const std::vector<Tensor>& tokens) {
  const Shape sizes = tokens.front().shape().with(1, std::ssize(tokens));
  const Tensor all = Tensor::empty(sizes, DType::f64);
  const int64_t width = tokens.front().elements() / sizes[0];
  for (size_t t = 0; t < tokens.size(); ++t) {
    const std::vector<double> numbers = tokens[t].to(Device{}).to_vector<double>();
    for (int64_t i = 0; i < sizes[0] * width; ++i) {
      const int64_t token = i / width * sizes[1] + static_cast<int64_t>(t);
      all.data<double>()[token * width + i % width] = numbers[static_cast<size_t>(i)];
    }
  }
  return all;
}

}  // namespace linnet::test
