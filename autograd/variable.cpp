#include "autograd/variable.h"

#include <atomic>
#include <utility>

#include "autograd/engine.h"

namespace linnet {
namespace {

// Ambient as in every define-by-run tape: whether operations record is a property of the scope in
// which a thread computes, not of a tensor.
thread_local bool recording = true;
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

bool needs_grad(std::span<const Variable> inputs) {
  if (!recording) return false;
  for (const Variable& input : inputs) {
    if (input.requires_grad()) return true;
  }
  return false;
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
  for (Variable& input : inputs) input = Engine::input_for(input);
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
