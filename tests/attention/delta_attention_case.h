// Calls of the delta rule with masks, documents and carried states, for tests on the CPU and on a
// device.
#pragma once

#include <string>
#include <vector>

#include "attention/primitives/delta_attention/delta_attention.h"
#include "tests/attention/token_setting.h"

namespace linnet::test {

struct DeltaCase {
  TokenSetting tokens;
  int64_t H = 2, K = 5, V = 7;
  bool decays = true;
  double rate = 0.3;  // of the log-decays
  double scale = 0.7;

  std::string label() const {
    return concat(tokens.label(), ", T ", tokens.T, ", K ", K, ", V ", V,
                  decays ? concat(", decays by ", rate) : "");
  }

  // q, k, v, beta, log_decay and state in double; the last two may be undefined. Keys have a length
  // near 1 and beta is between 0 and 1, so that states stay small.
  std::vector<Tensor> inputs() const {
    const int64_t B = tokens.B, T = tokens.T;
    const Tensor beta = random_tensor({B, T, H}, "beta"), decay = random_tensor({B, T, H}, "decay");
    for (int64_t i = 0; i < beta.elements(); ++i) {
      double &b = beta.data<double>()[i], &g = decay.data<double>()[i];
      b = 1 / (1 + std::exp(-b));
      g = -rate * (std::abs(g) + 1e-3);
    }
    return {random_tensor({B, T, H, K}, "q"),
            random_tensor({B, T, H, K}, "k", DType::f64, 1 / std::sqrt(static_cast<double>(K))),
            random_tensor({B, T, H, V}, "v"),
            beta,
            decays ? decay : Tensor(),
            tokens.P > 0 ? random_tensor({B, H, K, V}, "state") : Tensor()};
  }

  DeltaAttentionContext context(Device device = {}) const {
    const BlockAttentionContext on = on_device(tokens.context(), device);
    return {on.key_mask, on.segments, scale};
  }

  using Function = DeltaAttentionResult (*)(const DeltaAttentionVariables&,
                                            const DeltaAttentionContext&, const Variable&);

  // y, the state and the gradients of all inputs, on the host. What is masked is NaN. Inputs and
  // gradients of results are rounded to `rounded`; log-decays and states stay in f32 or f64.
  std::vector<Tensor> results(DType rounded, DType dtype, Device device = {},
                              Function function = delta_attention) const {
    const Tensor mask = tokens.context().key_mask;
    const DType wide = dtype == DType::f64 ? DType::f64 : DType::f32;
    const std::vector<Tensor> given = inputs();
    std::vector<Variable> in;
    for (size_t i = 0; i < given.size(); ++i) {
      if (!given[i].defined()) {
        in.emplace_back();
        continue;
      }
      const Tensor x = i == 5 ? given[i] : poisoned(given[i], mask);
      const bool stays = i >= 4;
      in.emplace_back(x.to(stays ? DType::f32 : rounded).to(stays ? wide : dtype).to(device), true);
    }
    const DeltaAttentionResult found =
        function({in[0], in[1], in[2], in[3], in[4]}, context(device), in[5]);
    EXPECT_EQ(found.y.dtype(), dtype);
    EXPECT_EQ(found.y.value().device(), device);
    // The composed path reads the gradients of masked results.
    const Tensor seed = random_tensor(found.y.shape(), "dy");
    const Tensor read = function == delta_attention ? poisoned(seed, mask) : seed;
    const Tensor dy = read.to(rounded).to(dtype).to(device);
    const Tensor dstate = random_tensor(found.state.shape(), "dstate").to(wide).to(device);
    backward({found.y, found.state}, {dy, dstate});
    std::vector<Tensor> out{found.y.value().to(Device{}), found.state.value().to(Device{})};
    for (const Variable& x : in) {
      if (x.defined()) out.push_back(x.grad().to(Device{}));
    }
    return out;
  }
};

// Every kind of row, shorter than a chunk, and longer than several.
inline std::vector<DeltaCase> delta_cases() {
  std::vector<DeltaCase> all;
  for (const TokenSetting& tokens : token_settings()) {
    all.push_back({tokens});
    all.push_back({tokens, 1, 16, 32, false});
  }
  all.push_back({{1, 70, 4, true, true, 0}, 2, 17, 33});
  all.push_back({{2, 64, 0, false, false, 0}, 1, 8, 3, false});
  all.push_back({{2, 0, 4, false, false, 0}});
  return all;
}

}  // namespace linnet::test
