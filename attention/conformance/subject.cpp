// Random batches and parameters for the conformance suite.
#include "attention/conformance/subject.h"

#include <cmath>
#include <cstring>

namespace linnet::conformance {
namespace {

constexpr const char* kTiedPrefix = "tied";

Tensor random_tensor(const Shape& shape, uint64_t seed, std::string_view site) {
  const Tensor result = Tensor::empty(shape, DType::f64);
  const RandomKey key = RandomKey{seed, 0, 0}.at(site);
  for (int64_t i = 0; i < result.elements(); ++i) {
    result.data<double>()[i] = key.normal(static_cast<uint64_t>(i));
  }
  return result;
}

}  // namespace

Batch random_batch(Form form, int64_t rows, int64_t length, int64_t source_length, int64_t width,
                   uint64_t seed) {
  Batch batch;
  batch.x = random_tensor({rows, length, width}, seed, "x");
  if (form == Form::cross) {
    batch.source = random_tensor({rows, source_length, width}, seed, "source");
  }
  batch.positions = Tensor::empty({rows, length}, DType::i32);
  for (int64_t i = 0; i < rows * length; ++i) {
    batch.positions.data<int32_t>()[i] = static_cast<int32_t>(i % length);
  }
  return batch;
}

Batch next_batch(const Batch& batch, Form form, int64_t length, int64_t before, uint64_t seed) {
  Batch next = random_batch(form, batch.rows(), length, 1, batch.x.size(2), seed);
  next.source = batch.source;
  next.source_mask = batch.source_mask;
  for (int64_t i = 0; form != Form::cross && i < next.positions.elements(); ++i) {
    next.positions.data<int32_t>()[i] += static_cast<int32_t>(before);
  }
  return next;
}

Batch tokens_of(const Batch& batch, int64_t begin, int64_t end) {
  return {tokens_of(batch.x, begin, end),
          batch.source,
          tokens_of(batch.mask, begin, end),
          batch.source_mask,
          tokens_of(batch.segments, begin, end),
          tokens_of(batch.positions, begin, end),
          batch.first_example};
}

Batch slice_row(const Batch& batch, int64_t row) {
  const auto of = [row](const Tensor& t) { return t.defined() ? t.rows(row, row + 1) : t; };
  return {of(batch.x),        of(batch.source),    of(batch.mask),           of(batch.source_mask),
          of(batch.segments), of(batch.positions), batch.first_example + row};
}

Tensor full_mask(int64_t rows, int64_t length) {
  return Tensor::full({rows, length}, 1, DType::u8);
}

void pad_row(const Tensor& mask, int64_t row, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) mask.data<uint8_t>()[row * mask.size(1) + t] = 0;
}

MixerOptions check_options(Form form, int64_t head_width) {
  MixerOptions options;
  options.heads = 2;
  options.width = 2 * head_width;
  options.form = form;
  options.max_length = 160;
  return options;
}

Subject::Subject(const Mechanism& mechanism, const ConfigNode& parameters,
                 const MixerOptions& options, DType dtype, uint64_t seed, Device device)
    : options_(options), dtype_(dtype), device_(device), set_(std::make_unique<ParameterSet>()) {
  const ParameterScope root(*set_);
  mixer_ = mechanism.make(parameters, options, {root.child(kOwnPrefix), root.child(kTiedPrefix)});
  const DType master = dtype == DType::f64 ? DType::f64 : DType::f32;
  set_->materialize(seed, master, dtype, device);
  // Initial values in double plus noise: the same values in every precision.
  const auto drawn = [seed](const auto& entry) {
    const Tensor values = Tensor::empty(entry.shape, DType::f64);
    const RandomKey key = RandomKey{seed, 0, 0}.at(entry.name);
    entry.initializer(values, key);
    const Tensor noise = random_tensor(entry.shape, seed, entry.name + ".noise");
    const double last = entry.shape.rank() > 0 ? static_cast<double>(entry.shape[-1]) : 1.0;
    const double deviation = 0.5 / std::sqrt(last);
    for (int64_t i = 0; i < values.elements(); ++i) {
      values.data<double>()[i] += deviation * noise.data<double>()[i];
    }
    return values;
  };
  for (const auto& entry : set_->entries()) set_->weight_of(entry).copy_from(drawn(entry));
  for (const auto& buffer : set_->buffers()) buffer.variable.value().copy_from(drawn(buffer));
  set_->refresh_values();
}

