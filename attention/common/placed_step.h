// A step of one token from a state with places (layers/cache_places.h), in mechanisms of windows
// and chunks: the same work at every position, so that it can be captured.
#pragma once

#include "attention/common/joint/key_lists.h"
#include "layers/token_mixer.h"

namespace linnet {

class PlacedStep {
 public:
  // Throws Error unless x [B,T,...] is one token, at a position on its device that has a place.
  PlacedStep(const char* mechanism, const Variable& x, const MixerContext& context,
             const MixerState& state);
  int64_t places() const { return places_; }
  // Whether the token is the last one of a chunk of that length.
  bool ends_chunk(int64_t length) const;

  // Entries of the state, in their last places: like x [B,1,...] in `dtype`, or masks u8 [B,n].
  Variable held(const char* name, const Variable& x, int64_t n, DType dtype) const;
  Tensor held_mask(const char* name, int64_t n) const;
  // The same with the token x behind them, n + 1 in all.
  Variable with_past(const char* name, const Variable& x, int64_t n) const;
  Tensor mask_with_past(const char* name, int64_t n) const;
  // The lists of the token, where its position says.
  KeyLists at_position(KeyLists lists) const;
  // The last n of a mask.
  Tensor last(const Tensor& mask, int64_t n) const;
  // The mask of summaries, of which `made` (undefined: valid ones) take the last places.
  Tensor pushed(const Tensor& mask, const Tensor& made, int64_t count) const;
  // Passes the request on, and says how long chunks are.
  void finish(MixerState& after, int64_t chunk) const;

 private:
  const MixerContext& context_;
  const MixerState& state_;
  int64_t places_, rows_;
  Device device_;
};

}  // namespace linnet
