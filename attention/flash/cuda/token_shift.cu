#include "attention/flash/cuda/token_shift.h"

#include "core/cuda/for_each.h"

namespace linnet::cuda {

void fill_readable(const TokenBefore& rule, const Tensor& reads) {
  uint8_t* to = pointer<uint8_t>(reads);
  for_each("readable_tokens", reads.elements(),
           [=] __device__(int64_t i) { to[i] = rule.readable(i) ? 1 : 0; });
}

}  // namespace linnet::cuda
