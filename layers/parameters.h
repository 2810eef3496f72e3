// Parameters by name, in flat buffers: one for the weights, one for the gradients, named views on
// top. Beside them buffers: values that no optimizer changes.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "autograd/variable.h"
#include "core/random.h"

namespace linnet {

// Fills a host tensor (f32 or f64) with initial values drawn from the key.
using Initializer = std::function<void(const Tensor& values, const RandomKey& key)>;

Initializer init_constant(double value);
Initializer init_normal(double deviation);
Initializer init_uniform(double bound);
// Uniform in +-gain * sqrt(6 / (fan_in + fan_out)) for weights [out, in] (Glorot & Bengio 2010).
Initializer init_xavier(double gain, int64_t fan_in, int64_t fan_out);

// Whether training leaves a buffer as it was drawn, or its forward passes move it (running
// statistics).
enum class BufferKind { constant, running };

// All parameters of a model. Declared by modules as they are built, then given memory at once.
class ParameterSet {
 public:
  struct Entry {
    std::string name;
    Shape shape;
    int64_t begin = 0, end = 0;  // elements of the flat buffers
    Variable variable;
    Initializer initializer;
  };

  struct Buffer {
    std::string name;
    Shape shape;
    Variable variable;
    Initializer initializer;
    BufferKind kind = BufferKind::constant;
  };

  ParameterSet() = default;
  ParameterSet(const ParameterSet&) = delete;
  ParameterSet& operator=(const ParameterSet&) = delete;

  // A parameter whose value arrives with materialize(). Throws Error when the name is taken.
  Variable declare(const std::string& name, const Shape& shape, Initializer initializer);
  // The parameter of that name if it exists with that shape, else declares it: ties across layers.
  Variable declare_shared(const std::string& name, const Shape& shape, Initializer initializer);

  // Values that no optimizer changes, in the dtype of the master weights. Checkpoints keep them.
  // The value arrives with materialize(). Throws Error when the name is taken.
  Variable declare_buffer(const std::string& name, const Shape& shape, Initializer initializer,
                          BufferKind kind = BufferKind::constant);

  // Allocates the flat buffers (dtype f32, or f64 for checks) and draws initial values: each
  // depends only on (seed, name). With compute = bf16 the variables hold bf16 copies of f32 master
  // weights; gradients stay f32. Each parameter begins at a multiple of 16 elements; padding is
  // zero. Values are drawn on the host: the same on every device.
  void materialize(uint64_t seed, DType master = DType::f32, DType compute = DType::f32,
                   Device device = {});

  const std::vector<Entry>& entries() const { return entries_; }
  // The parameters that the declarations returned, in order: a tied parameter as often as it was
  // declared. So a module uses the parameters that its construction added.
  const std::vector<Variable>& requested() const { return requested_; }
  const std::vector<Buffer>& buffers() const { return buffers_; }
  // The tensors of a checkpoint, by name: views of the master weights, and the buffers.
  std::map<std::string, Tensor> tensors() const;
  // Throws Error naming the nearest known name when there is none.
  const Entry& find(const std::string& name) const;
  int64_t count() const;  // trained elements, without padding
  // Flat [size] tensors, valid after materialize().
  const Tensor& weights() const { return weights_; }
  const Tensor& gradients() const { return gradients_; }
  // View of one parameter's master weights.
  Tensor weight_of(const Entry& entry) const { return weights_.slice(entry.begin, entry.shape); }
  // Copies the master weights into the bf16 values; nothing to do otherwise. Call after each
  // update.
  void refresh_values() const;

 private:
  void claim(const std::string& name) const;

  std::vector<Entry> entries_;
  std::vector<Variable> requested_;
  std::vector<Buffer> buffers_;
  std::map<std::string, size_t> index_;
  Tensor weights_, gradients_, values_;
};

// The running buffers of a model as they are now, for a forward pass that may be given up.
class RunningBuffers {
 public:
  explicit RunningBuffers(const ParameterSet& parameters);
  void restore() const;

 private:
  std::vector<std::pair<Tensor, Tensor>> copies_;  // where they live, and what they held
};

// A prefix of parameter names inside a set. Modules are built with it.
class ParameterScope {
 public:
  explicit ParameterScope(ParameterSet& set, std::string prefix = "")
      : set_(&set), prefix_(std::move(prefix)) {}
  ParameterScope child(const std::string& name) const { return ParameterScope(*set_, path(name)); }
  Variable parameter(const std::string& name, const Shape& shape, Initializer initializer) const {
    return set_->declare(path(name), shape, std::move(initializer));
  }
  Variable shared(const std::string& name, const Shape& shape, Initializer initializer) const {
    return set_->declare_shared(path(name), shape, std::move(initializer));
  }
  Variable buffer(const std::string& name, const Shape& shape, Initializer initializer,
                  BufferKind kind = BufferKind::constant) const {
    return set_->declare_buffer(path(name), shape, std::move(initializer), kind);
  }
  // "layers.0.attention" for naming sites of random draws.
  const std::string& prefix() const { return prefix_; }

 private:
  std::string path(const std::string& name) const {
    return prefix_.empty() ? name : prefix_ + "." + name;
  }
  ParameterSet* set_;
  std::string prefix_;
};

}  // namespace linnet
