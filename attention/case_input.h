// The contents of a CASE.h5 file, checked and bound to a mixer.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "attention/mechanism.h"
#include "core/hdf5.h"

namespace linnet::case_detail {

struct Case {
  std::string label, mechanism;
  MixerTraits traits;  // with this config
  Form form = Form::causal;
  bool core = false;  // q, k, v are given; no projections
  int64_t rows = 0, length = 0;
  Tensor x, source, q, k, v;  // in the dtype of the run
  MixerContext context;
  std::map<std::string, Tensor> state;
  Tensor cotangent;
  std::map<std::string, Tensor> cotangent_state;
  CallDraws given;  // draws and choices of the call; those of buffers are in the buffers

  std::unique_ptr<ParameterSet> parameters;
  std::unique_ptr<TokenMixer> mixer;
  const AttentionMixer* attention = nullptr;  // the same mixer, where core needs it
  size_t own_prefix = 0, tied_prefix = 0;     // lengths of the scopes' names

  bool cross() const { return form == Form::cross; }
  // Whether a state can be passed on from call to call: a decode state, or the encoded source.
  bool carries_state() const { return cross() || (form == Form::causal && traits.decode_state); }
  // Why calls of some tokens each would not compute what one call of all tokens does; "": they do.
  std::string single_call_reason() const {
    if (!carries_state()) return "it has no state to carry on";
    const auto exempt = traits.exempt.find("chunks");
    return exempt == traits.exempt.end() ? "" : exempt->second;
  }
  // A parameter's name without its scope.
  std::string own_name(const std::string& name) const;
};

bool is_projection(const std::string& own_name);

// Throws UsageError for given draws and choices that the calls did not request, and for given
// state tensors that `state`, which they left, does not have.
void refuse_unused(const Case& c, const CallDraws& used, const MixerState& state);

// Throws UsageError for anything that does not fit.
Case read_case(const Hdf5Reader& reader, const std::string& label, DType dtype, Device device);

}  // namespace linnet::case_detail
