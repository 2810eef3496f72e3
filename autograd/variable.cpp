#include "autograd/variable.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/elementwise.h"
#include "core/kernel_choice.h"

namespace linnet {
namespace {

// Ambient as in every define-by-run tape: whether operations record is a property of the scope in
// which a thread computes, not of a tensor.
thread_local bool recording = true;
// Depth of backward() calls on this thread: a recomputed block runs one inside another.
thread_local int backward_depth = 0;
std::atomic<uint64_t> next_sequence{1};

// Records until the end of the scope, also where backward() was called without recording.
class Recording {
 public:
  Recording() : before_(recording) { recording = true; }
  ~Recording() { recording = before_; }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

 private:
  bool before_;
};

}  // namespace

struct Variable::Impl {
  Tensor value;
  Tensor grad;
  bool requires_grad = false;
  std::shared_ptr<Node> producer;
  size_t output = 0;
  std::function<void(const Variable&)> hook;
};

// One recorded operation. `sequence` counts nodes in order of creation: descending order is a valid
// order for backward, because inputs exist before outputs.
class Node {
 public:
  std::string name;
  uint64_t sequence = 0;
  std::vector<Variable> inputs;
  std::vector<std::pair<Shape, DType>> outputs;
  Device device;
  Backward backward;
  KernelChoice kernels = kernel_choice();
  ~Node();
};

// One backward pass.
class Engine {
 public:
  void seed(const Variable& output, const Tensor& gradient) {
    accumulate(output, gradient);
    count_leaves(output);
  }
  // Throws Error when the outputs depend on another leaf.
  void require_leaves_among(const std::vector<Variable>& known) const;
  void run();
  GradientTarget target(const Variable& input);
  void accumulate(const Variable& input, const Tensor& gradient);
  static const Variable& input_of(Node& node, size_t input) {
    require(input < node.inputs.size(), "backward of ", node.name, ": no input ", input);
    return node.inputs[input];
  }
  static bool wants(const Variable& v) { return v.defined() && v.impl_->requires_grad; }
  static std::shared_ptr<Node> producer_of(const Variable& v) {
    return v.defined() ? v.impl_->producer : nullptr;
  }
  // Frees the tensors and handles of a node; producers that nothing else holds are moved to
  // `orphans`.
  static void release(Node& node, std::vector<std::shared_ptr<Node>>& orphans) {
    node.backward = nullptr;  // first: its closure may hold further handles on the inputs
    while (!node.inputs.empty()) {
      // One handle after the other, because an operation may have the same input twice.
      const Variable input = std::move(node.inputs.back());
      node.inputs.pop_back();
      if (input.defined() && input.impl_->producer && input.impl_.use_count() == 1) {
        orphans.push_back(std::move(input.impl_->producer));
      }
    }
  }
  // release() for a node and everything upstream that only it held: long chains are freed one by
  // one, the default recursion would overflow the stack.
  static void release_upstream(Node& first) {
    std::vector<std::shared_ptr<Node>> orphans;
    release(first, orphans);
    while (!orphans.empty()) {
      const std::shared_ptr<Node> node = std::move(orphans.back());
      orphans.pop_back();
      if (node.use_count() == 1) release(*node, orphans);
    }
  }

 private:
  // A leaf and the count of its uses that this pass has not reached yet.
  struct Leaf {
    Variable variable;
    int64_t uses = 0;
  };
  void count_leaves(const Variable& root);
  Leaf& leaf_of(const Variable& variable);
  static void call_hook(const Variable& leaf);
  std::vector<Tensor>& slots(const std::shared_ptr<Node>& node);

