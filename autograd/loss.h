// Softmax cross-entropy. The language-model form never stores the logits of the whole batch.
#pragma once

#include <vector>

#include "autograd/variable.h"

namespace linnet {

// Sum over scored tokens of -log softmax(hidden weight^T)[target], as an f64 scalar.
// hidden [.., E], weight [V, E] (the output table, possibly tied to the embedding), targets i32
// with one entry per token, -1 where nothing is scored; others outside [0, V) throw Error (on a
// CUDA device, where a check would mean waiting, the loss is NaN). The loss lies beside hidden.
// Where bias [V] is defined, logits are hidden weight^T + bias.
// Logits exist for one chunk of tokens at a time; the gradients are formed in the same pass, so
// that backward only scales them.
Variable output_cross_entropy(const Variable& hidden, const Variable& weight, const Tensor& targets,
                              const Variable& bias = {});

// The loss of every token (f64 [tokens] beside hidden, 0 where unscored), without recording.
Tensor output_token_losses(const Tensor& hidden, const Tensor& weight, const Tensor& targets,
                           const Tensor& bias = {});

// The sum of losses as these functions give them, on one device.
Variable sum_of_losses(const std::vector<Variable>& losses);

// The same sum for logits [N, classes] that exist already.
Variable cross_entropy(const Variable& logits, const Tensor& targets);

}  // namespace linnet
