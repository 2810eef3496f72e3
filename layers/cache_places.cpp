#include "layers/cache_places.h"

#include "autograd/layout.h"
#include "core/error.h"

namespace linnet {
namespace {

// Its shape [0,places] is the request: a captured step reads nothing to know it.
constexpr const char* kRequest = "places";

}  // namespace

void request_places(MixerState& state, int64_t places, Device device) {
  state[kRequest] = Variable(Tensor::zeros({0, places}, DType::u8, device));
}

int64_t requested_places(const MixerState& state) {
  const auto found = state.find(kRequest);
  return found == state.end() ? 0 : found->second.size(1);
}

MixerState with_requested_places(const MixerState& state, int64_t read, int64_t tokens) {
  const int64_t places = requested_places(state), held = state.at("k").size(1);
  require(read + tokens <= places && held <= places, "a cache of ", places, " places has no room ",
          "for ", tokens, " tokens behind ", read, "; request more places");
  MixerState filled = state;
  if (held == places) return filled;
  for (const char* name : {"k", "v", "valid"}) {
    Variable& entry = filled.at(name);
    const Tensor free =
        Tensor::zeros(entry.shape().with(1, places - held), entry.dtype(), entry.value().device());
    entry = Variable(concatenate(std::vector<Tensor>{free, entry.value()}, 1));
  }
  return filled;
}

void keep_request(const MixerState& before, MixerState& after) {
  if (const auto found = before.find(kRequest); found != before.end()) {
    after[kRequest] = found->second;
  }
}

}  // namespace linnet
