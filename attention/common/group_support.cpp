#include "attention/common/group_support.h"

#include "attention/common/mixer_support.h"

namespace linnet {

Variable prefix_of_groups(const Variable& q, const Variable& k, const Variable& v,
                          const GroupPrefixOptions& options, const MixerContext& context,
                          const MixerState& state, MixerState& after) {
  const DType dtype = sum_dtype(v.dtype());
  const GroupPrefixContext at{options, context.key_mask, context.segments, context.positions};
  const GroupPrefixResult result =
      group_prefix(q, k, v, at, {carried(state, "completed", dtype), carried(state, "all", dtype)});
  if (!options.whole) {
    after["completed"] = result.state.completed;
    after["all"] = result.state.all;
  }
  return result.y;
}

double prefix_bytes(double rows, int64_t key_width, int64_t value_width, DType inputs) {
  return rows * 2 * static_cast<double>(key_width * value_width) *
         static_cast<double>(size_of(sum_dtype(inputs)));
}

}  // namespace linnet
