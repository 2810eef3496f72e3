#include "layers/cache_places.h"

#include "autograd/layout.h"
#include "core/error.h"

namespace linnet {
namespace {

// Their shapes [0,n] say n: a captured step reads nothing to know it.
constexpr const char *kRequest = "places", *kPeriod = "period";

void say(MixerState& state, const char* name, int64_t n, Device device) {
  state[name] = Variable(Tensor::zeros({0, n}, DType::u8, device));
}

int64_t said(const MixerState& state, const char* name) {
  const auto found = state.find(name);
  return found == state.end() ? 0 : found->second.size(1);
}

// x [B,n,...] as the last of so many places.
Variable at_the_end(const Variable& x, int64_t places) {
  const int64_t held = x.size(1);
  if (held == places) return x;
  const Tensor free =
      Tensor::zeros(x.shape().with(1, places - held), x.dtype(), x.value().device());
  return Variable(concatenate(std::vector<Tensor>{free, x.value()}, 1));
}

}  // namespace

void request_places(MixerState& state, int64_t places, Device device) {
  say(state, kRequest, places, device);
}

int64_t requested_places(const MixerState& state) {
  return said(state, kRequest);
}

int64_t tokens_to_keep(const MixerState& state) {
  const int64_t places = requested_places(state);
  return places > 0 ? places : -1;
}

bool may_give_places(const MixerState& state) {
  for (const auto& [name, entry] : state) {
    if (name.ends_with("valid")) return true;
  }
  return false;
}

bool is_request(const std::string& name) {
  return name == kRequest || name == kPeriod;
}

Variable in_places(const MixerState& state, const std::string& name, int64_t places,
                   const Shape& like, DType dtype, Device device) {
  const auto found = state.find(name);
  if (found == state.end()) {
    return Variable(Tensor::zeros(like.with(1, places), dtype, device));
  }
  const int64_t held = found->second.size(1);
  require(held <= places, "a cache of ", places, " places has no room for the ", held,
          " that a state has as ", name, "; request more places");
  return at_the_end(found->second, places);
}

const MixerState& with_requested_places(const MixerState& state, int64_t read, int64_t tokens,
                                        MixerState& placed, const CacheNames& names) {
  const int64_t places = requested_places(state);
  if (places == 0) return state;
  const int64_t held = state.at(names.keys).size(1);
  require(read + tokens <= places && held <= places, "a cache of ", places, " places has no room ",
          "for ", tokens, " tokens behind ", read, "; request more places");
  if (held == places) return state;
  placed = state;
  for (const char* name : {names.keys, names.values, names.mask}) {
    Variable& entry = placed.at(name);
    entry = at_the_end(entry, places);
  }
  return placed;
}

const MixerState& with_window_places(const MixerState& state, int64_t window, MixerState& placed) {
  const auto keys = state.find("k");
  if (requested_places(state) == 0 || keys == state.end() || keys->second.size(1) >= window) {
    return state;
  }
  placed = state;
  for (const char* name : {"k", "v", "valid"}) {
    Variable& entry = placed.at(name);
    entry = at_the_end(entry, window);
  }
  return placed;
}

void keep_request(const MixerState& before, MixerState& after) {
  for (const char* name : {kRequest, kPeriod}) {
    if (const auto found = before.find(name); found != before.end()) after[name] = found->second;
  }
}

void set_step_period(MixerState& state, int64_t tokens, Device device) {
  if (step_period(state) != tokens) say(state, kPeriod, tokens, device);
}

int64_t step_period(const MixerState& state) {
  return said(state, kPeriod);
}

}  // namespace linnet
