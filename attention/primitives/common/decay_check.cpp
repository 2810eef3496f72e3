#include "attention/primitives/common/decay_check.h"

#include "attention/primitives/common/binding.h"
#include "core/value_checks.h"

namespace linnet {

void check_log_decay(const Tensor& log_decay, const Tensor& mask, const char* primitive) {
  if (!log_decay.defined() || on_cuda(log_decay) || !values_are_checked()) return;
  const auto* valid = binding::pointer<uint8_t>(mask);
  const int64_t T = log_decay.size(1), tokens = log_decay.size(0) * T;
  const int64_t width = tokens > 0 ? log_decay.elements() / tokens : 0;
  binding::dispatch(log_decay.dtype(), [&](auto zero) {
    const auto* values = log_decay.data<decltype(zero)>();
    for (int64_t i = 0; i < tokens * width; ++i) {
      const int64_t token = i / width;
      if (!(values[i] > 0) || !is_valid(valid, 0, token, 0)) continue;
      throw Error(concat(primitive, ": expected log-decays of at most 0, with which a state never ",
                         "grows, got ", values[i], " at token ", token % T, " of row ", token / T));
    }
  });
}

}  // namespace linnet
