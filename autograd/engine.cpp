#include "autograd/engine.h"

#include <algorithm>

#include "core/elementwise.h"
#include "core/interrupt.h"

namespace linnet {
namespace {

// Depth of backward() calls on this thread: a recomputed block runs one inside another.
thread_local int backward_depth = 0;

}  // namespace

Node::~Node() {
  Engine::release_upstream(*this);
}

Variable Engine::input_for(const Variable& v) {
  if (!v.requires_grad()) return {};
  if (!v.impl_->producer) return v;
  Variable input;
  input.impl_ = std::make_shared<Variable::Impl>();
  input.impl_->requires_grad = true;
  input.impl_->producer = v.impl_->producer;
  input.impl_->output = v.impl_->output;
  return input;
}

Tensor Engine::buffer_for(const Variable& v) {
  const auto producer = producer_of(v);
  if (!producer) return Tensor::empty(v.shape(), v.dtype(), v.value().device());
  const auto& [shape, dtype] = producer->outputs[v.impl_->output];
  return Tensor::empty(shape, dtype, producer->device);
}

std::vector<Tensor>& Engine::slots(const std::shared_ptr<Node>& node) {
  Pending& entry = pending_[node->sequence];
  if (!entry.node) {
    entry.node = node;
    entry.gradients.resize(node->outputs.size());
  }
  return entry.gradients;
}

void Engine::count_leaves(const Variable& root) {
  std::vector<std::shared_ptr<Node>> stack;
  if (auto node = producer_of(root); node && counted_.insert(node.get()).second)
    stack.push_back(node);
  while (!stack.empty()) {
    const std::shared_ptr<Node> node = std::move(stack.back());
    stack.pop_back();
    for (const Variable& input : node->inputs) {
      if (!wants(input)) continue;
      if (auto producer = producer_of(input)) {
        if (counted_.insert(producer.get()).second) stack.push_back(producer);
      } else {
        ++leaf_of(input).uses;
      }
    }
  }
}

Engine::Leaf& Engine::leaf_of(const Variable& variable) {
  const auto [found, added] = leaf_indices_.try_emplace(variable.impl_.get(), leaves_.size());
  if (added) leaves_.push_back({variable, 0});
  return leaves_[found->second];
}

void Engine::require_leaves_among(const std::vector<Variable>& known) const {
  for (const Leaf& leaf : leaves_) {
    require(std::any_of(known.begin(), known.end(),
                        [&](const Variable& one) { return one.same(leaf.variable); }),
            "recompute: the body uses a parameter of shape ", leaf.variable.shape(),
            " that is not in its list; its gradient would be called complete too early");
  }
}

void Engine::call_hook(const Variable& leaf) {
  if (leaf.impl_->hook && backward_depth == 1) leaf.impl_->hook(leaf);
}

GradientTarget Engine::target(const Variable& input) {
  const bool leaf = !input.impl_->producer;
  Tensor& slot = leaf ? input.impl_->grad : slots(input.impl_->producer)[input.impl_->output];
  if (!slot.defined()) {
    slot = buffer_for(input);
    return {slot, GradientWrite::overwrite};
  }
  if (!leaf && !slot.unique()) slot = slot.clone();
  return {slot, GradientWrite::accumulate};
}

void Engine::accumulate(const Variable& input, const Tensor& gradient) {
  if (!wants(input)) return;
  const bool leaf = !input.impl_->producer;
  const auto [shape, dtype] = leaf ? std::pair(input.shape(), input.dtype())
                                   : input.impl_->producer->outputs[input.impl_->output];
  require(gradient.shape() == shape, "backward: gradient of shape ", gradient.shape(),
          " for a value of shape ", shape);
  Tensor& slot = leaf ? input.impl_->grad : slots(input.impl_->producer)[input.impl_->output];
  if (!slot.defined()) {
    // A leaf's gradient outlives the pass: it must not alias another gradient.
    slot = leaf ? gradient.to(dtype).clone() : gradient.to(dtype);
    return;
  }
  if (!leaf && !slot.unique()) slot = slot.clone();
  add_into(slot, gradient);
}

void Engine::run() {
  ++backward_depth;
  struct Guard {
    ~Guard() { --backward_depth; }
  } guard;
  while (!pending_.empty()) {
    interruption_point();
    Pending entry = std::move(pending_.begin()->second);
    pending_.erase(pending_.begin());
    Node& node = *entry.node;
    require(static_cast<bool>(node.backward), "backward: the graph of '", node.name,
            "' was already used by an earlier backward(); run the forward pass again");
    Gradients gradients(node, entry.gradients, *this);
    {
      // Backward takes the kernels that forward took, whoever calls it.
      const bool on_device = node.device.kind == DeviceKind::cuda;
      const UseKernels same(on_device ? node.kernels : KernelChoice::automatic, node.device);
      node.backward(gradients);
    }
    gradients.finish();
    for (const Variable& input : node.inputs) {
      if (wants(input) && !input.impl_->producer && --leaf_of(input).uses == 0) call_hook(input);
    }
    // Values that only this node held are freed now, not at the end of the pass.
    release_upstream(node);
  }
  // Uses that no gradient reached: their leaves are complete too.
  for (const Leaf& leaf : leaves_) {
    if (leaf.uses > 0) call_hook(leaf.variable);
  }
}

bool Gradients::has_output(size_t output) const {
  return outputs_.at(output).defined();
}
const Tensor& Gradients::output(size_t output) {
  Tensor& gradient = outputs_.at(output);
  if (!gradient.defined()) {
    const auto& [shape, dtype] = node_.outputs[output];
    gradient = Tensor::zeros(shape, dtype, node_.device);
  }
  return gradient;
}
bool Gradients::wanted(size_t input) const {
  return Engine::wants(Engine::input_of(node_, input));
}
bool Gradients::handed_out(const Variable& variable) const {
  for (const size_t input : targets_) {
    if (Engine::same(node_.inputs[input], variable)) return true;
  }
  return false;
}
GradientTarget Gradients::target(size_t input) {
  const Variable& variable = Engine::input_of(node_, input);
  if (!Engine::wants(variable)) return {};
  if (handed_out(variable)) {
    late_.emplace_back(input, Engine::buffer_for(variable));
    return {late_.back().second, GradientWrite::overwrite};
  }
  targets_.push_back(input);
  return engine_.target(variable);
}
void Gradients::add(size_t input, const Tensor& gradient) {
  const Variable& variable = Engine::input_of(node_, input);
  if (handed_out(variable)) {
    late_.emplace_back(input, gradient);
  } else {
    engine_.accumulate(variable, gradient);
  }
}
void Gradients::finish() {
  for (const auto& [input, gradient] : late_) engine_.accumulate(node_.inputs[input], gradient);
  late_.clear();
}

void backward(const Variable& loss) {
  require(loss.value().elements() == 1, "backward: expected a scalar loss, got shape ",
          loss.shape());
  backward({loss}, {Tensor::full(loss.shape(), 1.0, loss.dtype(), loss.value().device())});
}

void backward(const std::vector<Variable>& outputs, const std::vector<Tensor>& seeds) {
  require(outputs.size() == seeds.size(), "backward: ", outputs.size(), " outputs but ",
          seeds.size(), " seeds");
  Engine engine;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (seeds[i].defined()) engine.seed(outputs[i], seeds[i]);
  }
  engine.run();
}

}  // namespace linnet
