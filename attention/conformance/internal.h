// The checks of the conformance suite, one function each.
#pragma once

#include <functional>

#include "attention/conformance/conformance.h"
#include "attention/conformance/subject.h"

namespace linnet::conformance {

// The mechanism, form, parameters and device under test.
struct Setup {
  const Mechanism& mechanism;
  ConfigNode parameters;
  Form form;
  MixerTraits traits;
  MixerOptions options;
  Device device;

  Subject subject(DType dtype, uint64_t seed = 1) const {
    return Subject(mechanism, parameters, options, dtype, seed, device);
  }
  // The same in double, on the CPU: the reference of a device.
  Subject subject_in_double() const {
    return Subject(mechanism, parameters, options, DType::f64, 1, {});
  }
  bool on_cpu() const { return device.kind == DeviceKind::cpu; }
  // Fewer places to split or change a sequence: emulated kernels are slow, and the CPU's run
  // already covers all of them.
  bool brief() const { return !on_cpu(); }
  // Off and past the chunks of 64 of the CPU's kernels (not slot attention's of 128), the tiles of
  // 32 of a device's.
  int64_t length() const { return brief() ? 45 : 70; }
  // The most exact arithmetic of the device.
  DType widest() const { return on_cpu() ? DType::f64 : DType::f32; }
  // Between two orders of the same sums. f32 rounds to 6e-8; over all mechanisms the emulated
  // device is off by at most 2e-6, and a GPU's products, whose order changes with the shape, may
  // add as much again.
  double rounding() const { return on_cpu() ? 1e-11 : 1e-5; }
  Batch batch(int64_t rows, int64_t length, uint64_t seed = 1) const {
    return random_batch(form, rows, length, kSourceLength, options.width, seed);
  }
  bool causal() const { return form == Form::causal; }
  bool cross() const { return form == Form::cross; }

  static constexpr int64_t kSourceLength = 21;
};

// A check returns its measurement as text. It throws Error when the mechanism fails it, and
// NotApplicable when it has no meaning here.
struct NotApplicable {
  std::string reason;
};
using Check = std::function<std::string(const Setup&)>;

// Outputs of the literal definition, as f64 tensors.
struct Expected {
  Tensor y, context;
};
// Number is the precision of the arithmetic; round_to_bf16 rounds the tensors that a mixer would
// store. `used`: the mixer's draws and, unless the definition is to make its own, choices.
template <typename Number>
Expected expected_by_definition(const Setup& setup,
                                const std::map<std::string, std::vector<double>>& weights,
                                const Batch& batch, const CallDraws& used,
                                bool round_to_bf16 = false);

// The context [T,H,V] of one sequence of the batch, by any definition, with projections applied.
Expected expected_in_double(
    const Setup& setup, const std::map<std::string, std::vector<double>>& weights,
    const Batch& batch,
    const std::function<std::vector<double>(const ReferenceSequence<double>&)>& definition);

// Padding at the end of one row and a hole in the middle of the other.
void add_masks(const Setup& setup, Batch& batch);
// Devices compute in f32: the checks f32 and bf16 compare their results with double on the CPU.
// Throws NotApplicable there.
void require_double(const Setup& setup);
// Throws Error, listing all wrong tensors, unless gradients in this precision are as near to those
// in double as the README says.
void compare_gradients(const Setup& setup, DType dtype);

// Throws Error "WHAT: differs by D, allowed A" unless |a - b| <= allowed * max(1, |b|) everywhere.
// Returns the largest difference.
double require_close(const Tensor& a, const Tensor& b, double allowed, const std::string& what);
void require_same_bits(const Tensor& a, const Tensor& b, const std::string& what);

// Values.
std::string check_reference(const Setup& setup);
std::string check_f32(const Setup& setup);
std::string check_bf16(const Setup& setup);
std::string check_gradients(const Setup& setup);
std::string check_limits(const Setup& setup);
// Traits that are false without violating another check.
std::string check_traits(const Setup& setup);
// Order in time.
std::string check_causality(const Setup& setup);
std::string check_chunks(const Setup& setup);
std::string check_empty(const Setup& setup);
std::string check_packing(const Setup& setup);
std::string check_state_size(const Setup& setup);
// Operations and bytes.
std::string check_cost(const Setup& setup);
// Independence and repeatability.
std::string check_padding(const Setup& setup);
std::string check_rows(const Setup& setup);
std::string check_heads(const Setup& setup);
std::string check_repeat(const Setup& setup);
std::string check_round_trip(const Setup& setup);

}  // namespace linnet::conformance
