// Checks of values: the literal definition, precision, finite differences, limiting cases.
#include <algorithm>
#include <cmath>

#include "attention/conformance/internal.h"
#include "core/yaml.h"

namespace linnet::conformance {
namespace {

// One token, off and on the kernels' chunks, longer than every window of the parameter sets.
constexpr int64_t kLengths[] = {1, 37, 64, 131};

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

// All gradients of <y, w> + <float states, w'> for fixed random w, by name.
struct Differentiated {
  double objective = 0;
  std::map<std::string, Tensor> gradients;
};

Tensor cotangent(const Tensor& like, const std::string& name) {
  const Tensor result = Tensor::empty(like.shape(), DType::f64);
  const RandomKey key = RandomKey{11, 0, 0}.at(name);
  for (int64_t i = 0; i < result.elements(); ++i) {
    result.data<double>()[i] = key.normal(static_cast<uint64_t>(i));
  }
  return result;
}

double inner(const Tensor& a, const Tensor& b) {
  const std::vector<double> left = a.to_vector<double>(), right = b.to_vector<double>();
  double total = 0;
  for (size_t i = 0; i < left.size(); ++i) total += left[i] * right[i];
  return total;
}

bool carries_gradient(const Variable& state) {
  return is_floating(state.dtype());
}

Differentiated differentiate(Subject& subject, const Batch& batch, const MixerState& state,
                             bool with_backward, CallDraws& draws) {
  const NoGrad off(!with_backward);
  const Variable x = subject.input(batch.x, with_backward);
  const Variable source = subject.input(batch.source, with_backward);
  MixerState leaves;
  for (const auto& [name, value] : state) {
    leaves[name] = carries_gradient(value) ? Variable(value.value().clone(), with_backward) : value;
  }
  const MixerResult result = subject.forward(x, source, batch, leaves, true, &draws);
  std::vector<Variable> outputs{result.y};
  std::vector<Tensor> seeds{cotangent(result.y.value(), "y")};
  for (const auto& [name, value] : result.state) {
    if (!carries_gradient(value)) continue;
    outputs.push_back(value);
    seeds.push_back(cotangent(value.value(), name));
  }
  Differentiated out;
  for (size_t i = 0; i < outputs.size(); ++i) {
    out.objective += inner(outputs[i].value(), seeds[i]);
    seeds[i] = seeds[i].to(outputs[i].dtype()).to(outputs[i].value().device());
  }
  if (!with_backward) return out;
  subject.parameters().gradients().set_zero();
  backward(outputs, seeds);
  const auto add = [&](const std::string& name, const Variable& leaf) {
    if (!leaf.defined()) return;
    out.gradients[name] = leaf.grad().defined() ? leaf.grad().to(Device{}).clone()
                                                : Tensor::zeros(leaf.shape(), leaf.dtype());
  };
  add("x", x);
  // An encoded source does not depend on `source` any more.
  if (state.empty()) add("source", source);
  for (const auto& [name, leaf] : leaves) {
    if (carries_gradient(leaf)) add("state." + name, leaf);
  }
  for (const ParameterSet::Entry& entry : subject.parameters().entries()) {
    add(Subject::own_name(entry.name), entry.variable);
  }
  return out;
}

// Compares analytic and numeric derivatives along one random direction of each tensor. Returns the
// number of tensors.
int compare_directions(Subject& subject, const Batch& batch, const MixerState& state) {
  constexpr double kStep = 1e-6;
  CallDraws used;
  const Differentiated exact = differentiate(subject, batch, state, true, used);
  // Choices are constants in backward.
  CallDraws fixed = given(used);
  const auto weights = subject.weights();
  for (const auto& exact_gradient : exact.gradients) {
    const std::string& name = exact_gradient.first;
    const auto& gradient = exact_gradient.second;
    const Tensor direction = cotangent(gradient, "direction." + name);
    const auto objective_at = [&](double step) {
      const auto moved = [&](const Tensor& t) {
        const Tensor copy = t.clone();
        for (int64_t i = 0; i < copy.elements(); ++i) {
          copy.data<double>()[i] += step * direction.data<double>()[i];
        }
        return copy;
      };
      Batch at = batch;
      MixerState from = state;
      if (name == "x") {
        at.x = moved(batch.x);
      } else if (name == "source") {
        at.source = moved(batch.source);
      } else if (name.starts_with("state.")) {
        Variable& entry = from.at(name.substr(6));
        entry = Variable(moved(entry.value()));
      } else {
        auto changed = weights;
        std::vector<double>& values = changed.at(name);
        for (size_t i = 0; i < values.size(); ++i) {
          values[i] += step * direction.data<double>()[i];
        }
        subject.set_weights(changed);
      }
      const double result = differentiate(subject, at, from, false, fixed).objective;
      subject.set_weights(weights);
      return result;
    };
    const double numeric = (objective_at(kStep) - objective_at(-kStep)) / (2 * kStep);
    const double analytic = inner(gradient, direction);
    const double allowed = 1e-5 + 1e-5 * std::abs(numeric);
    require(std::abs(analytic - numeric) <= allowed, "derivative with respect to ", name,
            ": analytic ", analytic, ", numeric ", numeric);
  }
  return static_cast<int>(exact.gradients.size());
}

// The root mean square norm of the gradients of one shape.
double ordinary_norm(const std::map<std::string, Tensor>& gradients, const Shape& shape) {
  double squares = 0, count = 0;
  for (const auto& entry : gradients) {
    if (!(entry.second.shape() == shape)) continue;
    squares += inner(entry.second, entry.second);
    ++count;
  }
  return std::sqrt(squares / count);
}

// Gradients in the subject's precision against those in double.
void compare_gradients(const Setup& setup, DType dtype, double allowed) {
  Batch batch = setup.batch(2, 37, 5);
  add_masks(setup, batch);
  Subject exact = setup.subject_in_double(), rounded = setup.subject(dtype);
  CallDraws used;
  const auto expected = differentiate(exact, batch, {}, true, used).gradients;
  CallDraws same = given(used);
  const auto found = differentiate(rounded, batch, {}, true, same).gradients;
  for (const auto& [name, gradient] : expected) {
    const Tensor difference = found.at(name).to(DType::f64).clone();
    for (int64_t i = 0; i < difference.elements(); ++i) {
      difference.data<double>()[i] -= gradient.data<double>()[i];
    }
    // Relative to the gradient, but never below 1. A gradient that is zero in exact arithmetic (of
    // k.bias under a softmax) is a sum of rounded terms as large as those of gradients of its
    // shape.
    const double own = std::sqrt(inner(gradient, gradient));
    const double ordinary = ordinary_norm(expected, gradient.shape());
    const double norm = std::max(own > 1e-9 * ordinary ? own : ordinary, 1.0);
    const double error = std::sqrt(inner(difference, difference)) / norm;
    require(error <= allowed, "gradient of ", name, " in ", name_of(dtype), ": relative error ",
            error, ", allowed ", allowed);
  }
}

std::string precision(const Setup& setup, DType dtype, double gradient_error) {
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
  compare_gradients(setup, dtype, gradient_error);
  return concat("error ", error, ", plain arithmetic ", reference_error);
}

// Devices compute in f32: the checks f32 and bf16 compare their results with double on the CPU.
void require_double(const Setup& setup) {
  if (!setup.on_cpu()) throw NotApplicable{"kernels have no double: checked on the CPU"};
}

}  // namespace

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
  return precision(setup, DType::f32, 1e-4);
}
std::string check_bf16(const Setup& setup) {
  return precision(setup, DType::bf16, 0.1);
}

std::string check_gradients(const Setup& setup) {
  require_double(setup);
  Setup with_dropout = setup;
  with_dropout.options.dropout = 0.3;
  int tensors = 0;
  for (const Setup* at : {&setup, &std::as_const(with_dropout)}) {
    Subject subject = at->subject(DType::f64);
    Batch batch = at->batch(2, 37, 9);
    add_masks(*at, batch);
    tensors += compare_directions(subject, batch, {});
    if (at == &setup) {
      const MixerState state = subject.run(tokens_of(batch, 0, 20)).state;
      if (!state.empty()) {
        // Queries of an encoded source may start anywhere.
        const int64_t from = setup.cross() ? 0 : 20;
        tensors += compare_directions(subject, tokens_of(batch, from, from + 17), state);
      }
    }
  }
  return concat(tensors, " tensors");
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
