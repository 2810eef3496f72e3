// Checks of independence and repeatability: padding, rows, heads, bits, saving.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "attention/conformance/internal.h"
#include "core/hdf5.h"

namespace linnet::conformance {
namespace {

// Longer than the groups of every mechanism's defaults.
constexpr int64_t kLength = 70;

// Overwrites masked tokens of x [B,T,E].
void fill_masked(const Tensor& x, const Tensor& mask, double value) {
  const int64_t width = x.size(2);
  for (int64_t i = 0; i < mask.elements(); ++i) {
    if (mask.data<uint8_t>()[i] != 0) continue;
    std::fill_n(x.data<double>() + i * width, width, value);
  }
}

// Valid tokens of y only, masked ones zero.
Tensor valid_part(const Tensor& y, const Tensor& mask) {
  const Tensor copy = y.to(DType::f64).clone();
  fill_masked(copy, mask, 0);
  return copy;
}

struct Trained {
  Tensor y;
  std::map<std::string, Tensor> gradients;
};

// A forward and backward pass with dropout on; the cotangent is 1 at valid tokens, 0 at others.
Trained train_once(Subject& subject, const Batch& batch) {
  const MixerResult result =
      subject.forward(subject.input(batch.x), subject.input(batch.source), batch, {}, true);
  const Tensor seed = Tensor::full(result.y.shape(), 1, DType::f64);
  if (batch.mask.defined()) fill_masked(seed, batch.mask, 0);
  subject.parameters().gradients().set_zero();
  backward({result.y}, {seed.to(result.y.dtype()).to(result.y.value().device())});
  Trained out{result.y.value().to(Device{}), {}};
  for (const ParameterSet::Entry& entry : subject.parameters().entries()) {
    out.gradients[entry.name] = entry.variable.grad().to(Device{}).clone();
  }
  return out;
}

void require_same(const Trained& a, const Trained& b, const std::string& what) {
  require_same_bits(a.y, b.y, what);
  for (const auto& [name, gradient] : b.gradients) {
    require_same_bits(a.gradients.at(name), gradient, what + ", gradient of " + name);
  }
}

// In check_padding's batch row 2 has no valid token, and in the cross form row 1 no valid source.
void require_empty_rows(const Setup& setup, const Result& found, const char* contents) {
  const Tensor& read = found.context.defined() ? found.context : found.y;
  const auto largest = [&](int64_t row) { return largest_magnitude(read.rows(row, row + 1)); };
  require(!setup.cross() || largest(1) == 0, contents,
          ": a source without valid tokens does not give 0 but up to ", largest(1));
  require(largest(2) == 0, contents, ": a row without valid tokens does not give 0 but up to ",
          largest(2));
}

}  // namespace

std::string check_padding(const Setup& setup) {
  Subject subject = setup.subject(DType::f32);
  const int64_t length = setup.length();
  Batch batch = setup.batch(3, length, 8);
  batch.mask = full_mask(3, length);
  pad_row(batch.mask, 0, length - 20, length);
  pad_row(batch.mask, 1, 0, 5);
  pad_row(batch.mask, 1, 30, 33);
  pad_row(batch.mask, 2, 0, length);
  if (setup.cross()) {
    batch.source_mask = full_mask(3, Setup::kSourceLength);
    pad_row(batch.source_mask, 0, 15, Setup::kSourceLength);
    pad_row(batch.source_mask, 1, 0, Setup::kSourceLength);
  }
  const auto with = [&](double value) {
    Batch filled = batch;
    filled.x = batch.x.clone();
    fill_masked(filled.x, batch.mask, value);
    if (setup.cross()) {
      filled.source = batch.source.clone();
      fill_masked(filled.source, batch.source_mask, value);
    }
    return filled;
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Batch zeros = with(0), finite = with(30), nans = with(nan);
  const Result expected = subject.run(zeros);
  const Tensor valid = valid_part(expected.y, batch.mask);
  require(std::isfinite(largest_magnitude(valid)), "outputs of valid tokens are not finite");
  require_empty_rows(setup, expected, "zeros in padded positions");
  const Batch next = next_batch(batch, setup.form, 9, length, 15);
  const Tensor continued = expected.state.empty() ? Tensor() : subject.run(next, expected.state).y;
  for (const Batch* other : {&finite, &nans}) {
    // On a device, which is slow to emulate, finite contents are left to training below.
    if (setup.brief() && other == &finite) continue;
    const char* what = other == &nans ? "NaN in padded positions" : "contents of padded positions";
    const Result found = subject.run(*other);
    // A gated unit multiplies by the token's own gate, so that a NaN of padding may appear at the
    // padded token.
    if (other != &nans) require_empty_rows(setup, found, what);
    require_same_bits(valid_part(found.y, batch.mask), valid, what);
    if (found.state.empty()) continue;
    require_same_bits(subject.run(next, found.state).y, continued,
                      concat(what, ", seen through the state"));
  }
  require_same(train_once(subject, finite), train_once(subject, zeros),
               "training, contents of padded positions");
  return "bit-equal";
}

std::string check_rows(const Setup& setup) {
  const Subject subject = setup.subject(DType::f32);
  const Batch batch = setup.batch(3, kLength, 16);
  const Tensor before = subject.run(batch).y;
  Batch changed = batch;
  changed.x = batch.x.clone();
  changed.x.rows(1, 2).fill(2.5);
  if (setup.cross()) {
    changed.source = batch.source.clone();
    changed.source.rows(1, 2).fill(-1.5);
  }
  const Tensor after = subject.run(changed).y;
  for (const int64_t row : {0, 2}) {
    require_same_bits(after.rows(row, row + 1), before.rows(row, row + 1),
                      concat("row ", row, " sees row 1"));
  }
  require(!same_bits(after.rows(1, 2), before.rows(1, 2)), "row 1 ignores its own contents");
  // A row alone gives the same result, up to the rounding of products of another shape.
  const Subject exact = setup.subject(setup.widest());
  const Tensor together = exact.dtype() == subject.dtype() ? before : exact.run(batch).y;
  require_close(exact.run(slice_row(batch, 2)).y, together.rows(2, 3), setup.rounding(),
                "row 2 alone");
  return "bit-equal";
}

std::string check_heads(const Setup& setup) {
  Subject subject = setup.subject(DType::f32);
  const auto weights = subject.weights();
  std::vector<std::string> projections;
  for (const char* name : {"q.weight", "k.weight", "v.weight"}) {
    if (weights.contains(name)) projections.emplace_back(name);
  }
  if (projections.empty()) throw NotApplicable{"the mechanism has no heads of its own"};
  const Batch batch = setup.batch(2, kLength, 17);
  const Tensor before = subject.run(batch).context;
  const auto half = [](std::vector<double>& values) {
    return values.begin() + static_cast<int64_t>(values.size() / 2);
  };
  // The first head's projections change; the second one's context must not. A coupling by the
  // largest element of all heads may show only where that of the first head becomes the largest.
  bool own_changed = false, coupled = false;
  for (const auto& [offset, factor] :
       {std::pair{0.5, -2.0}, {0.0, 0.1}, {0.0, 0.5}, {0.0, 2.0}, {0.0, 8.0}}) {
    auto changed = weights;
    for (const std::string& name : projections) {
      std::vector<double>& values = changed.at(name);
      for (auto value = values.begin(); value != half(values); ++value) {
        *value = offset + factor * *value;
      }
    }
    subject.set_weights(changed);
    const Tensor after = subject.run(batch).context;
    const int64_t width = before.size(2);
    for (int64_t i = 0; i < before.elements(); ++i) {
      const bool same = std::bit_cast<uint32_t>(before.data<float>()[i]) ==
                        std::bit_cast<uint32_t>(after.data<float>()[i]);
      if (i % width >= width / 2) {
        require(same || setup.traits.couples_heads,
                "trait couples_heads: is false, but head 1 sees head 0: token ", i / width,
                ", channel ", i % width);
        coupled = coupled || !same;
      } else {
        own_changed = own_changed || !same;
      }
    }
    if (coupled) break;
  }
  require(own_changed, "head 0 ignores its own projections");
  require(coupled == setup.traits.couples_heads,
          "trait couples_heads: is true, but head 1 does not see head 0");
  return coupled ? "coupled, as the traits say" : "bit-equal";
}

std::string check_repeat(const Setup& setup) {
  Setup with_dropout = setup;
  with_dropout.options.dropout = 0.3;
  Subject first = with_dropout.subject(DType::f32), second = with_dropout.subject(DType::f32);
  const Batch batch = setup.batch(2, setup.length(), 18);
  const Trained expected = train_once(first, batch);
  require_same(train_once(first, batch), expected, "the same mixer twice");
  // A mixer's own draws are made by the host: checked on the CPU.
  if (!setup.brief()) {
    require_same(train_once(second, batch), expected, "another mixer of the same seed");
  }
  // Outside training nothing is dropped.
  require_same_bits(first.run(batch).y, setup.subject(DType::f32).run(batch).y,
                    "dropout outside training");
  // Dropout follows the example's number, not its place in the batch.
  const Subject exact = with_dropout.subject(setup.widest());
  const Tensor together =
      exact.dtype() == first.dtype() ? expected.y : exact.run(batch, {}, true).y;
  require_close(exact.run(slice_row(batch, 1), {}, true).y, together.rows(1, 2), setup.rounding(),
                "dropout of example 1 alone");
  return "bit-equal";
}

std::string check_round_trip(const Setup& setup) {
  const Subject subject = setup.subject(DType::f32, 1);
  Subject loaded = setup.subject(DType::f32, 2);
  const auto saved =
      tensors_from_hdf5(tensors_to_hdf5(subject.parameters().tensors()), "round trip");
  for (const auto& [name, tensor] : loaded.parameters().tensors()) {
    tensor.copy_from(saved.at(name));
  }
  loaded.parameters().refresh_values();
  const Batch batch = setup.batch(2, 40, 19);
  const Result expected = subject.run(batch);
  const Result found = loaded.run(batch);
  require_same_bits(found.y, expected.y, "after loading the parameters");
  if (found.state.empty()) return "parameters";
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, value] : found.state) tensors[name] = value.value();
  MixerState state;
  for (const auto& [name, tensor] : tensors_from_hdf5(tensors_to_hdf5(tensors), "state")) {
    state[name] = Variable(tensor.to(setup.device));
  }
  const Batch next = next_batch(batch, setup.form, 23, 40, 22);
  require_same_bits(loaded.run(next, state).y, subject.run(next, expected.state).y,
                    "after loading the state");
  return "parameters and state";
}

}  // namespace linnet::conformance
