#include "layers/medusa.h"

#include <algorithm>

#include "autograd/arithmetic.h"
#include "autograd/layout.h"
#include "autograd/linear.h"
#include "autograd/loss.h"
#include "core/gemm.h"
#include "layers/token_mixer.h"

namespace linnet {

MedusaHeads::MedusaHeads(const MedusaConfig& config, int64_t width, int64_t vocabulary,
                         const ParameterScope& scope)
    : vocabulary_(vocabulary) {
  for (int64_t k = 1; k <= config.heads; ++k) {
    const ParameterScope own = scope.child(std::to_string(k));
    Head head;
    head.weight = own.parameter("block.weight", {width, width}, init_constant(0));
    head.bias = own.parameter("block.bias", {width}, init_constant(0));
    head.output = own.parameter("output.weight", {vocabulary, width}, init_constant(0));
    head.loss_weight = config.weight_of(k);
    heads_.push_back(std::move(head));
  }
}

Variable MedusaHeads::Head::hidden(const Variable& x) const {
  return add(x, linear(x, weight, bias, Activation::silu));
}

Variable MedusaHeads::loss(const Variable& hidden, const Tensor& targets) const {
  require(targets.shape().rank() == 3 && targets.size(0) == count(), "medusa: expected targets [",
          count(), ", B, T], got ", targets.shape());
  std::vector<Variable> losses;
  for (size_t k = 0; k < heads_.size(); ++k) {
    const Head& head = heads_[k];
    const auto at = static_cast<int64_t>(k);
    const Tensor own = targets.rows(at, at + 1).reshape({targets.size(1), targets.size(2)});
    losses.push_back(
        scale(output_cross_entropy(head.hidden(hidden), head.output, own), head.loss_weight));
  }
  return sum_of_losses(losses);
}

Tensor MedusaHeads::logits(int64_t head, const Tensor& hidden) const {
  const NoGrad off;
  const Head& one = heads_.at(static_cast<size_t>(head - 1));
  const DType type = hidden.dtype() == DType::bf16 ? DType::f32 : hidden.dtype();
  const Tensor& table = one.output.value();
  Tensor result = Tensor::empty({hidden.size(0), table.size(0)}, type, hidden.device());
  gemm(one.hidden(Variable(hidden)).value(), Transpose::no, table, Transpose::yes, result);
  return result;
}

void begin_as_head(const ParameterSet& parameters, const std::vector<std::string>& fresh) {
  const auto& entries = parameters.entries();
  const bool own_table = std::any_of(entries.begin(), entries.end(), [](const auto& entry) {
    return entry.name == "output.weight";
  });
  for (const std::string& name : fresh) {
    if (!name.starts_with("medusa.") || !name.ends_with(".output.weight")) continue;
    const auto& table = parameters.find(own_table ? "output.weight" : "embedding.weight");
    parameters.weight_of(parameters.find(name)).copy_from(parameters.weight_of(table));
  }
  parameters.refresh_values();
}

}  // namespace linnet
