// Places for keys and values that a text is still to bring, so that a decode state that grows with
// the text keeps its size from step to step: a captured step is then the same work for every token.
#pragma once

#include "layers/token_mixer.h"

namespace linnet {

// Asks the mixer that reads a layer's state next to keep what grows with the text (cached tokens
// [B,P,...], their mask `valid`, summaries of chunks) in as many places as so many tokens need, of
// which the text has the last ones and the others are not valid. A mixer that does so returns the
// request with its state: until the places are taken, every step of one token then leaves the same
// tensors, in the same sizes. Others return the state without it; windows of fixed lengths, which
// fill up once, may take all of their places at a request. On `device` like the rest of the state.
void request_places(MixerState& state, int64_t places, Device device);
// As many as were asked for; 0: nobody asked.
int64_t requested_places(const MixerState& state);
// The same as `keep` of carry_tokens: as many tokens as there are places, or all (-1).
int64_t tokens_to_keep(const MixerState& state);
// Whether a state has cached tokens or summaries with a mask, for which places may be asked.
bool may_give_places(const MixerState& state);
// Whether it is the name of a request, or of what follows from one, and not of a tensor.
bool is_request(const std::string& name);

// An entry [B,n,...] of a state as the last of so many places, with zeros in the others; all of
// them where the state lacks it, like [B,1,...] in `dtype`. Throws Error where n is larger.
Variable in_places(const MixerState& state, const std::string& name, int64_t places,
                   const Shape& like, DType dtype, Device device);

// The cached tokens of a state, which are its entries of these names.
struct CacheNames {
  const char* keys = "k";
  const char* values = "v";
  const char* mask = "valid";
};
// For mixers: the state itself where nobody asked for places, else one with all of them, held in
// `placed`. A step then keeps tokens_to_keep(). Throws Error unless the `tokens` that follow the
// `read` ones of the text find room.
const MixerState& with_requested_places(const MixerState& state, int64_t read, int64_t tokens,
                                        MixerState& placed, const CacheNames& names = {});
// The same for a window: all of its places at once where a request was made; the state itself where
// not, or where the window is full.
const MixerState& with_window_places(const MixerState& state, int64_t window, MixerState& placed);
// Passes a request and the period of steps on to the state after one.
void keep_request(const MixerState& before, MixerState& after);

// Says in a state that every step that reads the last one of `tokens` tokens is other work than
// those before it. A mixer does so whose summaries, of chunks of that length, are made by the host
// as place.time_offset says.
void set_step_period(MixerState& state, int64_t tokens, Device device);
// As it was said; 0: all steps are the same work.
int64_t step_period(const MixerState& state);

}  // namespace linnet
