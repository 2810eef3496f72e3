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

}  // namespace linnet