  struct Pending {
    std::shared_ptr<Node> node;
    std::vector<Tensor> gradients;
  };
  std::map<uint64_t, Pending, std::greater<>> pending_;
  std::unordered_set<const Node*> counted_;
  std::vector<Leaf> leaves_;  // in the order in which they were found, the same in every run
  std::unordered_map<const void*, size_t> leaf_indices_;
};

Node::~Node() {
  Engine::release_upstream(*this);
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
  if (!input.impl_->producer) {
    Tensor& grad = input.impl_->grad;
    if (grad.defined()) return {grad, GradientWrite::accumulate};
    grad = Tensor::empty(input.shape(), input.dtype(), input.value().device());
    return {grad, GradientWrite::overwrite};
  }
  Tensor& slot = slots(input.impl_->producer)[input.impl_->output];
  if (!slot.defined()) {
    slot = Tensor::empty(input.shape(), input.dtype(), input.value().device());
    return {slot, GradientWrite::overwrite};
  }
  if (!slot.unique()) slot = slot.clone();
  return {slot, GradientWrite::accumulate};
}

void Engine::accumulate(const Variable& input, const Tensor& gradient) {
  if (!wants(input)) return;
  require(gradient.shape() == input.shape(), "backward: gradient of shape ", gradient.shape(),
          " for a value of shape ", input.shape());
  const bool leaf = !input.impl_->producer;
  Tensor& slot = leaf ? input.impl_->grad : slots(input.impl_->producer)[input.impl_->output];
  if (!slot.defined()) {
    // A leaf's gradient outlives the pass: it must not alias another gradient.
    slot = leaf ? gradient.to(input.dtype()).clone() : gradient.to(input.dtype());
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

Variable::Variable(Tensor value, bool requires_grad) : impl_(std::make_shared<Impl>()) {
  require(!requires_grad || is_floating(value.dtype()),
          "a variable that needs a gradient must be floating, got ", name_of(value.dtype()));
  impl_->value = std::move(value);
  impl_->requires_grad = requires_grad;
}

const Tensor& Variable::value() const {
  require(defined(), "the variable is undefined");
  return impl_->value;
}
bool Variable::requires_grad() const {
  return defined() && impl_->requires_grad;
}
const Tensor& Variable::grad() const {
  require(defined(), "the variable is undefined");
  return impl_->grad;
}
void Variable::set_value(Tensor value) {
  require(defined() && !impl_->producer, "set_value: only a leaf's value can be replaced");
  require(!impl_->requires_grad || is_floating(value.dtype()),
          "set_value: a variable that needs a gradient must be floating, got ",
          name_of(value.dtype()));
  impl_->value = std::move(value);
}
void Variable::set_grad(Tensor buffer) {
  require(defined() && !impl_->producer, "set_grad: only a leaf accumulates a gradient");
  require(!buffer.defined() || (buffer.shape() == shape() && is_floating(buffer.dtype())),
          "set_grad: a buffer of shape ", buffer.shape(), " ", name_of(buffer.dtype()),
          " for a value of shape ", shape());
  impl_->grad = std::move(buffer);
}
void Variable::set_gradient_hook(std::function<void(const Variable&)> hook) {
  require(defined() && !impl_->producer, "set_gradient_hook: only a leaf has one");
  impl_->hook = std::move(hook);
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
    if (node_.inputs[input].same(variable)) return true;
  }
  return false;
}
GradientTarget Gradients::target(size_t input) {
  const Variable& variable = Engine::input_of(node_, input);
  if (!Engine::wants(variable)) return {};
  if (handed_out(variable)) {
    late_.emplace_back(
        input, Tensor::empty(variable.shape(), variable.dtype(), variable.value().device()));
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

bool needs_grad(const std::vector<Variable>& inputs) {
  if (!recording) return false;
  for (const Variable& input : inputs) {
    if (input.requires_grad()) return true;
  }
  return false;
}
bool needs_grad(std::initializer_list<Variable> inputs) {
  return needs_grad(std::vector<Variable>(inputs));
}

Variable record(std::string_view name, Tensor output, std::vector<Variable> inputs,
                Backward backward) {
  return record_many(name, {std::move(output)}, std::move(inputs), std::move(backward))[0];
}

std::vector<Variable> record_many(std::string_view name, std::vector<Tensor> outputs,
                                  std::vector<Variable> inputs, Backward backward) {
  std::vector<Variable> result;
  result.reserve(outputs.size());
  for (Tensor& output : outputs) result.emplace_back(std::move(output));
  if (result.empty() || !needs_grad(inputs)) return result;
  auto node = std::make_shared<Node>();
  node->name = name;
  node->sequence = next_sequence++;
  node->device = result[0].value().device();
  node->inputs = std::move(inputs);
  node->backward = std::move(backward);
  for (size_t i = 0; i < result.size(); ++i) {
    node->outputs.emplace_back(result[i].shape(), result[i].dtype());
    result[i].impl_->requires_grad = is_floating(result[i].dtype());
    result[i].impl_->producer = node;
    result[i].impl_->output = i;
  }
  return result;
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

NoGrad::NoGrad(bool off) : before_(recording) {
  recording = recording && !off;
}
NoGrad::~NoGrad() {
  recording = before_;
}
bool grad_enabled() {
  return recording;
}

std::vector<Variable> recompute(
    std::function<std::vector<Variable>(const std::vector<Variable>&)> body,
    const std::vector<Variable>& inputs, const std::vector<Variable>& parameters) {
  std::vector<Variable> recorded = inputs;
  recorded.insert(recorded.end(), parameters.begin(), parameters.end());
  for (const Variable& parameter : parameters) {
    require(!Engine::producer_of(parameter),
            "recompute: a parameter is the result of an operation; pass it as an input");
  }
  if (!needs_grad(recorded)) return body(inputs);
  std::vector<Tensor> outputs;
  {
    const NoGrad off;
    for (const Variable& output : body(inputs)) outputs.push_back(output.value());
  }
  return record_many("recompute", std::move(outputs), std::move(recorded),
                     [body = std::move(body), inputs, parameters](Gradients& gradients) {
                       const Recording on;
                       std::vector<Variable> leaves;
                       for (const Variable& input : inputs) {
                         leaves.push_back(input.defined()
                                              ? Variable(input.value(), input.requires_grad())
                                              : Variable());
                       }
                       const std::vector<Variable> again = body(leaves);
                       Engine engine;
                       for (size_t i = 0; i < again.size(); ++i) {
                         if (gradients.has_output(i)) engine.seed(again[i], gradients.output(i));
                       }
                       std::vector<Variable> known = parameters;
                       known.insert(known.end(), leaves.begin(), leaves.end());
                       engine.require_leaves_among(known);
                       engine.run();
                       for (size_t i = 0; i < leaves.size(); ++i) {
                         if (leaves[i].requires_grad() && leaves[i].grad().defined()) {
                           gradients.add(i, leaves[i].grad());
                         }
                       }
                     });
}

}  // namespace linnet
