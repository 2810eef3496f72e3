// Checks of gradients: finite differences, and those of lower precision against double.
#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "attention/conformance/internal.h"
#include "layers/rates.h"

namespace linnet::conformance {
namespace {

// Relative errors of gradients in f32, and those in bf16 that no rounding excuses.
constexpr double kSingle = 1e-4, kMaxError = 0.1;
// That of one rounding to bf16.
constexpr double kUlp = 0x1p-8;
// A mixer in bf16 rounds inputs, projections, features or gates, and what enters the output
// projection, and their gradients: four independent roundings err twice as much as one.
constexpr double kRoundings = 2;
constexpr int kGrids = 8;
// Kernels on tensor cores also round weights, features or states inside, and their gradients: twice
// as many roundings err sqrt(2) times as much.
constexpr double kDeviceRoundings = std::numbers::sqrt2;

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

// Adds to every value the error of rounding it to bf16, times kRoundings. Other factors give other
// grids that are as fine.
void round_coarsely(std::vector<double>& values, double factor) {
  for (double& x : values) {
    const auto scaled = static_cast<float>(x * factor);
    x += kRoundings * (static_cast<double>(static_cast<float>(bf16(scaled))) / factor - x);
  }
}
Tensor coarse(const Tensor& x, double factor) {
  if (!x.defined()) return x;
  std::vector<double> values = x.to_vector<double>();
  round_coarsely(values, factor);
  return Tensor::from(values, x.shape());
}

bool carries_gradient(const Variable& state) {
  return is_floating(state.dtype());
}

Differentiated differentiate(Subject& subject, const Batch& batch, const MixerState& state,
                             bool with_backward, CallDraws& draws, double factor = 0) {
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
    if (i == 0 && factor > 0) seeds[i] = coarse(seeds[i], factor);
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

// Throws Error that lists all wrong tensors, where there are any.
void require_none(const std::vector<std::string>& wrong, const std::string& what) {
  std::string list;
  for (const std::string& each : wrong) list += concat(list.empty() ? "" : "; ", each);
  require(wrong.empty(), what, list);
}

// Compares analytic and numeric derivatives along one random direction of each tensor; adds a line
// to `wrong` for each that differs. Returns the number of tensors.
int compare_directions(Subject& subject, const Batch& batch, const MixerState& state,
                       const std::string& where, std::vector<std::string>& wrong) {
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
    const double analytic = inner(gradient, direction);
    double numeric = 0;
    // Rounding may hide a slope at the small step (flash_quad's objective of 12,433 was off by
    // 1.3e-5), a kink or a third derivative at the large one; a wrong gradient differs at both.
    const bool agrees = std::ranges::any_of(std::array{kStep, 10 * kStep}, [&](double step) {
      numeric = (objective_at(step) - objective_at(-step)) / (2 * step);
      return std::abs(analytic - numeric) <= 1e-5 + 1e-5 * std::abs(numeric);
    });
    if (!agrees) {
      wrong.push_back(concat(name, where, ": analytic ", analytic, ", numeric ", numeric));
    }
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

// The norms of gradients in double, minus `exact`, by name.
std::map<std::string, double> errors_of(const std::map<std::string, Tensor>& gradients,
                                        const std::map<std::string, Tensor>& exact) {
  std::map<std::string, double> errors;
  for (const auto& [name, expected] : exact) {
    const Tensor difference = gradients.at(name).to(DType::f64).clone();
    for (int64_t i = 0; i < difference.elements(); ++i) {
      difference.data<double>()[i] -= expected.data<double>()[i];
    }
    errors[name] = std::sqrt(inner(difference, difference));
  }
  return errors;
}

// The errors of gradients in double, by name, where inputs, parameters and the gradient of y are
// rounded: the largest on several grids, because one may happen to leave alone what matters (a
// feature near 0, a small denominator).
std::map<std::string, double> errors_of_rounding(const Setup& setup, const Batch& batch,
                                                 const CallDraws& used,
                                                 const std::map<std::string, Tensor>& exact) {
  std::map<std::string, double> largest;
  Subject subject = setup.subject_in_double();
  const auto weights = subject.weights();
  for (int grid = 0; grid < kGrids; ++grid) {
    const double factor = std::exp2(static_cast<double>(grid) / kGrids);
    auto rounded = weights;
    for (auto& [name, values] : rounded) {
      if (!is_rate(name)) round_coarsely(values, factor);
    }
    subject.set_weights(rounded);
    Batch at = batch;
    at.x = coarse(batch.x, factor);
    at.source = coarse(batch.source, factor);
    CallDraws same = given(used);
    const auto errors =
        errors_of(differentiate(subject, at, {}, true, same, factor).gradients, exact);
    for (const auto& [name, error] : errors) largest[name] = std::max(largest[name], error);
  }
  return largest;
}

}  // namespace

void compare_gradients(const Setup& setup, DType dtype) {
  const bool is_bf16 = dtype == DType::bf16;
  Batch batch = setup.batch(2, 37, 5);
  add_masks(setup, batch);
  Subject exact = setup.subject_in_double(), tested = setup.subject(dtype);
  CallDraws used;
  const auto expected = differentiate(exact, batch, {}, true, used).gradients;
  const auto gradients_of = [&](Subject& subject) {
    CallDraws same = given(used);
    return differentiate(subject, batch, {}, true, same).gradients;
  };
  const auto error = errors_of(gradients_of(tested), expected);
  const auto plain =
      is_bf16 ? errors_of_rounding(setup, batch, used, expected) : std::map<std::string, double>();
  const double factor = 3 * (setup.on_cpu() ? 1 : kDeviceRoundings);
  std::vector<std::string> wrong;
  for (const auto& [name, gradient] : expected) {
    // A gradient that is zero in exact arithmetic (of k.bias under a softmax) is a sum of rounded
    // terms as large as those of gradients of its shape.
    const double own = std::sqrt(inner(gradient, gradient));
    const double ordinary = ordinary_norm(expected, gradient.shape());
    const double norm = std::max(own > 1e-9 * ordinary ? own : ordinary, 1.0);
    const double allowed =
        is_bf16 ? std::min(factor * std::max(plain.at(name), kUlp * norm), kMaxError * norm)
                : kSingle * norm;
    if (error.at(name) <= allowed) continue;
    wrong.push_back(concat(name, ": error of ", error.at(name) / norm, " of its norm, allowed ",
                           allowed / norm));
  }
  require_none(wrong, concat("wrong gradients in ", name_of(dtype), ": "));
}

std::string check_gradients(const Setup& setup) {
  require_double(setup);
  Setup with_dropout = setup;
  with_dropout.options.dropout = 0.3;
  int tensors = 0;
  std::vector<std::string> wrong;
  for (const Setup* at : {&setup, &std::as_const(with_dropout)}) {
    Subject subject = at->subject(DType::f64);
    Batch batch = at->batch(2, 37, 9);
    add_masks(*at, batch);
    tensors += compare_directions(subject, batch, {}, at == &setup ? "" : " with dropout", wrong);
    if (at == &setup) {
      const MixerState state = subject.run(tokens_of(batch, 0, 20)).state;
      if (!state.empty()) {
        // Queries of an encoded source may start anywhere.
        const int64_t from = setup.cross() ? 0 : 20;
        tensors += compare_directions(subject, tokens_of(batch, from, from + 17), state,
                                      " from a state", wrong);
      }
    }
  }
  require_none(wrong, "wrong derivatives: ");
  return concat(tensors, " tensors");
}

}  // namespace linnet::conformance
