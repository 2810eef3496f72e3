#include "attention/common/head_logits.h"

#include "attention/common/mixer_support.h"
#include "autograd/linear.h"

namespace linnet {

HeadLogits::HeadLogits(const std::string& name, const MixerOptions& options,
                       const ParameterScope& own)
    : name_(name),
      weight_(own.parameter(name + ".weight", {options.heads, options.width},
                            init_xavier(1, options.width, options.heads))) {}

Variable HeadLogits::operator()(const Variable& x, const Variable& bias) const {
  require_usage(x.defined(), "the mechanism's ", name_,
                " reads the layer's input, which a run of the core alone lacks; give inputs/x");
  const DType dtype = sum_dtype(x.dtype());
  return linear(as_dtype(x, dtype), as_dtype(weight_, dtype),
                bias.defined() ? as_dtype(bias, dtype) : bias);
}

void HeadLogits::add_cost(const MixerShape& shape, MixerCost& cost) const {
  if (!weight_.defined()) return;
  const auto weights = static_cast<double>(weight_.shape().elements());
  cost.projections += static_cast<double>(shape.batch * shape.queries) * weights;
  cost.bytes += weights * static_cast<double>(size_of(shape.dtype));
}

}  // namespace linnet
