// Variable: a tensor that remembers how it was computed. Define-by-run: every operation records a
// node; backward() visits the nodes from newest to oldest, iteratively.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace linnet {

class Gradients;
class Node;

// A value handle: copies refer to the same variable. A default-constructed one is undefined.
class Variable {
 public:
  Variable() = default;
  // A leaf. With requires_grad, backward() accumulates into grad().
  explicit Variable(Tensor value, bool requires_grad = false);

  bool defined() const { return impl_ != nullptr; }
  const Tensor& value() const;
  const Shape& shape() const { return value().shape(); }
  int64_t size(int64_t dimension) const { return value().size(dimension); }
  DType dtype() const { return value().dtype(); }
  bool requires_grad() const;
  // The gradient accumulated in a leaf so far; undefined when there is none.
  const Tensor& grad() const;
  // Replaces the value of a leaf (shape may change only before it was used in an operation).
  void set_value(Tensor value);
  // Gives a leaf a buffer (of any floating dtype) into which gradients are accumulated from now on.
  void set_grad(Tensor buffer);
  // Called once per backward() when the leaf's gradient of that pass is complete.
  void set_gradient_hook(std::function<void(const Variable&)> hook);
  // The same value without history.
  Variable detach() const { return Variable(value()); }
  // Whether both handles are the same variable.
  bool same(const Variable& other) const { return impl_ == other.impl_; }

 private:
  friend class Gradients;
  friend class Engine;
  friend std::vector<Variable> record_many(std::string_view, std::vector<Tensor>,
                                           std::vector<Variable>, std::function<void(Gradients&)>);
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

// How a gradient is to be written into a buffer.
enum class GradientWrite { ignore, overwrite, accumulate };

// Where the gradient of one input goes. `buffer` is undefined when mode is ignore. Its dtype is the
// input's, or that of the buffer given by set_grad (f32 for bf16 parameters).
struct GradientTarget {
  Tensor buffer;
  GradientWrite mode = GradientWrite::ignore;
};

// The arguments of an operation's backward function: gradients of its outputs, and buffers for
// those of its inputs (indexed in the order in which they were recorded).
class Gradients {
 public:
  // Whether anything depended on the output.
  bool has_output(size_t output = 0) const;
  // dL/d(output); zeros when nothing depended on it.
  const Tensor& output(size_t output = 0);
  // Whether the input's gradient is needed.
  bool wanted(size_t input) const;
  // A buffer to write dL/d(input) into, as `mode` says. Targets of two inputs that are the same
  // variable never overlap: the second is a buffer of its own, added at the end.
  GradientTarget target(size_t input);
  // Adds a finished gradient (converted to the right dtype); cheaper than target() for fresh
  // tensors. Does nothing when it is not wanted.
  void add(size_t input, const Tensor& gradient);

 private:
  friend class Engine;
  Gradients(Node& node, std::vector<Tensor>& outputs, class Engine& engine)
      : node_(node), outputs_(outputs), engine_(engine) {}
  bool handed_out(const Variable& variable) const;
  // Adds the gradients that had to wait until the operation has written its targets.
  void finish();
  Node& node_;
  std::vector<Tensor>& outputs_;
  class Engine& engine_;
  std::vector<size_t> targets_;                  // inputs whose target() was requested
  std::vector<std::pair<size_t, Tensor>> late_;  // gradients to add in finish()
};

using Backward = std::function<void(Gradients&)>;

// Whether an operation on these inputs has to be recorded: gradients are on, and one input needs
// one. Operations check this before saving anything for backward.
bool needs_grad(std::span<const Variable> inputs);
inline bool needs_grad(std::initializer_list<Variable> inputs) {
  return needs_grad(std::span(inputs.begin(), inputs.size()));
}

// Wraps an operation's output(s); records `backward` when needs_grad(inputs). Undefined inputs are
// allowed (optional ones): their gradients are never wanted.
Variable record(std::string_view name, Tensor output, std::vector<Variable> inputs,
                Backward backward);
std::vector<Variable> record_many(std::string_view name, std::vector<Tensor> outputs,
                                  std::vector<Variable> inputs, Backward backward);
// The same of one output, for inputs written out: without gradients it keeps neither them nor
// `backward` and so allocates nothing for them.
template <typename Function>
Variable record(std::string_view name, Tensor output, std::initializer_list<Variable> inputs,
                Function&& backward) {
  if (!needs_grad(inputs)) return Variable(std::move(output));
  return record(name, std::move(output), std::vector<Variable>(inputs),
                Backward(std::forward<Function>(backward)));
}

// Backpropagates from a scalar (seed 1), or from several variables with given gradients. Frees the
// graph as it goes, so that values which only the graph holds disappear; a second call over the
// same nodes throws Error.
void backward(const Variable& loss);
void backward(const std::vector<Variable>& outputs, const std::vector<Tensor>& seeds);

// While alive on a thread, operations record nothing (evaluation, generation).
class NoGrad {
 public:
  explicit NoGrad(bool off = true);
  ~NoGrad();
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  bool before_;
};
bool grad_enabled();

// Gradient checkpointing: runs body without recording, and recomputes it, recorded, when its
// gradient is needed. `parameters` are the leaves that body uses besides its inputs; backward()
// throws Error when one is missing, because its hook would be called too early. Body must be a pure
// function (random draws by counter), so that the second run gives the same values.
std::vector<Variable> recompute(
    std::function<std::vector<Variable>(const std::vector<Variable>&)> body,
    const std::vector<Variable>& inputs, const std::vector<Variable>& parameters);

}  // namespace linnet
