// Checks of values: the literal definition, precision, limiting cases.
#include <algorithm>
#include <cmath>

#include "attention/conformance/internal.h"
#include "core/yaml.h"

namespace linnet::conformance {
namespace {

// One token, off and on the kernels' chunks, longer than every window of the parameter sets.
constexpr int64_t kLengths[] = {1, 37, 64, 131};

std::string precision(const Setup& setup, DType dtype) {
  Batch batch = setup.batch(2, 70, 3);
  add_masks(setup, batch);
  const bool is_bf16 = dtype == DType::bf16;
  const Subject in_double = setup.subject_in_double();
  const auto weights = in_double.weights();
  // Rounding may change a choice: all precisions use the choices of double.
  const CallDraws used = in_double.run(batch).used;
  const Expected exact = expected_by_definition<double>(setup, weights, batch, used);
  const Expected plain = expected_by_definition<float>(setup, weights, batch, used, is_bf16);
  const Result found = setup.subject(dtype).run(batch, {}, false, given(used));
  require(found.y.dtype() == dtype, "expected outputs in ", name_of(dtype), ", got ",
          name_of(found.y.dtype()));
  const double ulp = (is_bf16 ? 0x1p-8 : 0x1p-23) * largest_magnitude(exact.y);
  const double reference_error = largest_difference(plain.y, exact.y);
  const double error = largest_difference(found.y, exact.y);
  require(error <= 3 * reference_error + ulp, "error ", error, " exceeds 3 x that of plain ",
          name_of(dtype), " arithmetic, ", reference_error);
  compare_gradients(setup, dtype);
  return concat("error ", error, ", plain arithmetic ", reference_error);
}

}  // namespace

// Padding at the end of one row and a hole in the middle of the other.
void add_masks(const Setup& setup, Batch& batch) {
  const int64_t T = batch.length();
  if (T > 4) {
    batch.mask = full_mask(batch.rows(), T);
    pad_row(batch.mask, 0, T - T / 4, T);
    pad_row(batch.mask, batch.rows() - 1, T / 3, T / 3 + 2);
  }
  if (setup.cross()) {
    const int64_t S = batch.source.size(1);
    batch.source_mask = full_mask(batch.rows(), S);
    pad_row(batch.source_mask, 0, S - 5, S);
  }
}

// Devices compute in f32: the checks f32 and bf16 compare their results with double on the CPU.
void require_double(const Setup& setup) {
  if (!setup.on_cpu()) throw NotApplicable{"kernels have no double: checked on the CPU"};
}

std::string check_reference(const Setup& setup) {
  require_double(setup);
  double worst = 0;
  const Subject subject = setup.subject(DType::f64);
  const auto weights = subject.weights();
  for (const int64_t length : kLengths) {
    for (const bool masked : {false, true}) {
      if (masked && (length == 64 || length == 1)) continue;
      Batch batch = setup.batch(2, length, static_cast<uint64_t>(length));
      if (masked) add_masks(setup, batch);
      const Result found = subject.run(batch);
      // The definition makes its own choices.
      CallDraws draws = found.used;
      draws.choices.clear();
      const Expected expected = expected_by_definition<double>(setup, weights, batch, draws);
      const std::string what = concat("T = ", length, masked ? ", masked" : "");
      if (found.context.defined()) {
        worst = std::max(worst, require_close(found.context, expected.context, 1e-10,
                                              what + ", before the output projection"));
      }
      worst = std::max(worst, require_close(found.y, expected.y, 1e-10, what));
    }
  }
  return concat("largest difference ", worst);
}

std::string check_f32(const Setup& setup) {
  return precision(setup, DType::f32);
}
std::string check_bf16(const Setup& setup) {
  return precision(setup, DType::bf16);
}

std::string check_limits(const Setup& setup) {
  require_double(setup);
  std::string done;
  for (const LimitingCase& limit : setup.mechanism.limits) {
    if (std::count(limit.forms.begin(), limit.forms.end(), setup.form) == 0) continue;
    Setup at = setup;
    at.parameters = parse_yaml(limit.parameters, "limiting case");
    at.options = check_options(setup.form, 8);
    Subject subject = at.subject(DType::f64);
    auto weights = subject.weights();
    for (auto& [name, values] : weights) {
      if (limit.adjust) limit.adjust(name, values);
    }
    subject.set_weights(weights);
    const Batch batch = at.batch(2, 50, 21);
    const Expected expected = expected_in_double(at, weights, batch, limit.expected);
    const Result found = subject.run(batch);
    require_close(found.context, expected.context, 1e-10, limit.statement);
    done += concat(done.empty() ? "" : "; ", limit.statement);
  }
  if (done.empty()) throw NotApplicable{"no limiting case is stated for this form"};
  return done;
}

}  // namespace linnet::conformance
