#include "attention/common/placed_step.h"

#include "attention/common/mixer_support.h"
#include "layers/cache_places.h"

namespace linnet {

PlacedStep::PlacedStep(const char* mechanism, const Variable& x, const MixerContext& context,
                       const MixerState& state)
    : context_(context),
      state_(state),
      places_(requested_places(state)),
      rows_(x.size(0)),
      device_(x.value().device()) {
  const int64_t read = context.place.time_offset;
  require(x.size(1) == 1 && context.positions.defined() && read < places_, mechanism,
          ": a state with ", places_, " places takes one token after the other, got ", x.size(1),
          " behind ", read, "; request more places");
  require(context.positions.dtype() == DType::i32 && context.positions.device() == device_,
          mechanism, ": positions of a step must be i32 on the device of x");
}

bool PlacedStep::ends_chunk(int64_t length) const {
  return (context_.place.time_offset + 1) % length == 0;
}

Variable PlacedStep::held(const char* name, const Variable& x, int64_t n, DType dtype) const {
  return as_dtype(in_places(state_, name, n, x.shape(), dtype, device_), dtype);
}

Tensor PlacedStep::held_mask(const char* name, int64_t n) const {
  return in_places(state_, name, n, {rows_, 1}, DType::i64, device_).value().to(DType::u8);
}

Variable PlacedStep::with_past(const char* name, const Variable& x, int64_t n) const {
  return carry_tokens(held(name, x, n, x.dtype()), x, -1);
}

Tensor PlacedStep::mask_with_past(const char* name, int64_t n) const {
  return carry_mask(held_mask(name, n), context_.key_mask, {}, rows_, n, 1, -1, device_);
}

KeyLists PlacedStep::at_position(KeyLists lists) const {
  lists.position = static_cast<const int32_t*>(context_.positions.raw());
  return lists;
}

Tensor PlacedStep::last(const Tensor& mask, int64_t n) const {
  return carry_mask({}, mask, {}, rows_, 0, mask.size(1), n, device_);
}

Tensor PlacedStep::pushed(const Tensor& mask, const Tensor& made, int64_t count) const {
  const int64_t n = mask.size(1);
  return carry_mask(mask, made, {}, rows_, n, count, n, device_);
}

void PlacedStep::finish(MixerState& after, int64_t chunk) const {
  keep_request(state_, after);
  set_step_period(after, chunk, device_);
}

}  // namespace linnet
