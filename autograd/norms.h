// LayerNorm, RMSNorm and ScaleNorm over the last dimension, alone and fused with the residual sum.
#pragma once

#include <utility>

#include "autograd/dropout.h"
#include "autograd/variable.h"

namespace linnet {

enum class NormKind : uint8_t { layer, rms, scale };

struct NormSpec {
  NormKind kind = NormKind::layer;
  double epsilon = 1e-5;
};

// layer: (x - mean) / sqrt(var + eps) * gain + bias        gain, bias [C]
// rms:   x / sqrt(mean(x^2) + eps) * gain                  gain [C]       (Zhang & Sennrich 2019)
// scale: x / max(|x| / sqrt(C), eps) * gain                gain [1]       (Nguyen & Salazar 2019)
// x [.., C]; gain and bias may be undefined (1 and 0). Statistics in fp32 or wider.
Variable norm(const Variable& x, const Variable& gain, const Variable& bias, const NormSpec& spec);

// {sum, norm(sum)}, sum = residual + dropout(branch), [B, T, C]: the step between two sublayers,
// one kernel each way on a device. An undefined branch adds nothing; gradients of both are joined.
std::pair<Variable, Variable> residual_norm(const Variable& residual, const Variable& branch,
                                            const DropoutSpec& dropout, const Variable& gain,
                                            const Variable& bias, const NormSpec& spec);

}  // namespace linnet
