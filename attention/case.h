// `linnet attention run`: one call of any mechanism on given tensors, for comparison with any other
// implementation.
#pragma once

#include <string>
#include <string_view>

#include "core/device.h"
#include "core/dtype.h"

namespace linnet {

enum class CaseMode : uint8_t {
  parallel,   // one call
  chunked,    // calls of `chunk` tokens that pass on the decode state
  recurrent,  // token by token
};
// Throws UsageError for anything but parallel, chunked, recurrent.
CaseMode case_mode_from_name(std::string_view name);

struct CaseOptions {
  DType dtype = DType::f32;  // f64, f32 or bf16
  CaseMode mode = CaseMode::parallel;
  int64_t chunk = 16;
  Device device;  // f64 runs on the CPU only
};

// Runs a CASE.h5 image and returns the OUT.h5 image. `label` names the file in errors.
//
// In: attributes mechanism, form, config (YAML text: the mechanism's parameters, width, heads, and
// optionally projection_bias, rotary_width: see mixer_keys.h), and optionally core, seed, step,
// training, layer, start, max_length; inputs/x, inputs/source, inputs/mask, inputs/source_mask,
// with core=1 inputs/q, k, v; positions/q, positions/k; state/NAME; params/NAME for every parameter
// (with core=1 only the mechanism's own); draws/NAME and choices/NAME instead of the mechanism's
// own draws and choices; cotangent and cotangent_state/NAME. Out: outputs/y, outputs/context,
// state/NAME, streams/NAME (for the next layer), the draws and choices that were used and, with a
// cotangent, grads/x, source, q, k, v, grads/params/NAME, grads/state/NAME; f64 for dtype f64, else
// f32. Throws UsageError for a case that does not fit: unknown names, wrong shapes, missing tensors
// (all that are missing together); and for modes chunked and recurrent, and a given state, where
// the mechanism has no state to carry.
std::string run_case(std::string_view image, const std::string& label, const CaseOptions& options);

}  // namespace linnet