std::string Subject::own_name(const std::string& name) {
  const size_t dot = name.find('.');
  return dot == std::string::npos ? name : name.substr(dot + 1);
}

std::map<std::string, std::vector<double>> Subject::weights() const {
  std::map<std::string, std::vector<double>> result;
  for (const ParameterSet::Entry& entry : set_->entries()) {
    result[own_name(entry.name)] = entry.variable.value().to_vector<double>();
  }
  for (const ParameterSet::Buffer& buffer : set_->buffers()) {
    result[own_name(buffer.name)] = buffer.variable.value().to_vector<double>();
  }
  return result;
}

void Subject::set_weights(const std::map<std::string, std::vector<double>>& weights) {
  for (const auto& [name, tensor] : set_->tensors()) {
    tensor.copy_from(Tensor::from(weights.at(own_name(name)), tensor.shape()));
  }
  set_->refresh_values();
}

MixerResult Subject::forward(const Variable& x, const Variable& source, const Batch& batch,
                             const MixerState& state, bool training, CallDraws* record) const {
  MixerContext context;
  context.record = record;
  const auto here = [this](const Tensor& t) { return t.defined() ? t.to(device_) : t; };
  context.positions = here(batch.positions);
  context.key_mask = here(batch.mask);
  context.segments = here(batch.segments);
  context.source_mask = here(batch.source_mask);
  context.random = RandomKey{7, 3, 0};
  context.training = training;
  std::vector<int64_t> examples;
  for (int64_t b = 0; b < batch.rows(); ++b) examples.push_back(batch.first_example + b);
  context.place.examples = Tensor::from(examples, {batch.rows()}, device_);
  context.place.time_offset = batch.length() > 0 ? batch.positions.data<int32_t>()[0] : 0;
  return options_.form == Form::cross ? mixer_->forward_cross(x, source, context, state)
                                      : mixer_->forward(x, context, state);
}

Result Subject::run(const Batch& batch, const MixerState& state, bool training,
                    const CallDraws& given) const {
  const NoGrad off;
  CallDraws used = given;
  const MixerResult result =
      forward(input(batch.x), input(batch.source), batch, state, training, &used);
  for (auto* group : {&used.draws, &used.choices}) {
    for (auto& entry : *group) entry.second = entry.second.to(Device{});
  }
  return {result.y.value().to(Device{}),
          result.context.defined() ? result.context.value().to(Device{}) : Tensor(), result.state,
          std::move(used)};
}

CallDraws given(const CallDraws& used) {
  return {used.draws, used.choices, {}, {}};
}

Variable Subject::input(const Tensor& values, bool requires_grad) const {
  if (!values.defined()) return {};
  return Variable(values.to(dtype_).to(device_), requires_grad);
}

double largest_difference(const Tensor& a, const Tensor& b) {
  require(a.shape() == b.shape(), "expected equal shapes, got ", a.shape(), " and ", b.shape());
  const std::vector<double> left = a.to_vector<double>(), right = b.to_vector<double>();
  double largest = 0;
  for (size_t i = 0; i < left.size(); ++i) {
    const double difference = std::abs(left[i] - right[i]);
    if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, difference);
  }
  return largest;
}

double largest_magnitude(const Tensor& a) {
  double largest = 0;
  for (const double value : a.to_vector<double>()) {
    if (std::isnan(value)) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, std::abs(value));
  }
  return largest;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         (a.bytes() == 0 || std::memcmp(a.raw(), b.raw(), a.bytes()) == 0);
}

}  // namespace linnet::conformance
