// Token shift: half of the channels come from the token before.
#pragma once

#include "layers/token_mixer.h"

namespace linnet {

struct ShiftedTokens {
  Variable x;        // [B,T,E]
  MixerState state;  // causal: the last token, "shift" [B,1,E] and "shift_valid" [B,1]
};

// Channels c < E / 2 of a token are those of the token before in its document, 0 where there is
// none or it is padding, which is not read; the others are its own. Causal calls continue from
// `state`. Differentiable in x and the state.
ShiftedTokens shift_tokens(const Variable& x, const MixerContext& context, const MixerState& state,
                           bool causal);

// shift_tokens() of the nodes of a tree x [N,1,E] that follows a text: y is their vectors. On the
// host, without recording.
TreeMix shift_tree(const Variable& x, std::span<const MixerNode> nodes, const MixerState& state);

}  // namespace linnet
