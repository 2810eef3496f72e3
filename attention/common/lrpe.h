// Linearized relative positional encoding (Qin et al. 2023, LRPE), as TransNormer has it: rotary
// positions of queries and keys after their feature map, with frequencies that may be learned.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "attention/reference.h"
#include "core/config.h"

namespace linnet {

// Rotates channels 2i and 2i+1 of x [B,T,H,K] by positions (i32 [B,T]) * frequencies[i], i < n;
// later channels stay. frequencies [n], 2n <= K, in f32 (f64 for f64 x). Masked tokens (mask u8
// [B,T], 1 = valid; undefined: all valid) are 0 and never read. Differentiable in x and
// frequencies. Throws Error on other shapes.
Variable learned_rotary(const Variable& x, const Tensor& positions, const Variable& frequencies,
                        const Tensor& mask);

// The option `lrpe`: a member of Params.
template <typename Params>
void describe_lrpe(ConfigDescription<Params>& d) {
  d.choice(
      "lrpe", &Params::lrpe, {"none", "fixed", "learned", "reflected"},
      "rotary positions of queries and keys after the feature map, on all channels: none, with "
      "frequencies 10000^(-2i/K), with learned ones that begin there, or with these after a "
      "reflection in a plane that each layer draws");
}

class Lrpe {
 public:
  // Declares `rates.lrpe` [K/2], one for all heads of the layer, where it is learned, and the
  // buffer `lrpe_reflection` [K,K] where there is one.
  Lrpe(const std::string& lrpe, int64_t head_width, const ParameterScope& own);
  bool used() const { return width_ > 0; }
  // x [B,T,H,K] rotated, in its dtype; x itself where there is none. The reflection is rounded to
  // the dtype of the model's activations, as all weights but rates are.
  Variable operator()(const Variable& x, const Tensor& positions, const Tensor& mask,
                      DType activations) const;
  // Adds its products, of queries and keys of a self form, and the bytes of what it declares.
  void add_cost(const MixerOptions& options, const MixerShape& shape, MixerCost& cost) const;

 private:
  int64_t width_;  // rotated channels
  Variable frequencies_, reflection_;
};

// The literal rotation of the K channels of one token and head.
template <typename Number>
void reference_lrpe(const ReferenceSequence<Number>& s, const std::string& lrpe, int32_t position,
                    Number* x) {
  if (lrpe == "none") return;
  if (lrpe == "reflected") {
    const std::vector<Number> before(x, x + s.K);
    for (int64_t c = 0; c < s.K; ++c) {
      x[c] = dot_product(&s.parameter("lrpe_reflection")[static_cast<size_t>(c * s.K)],
                         before.data(), s.K);
    }
  }
  const int64_t width = s.K - s.K % 2;
  for (int64_t c = 0; c < width; c += 2) {
    const Number frequency =
        lrpe == "fixed"
            ? std::pow(Number{10000}, -static_cast<Number>(c) / static_cast<Number>(width))
            : s.parameter("rates.lrpe")[static_cast<size_t>(c / 2)];
    const Number angle = static_cast<Number>(position) * frequency;
    const Number left = x[c], right = x[c + 1];
    x[c] = left * std::cos(angle) - right * std::sin(angle);
    x[c + 1] = left * std::sin(angle) + right * std::cos(angle);
  }
}

}  // namespace linnet
