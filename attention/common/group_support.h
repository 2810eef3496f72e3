// Calls of group_prefix in mixers.
#pragma once

#include "attention/primitives/group_prefix/group_prefix.h"
#include "layers/token_mixer.h"

namespace linnet {

// group_prefix over the tokens of a batch, continuing from the sums `completed` and `all` in
// `state`; unless `options.whole`, the sums after the last token are put into `after`.
Variable prefix_of_groups(const Variable& q, const Variable& k, const Variable& v,
                          const GroupPrefixOptions& options, const MixerContext& context,
                          const MixerState& state, MixerState& after);
// Bytes of these two sums of `rows` sequences and heads.
double prefix_bytes(double rows, int64_t key_width, int64_t value_width, DType inputs);

}  // namespace linnet
