// Places for keys and values that a text is still to bring, so that a decode state that grows with
// the text keeps its size from step to step: a captured step is then the same work for every token.
#pragma once

#include "layers/token_mixer.h"

namespace linnet {

// Asks the mixer that reads a layer's state next to keep its cached tokens k, v [B,P,...] and their
// mask `valid` in so many places, of which the text has the last ones and the others are not valid.
// A mixer that does so (softmax) returns the request with its state; others return the state
// without it. On `device` like the rest of the state.
void request_places(MixerState& state, int64_t places, Device device);
// As many as were asked for; 0: nobody asked.
int64_t requested_places(const MixerState& state);

// For mixers: a state with the places that were asked for. A step then keeps as many tokens as
// there are places. Throws Error unless the `tokens` that follow the `read` ones of the text find
// room.
MixerState with_requested_places(const MixerState& state, int64_t read, int64_t tokens);
// Passes a request on to the state after a step.
void keep_request(const MixerState& before, MixerState& after);

}  // namespace linnet
