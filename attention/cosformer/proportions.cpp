#include "attention/cosformer/proportions.h"

#include <algorithm>
#include <mutex>

#include "attention/cosformer/cuda/proportions.h"
#include "core/cuda/backend.h"
#include "core/error.h"
#include "core/log.h"

namespace linnet {

Tensor position_proportions(const Tensor& positions, int64_t heads, int64_t length, bool clamp) {
  if constexpr (kCuda) {
    if (on_cuda(positions)) return cuda::position_proportions(positions, heads, length, clamp);
  }
  const Tensor result = Tensor::empty({positions.size(0), positions.size(1), heads}, DType::f64);
  for (int64_t i = 0; i < positions.elements(); ++i) {
    const int64_t position = positions.data<int32_t>()[i];
    require_usage(clamp || position < length, "cosformer: position ", position,
                  " lies beyond the length ", length,
                  " that it was made for; raise max_length (or the training context), or set "
                  "beyond_max: clamp");
    if (position >= length) {
      static std::once_flag said;
      std::call_once(said, [&] {
        log_warning("cosformer: position ", position, " counts as the length ", length,
                    " that it was made for (beyond_max: clamp), and so do all beyond");
      });
    }
    const double p = static_cast<double>(position) / static_cast<double>(length);
    std::fill_n(result.data<double>() + i * heads, heads, std::min(p, 1.0));
  }
  return result;
}

}  // namespace linnet
