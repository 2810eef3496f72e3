#include "attention/common/gated_norm.h"

#include "attention/common/mixer_support.h"
#include "autograd/arithmetic.h"
#include "autograd/functions.h"
#include "autograd/linear.h"

namespace linnet {

GatedNorm::GatedNorm(const GatedNormSpec& spec, const MixerOptions& options,
                     const ParameterScope& own)
    : spec_(spec), width_(options.width) {
  if (!spec.gate) return;
  gate_ = own.parameter("gate.weight", {width_, width_}, init_xavier(1, width_, width_));
}

Variable GatedNorm::operator()(const Variable& y, const Variable& x) const {
  const NormSpec rule{spec_.kind, spec_.epsilon};
  if (!spec_.gate) return norm(y, {}, {}, rule);
  require_usage(x.defined(),
                "the gate reads the layer's input, which a run of the core alone "
                "lacks; give inputs/x");
  const Variable gate = reshape(silu(as_dtype(linear(x, gate_), y.dtype())), y.shape());
  if (spec_.gate_first) return norm(multiply(y, gate), {}, {}, rule);
  return multiply(norm(y, {}, {}, rule), gate);
}

void GatedNorm::add_cost(const MixerShape& shape, MixerCost& cost) const {
  if (!spec_.gate) return;
  const auto weights = static_cast<double>(width_ * width_);
  cost.projections += static_cast<double>(shape.batch * shape.queries) * weights;
  cost.bytes += weights * static_cast<double>(size_of(shape.dtype));
}

}  // namespace linnet
