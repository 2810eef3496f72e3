#include "layers/parameters.h"

#include <cmath>

#include "core/suggest.h"
#include "layers/rates.h"

namespace linnet {
namespace {

constexpr int64_t kAlignment = 16;
// Of all parameters: far beyond any memory, and sums of ends stay within 64 bits.
constexpr int64_t kMaxElements = int64_t{1} << 60;

template <typename F>
void fill(const Tensor& values, const F& f) {
  dispatch_floating(values.dtype(), [&](auto zero) {
    using T = decltype(zero);
    T* to = values.data<T>();
    for (int64_t i = 0; i < values.elements(); ++i) {
      to[i] = static_cast<T>(static_cast<Compute<T>>(f(static_cast<uint64_t>(i))));
    }
  });
}

}  // namespace

bool is_rate(std::string_view name) {
  return name.starts_with("rates.") || name.find(".rates.") != std::string_view::npos;
}

Initializer init_constant(double value) {
  return [value](const Tensor& values, const RandomKey&) { values.fill(value); };
}

Initializer init_normal(double deviation) {
  return [deviation](const Tensor& values, const RandomKey& key) {
    fill(values, [&](uint64_t i) { return deviation * key.normal(i); });
  };
}

Initializer init_uniform(double bound) {
  return [bound](const Tensor& values, const RandomKey& key) {
    fill(values, [&](uint64_t i) { return bound * (2 * key.uniform(i) - 1); });
  };
}

Initializer init_xavier(double gain, int64_t fan_in, int64_t fan_out) {
  return init_uniform(gain * std::sqrt(6.0 / static_cast<double>(fan_in + fan_out)));
}

void ParameterSet::claim(const std::string& name) const {
  require(!weights_.defined(), "parameter ", name, " declared after materialize()");
  bool taken = index_.contains(name);
  for (const Buffer& buffer : buffers_) taken = taken || buffer.name == name;
  require(!taken, "parameter ", name, " is declared twice");
}

Variable ParameterSet::declare_buffer(const std::string& name, const Shape& shape,
                                      Initializer initializer, BufferKind kind) {
  claim(name);
  buffers_.push_back({name, shape, Variable(Tensor::zeros({0})), std::move(initializer), kind});
  return buffers_.back().variable;
}

Variable ParameterSet::declare(const std::string& name, const Shape& shape,
                               Initializer initializer) {
  claim(name);
  index_.emplace(name, entries_.size());
  const int64_t begin =
      entries_.empty() ? 0 : (entries_.back().end + kAlignment - 1) / kAlignment * kAlignment;
  require_usage(shape.elements() <= kMaxElements - begin, Cause{ErrorCode::out_of_range, "model"},
                "parameter ", name, " ", shape,
                " makes the model larger than any memory; make it smaller");
  entries_.push_back({name, shape, begin, begin + shape.elements(),
                      Variable(Tensor::zeros({0}), true), std::move(initializer)});
  return requested_.emplace_back(entries_.back().variable);
}

Variable ParameterSet::declare_shared(const std::string& name, const Shape& shape,
                                      Initializer initializer) {
  const auto found = index_.find(name);
  if (found == index_.end()) return declare(name, shape, std::move(initializer));
  const Entry& entry = entries_[found->second];
  require(entry.shape == shape, "parameter ", name, " is tied, but has shape ", entry.shape,
          " in one place and ", shape, " in another");
  return requested_.emplace_back(entry.variable);
}

void ParameterSet::materialize(uint64_t seed, DType master, DType compute, Device device) {
  require(!weights_.defined(), "materialize() was called twice");
  require(master == compute || (master == DType::f32 && compute == DType::bf16),
          "parameters: unsupported precision ", name_of(master), " with ", name_of(compute));
  const int64_t size =
      entries_.empty() ? 0 : (entries_.back().end + kAlignment - 1) / kAlignment * kAlignment;
  const MemoryUser user("weights and gradients");
  const Tensor drawn = Tensor::zeros({size}, master);
  const RandomKey key = RandomKey{seed, 0, 0}.at("init");
  for (Buffer& buffer : buffers_) {
    const Tensor values = Tensor::zeros(buffer.shape, master);
    buffer.initializer(values, key.at(buffer.name));
    buffer.variable.set_value(values.to(device));
  }
  for (const Entry& entry : entries_) {
    entry.initializer(drawn.slice(entry.begin, entry.shape), key.at(entry.name));
  }
  weights_ = drawn.to(device);
  gradients_ = Tensor::zeros({size}, master, device);
  values_ = compute == master ? weights_ : Tensor::zeros({size}, compute, device);
  for (Entry& entry : entries_) {
    const Tensor& held = is_rate(entry.name) ? weights_ : values_;
    entry.variable.set_value(held.slice(entry.begin, entry.shape));
    entry.variable.set_grad(gradients_.slice(entry.begin, entry.shape));
  }
  refresh_values();
}

const ParameterSet::Entry& ParameterSet::find(const std::string& name) const {
  const auto found = index_.find(name);
  if (found != index_.end()) return entries_[found->second];
  std::vector<std::string> names;
  for (const Entry& entry : entries_) names.push_back(entry.name);
  throw Error(concat("there is no parameter '", name, "': ", suggestion(name, names)));
}

std::map<std::string, Tensor> ParameterSet::tensors() const {
  std::map<std::string, Tensor> result;
  for (const Entry& entry : entries_) result[entry.name] = weight_of(entry);
  for (const Buffer& buffer : buffers_) result[buffer.name] = buffer.variable.value();
  return result;
}

int64_t ParameterSet::count() const {
  int64_t total = 0;
  for (const Entry& entry : entries_) total += entry.shape.elements();
  return total;
}

void ParameterSet::refresh_values() const {
  if (!values_.shares_storage(weights_)) values_.copy_from(weights_);
}

RunningBuffers::RunningBuffers(const ParameterSet& parameters) {
  for (const ParameterSet::Buffer& buffer : parameters.buffers()) {
    if (buffer.kind != BufferKind::running) continue;
    const Tensor& value = buffer.variable.value();
    copies_.emplace_back(value, value.clone());
  }
}

void RunningBuffers::restore() const {
  for (const auto& [value, before] : copies_) value.copy_from(before);
}

}  // namespace linnet
