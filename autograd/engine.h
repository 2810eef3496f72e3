// The graph behind Variables and the pass over it; internal to autograd.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "autograd/variable.h"
#include "core/error.h"
#include "core/kernel_choice.h"
#include "core/tensor.h"

namespace linnet {

struct Variable::Impl {
  Tensor value;  // undefined in the inputs of a Node that are results
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
  // As Engine::input_for gives them.
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
  // An input as a Node holds it, for its gradient alone: the leaf, or for a result a handle on its
  // producer without the value, so that values which no backward reads are freed with their last
  // user; undefined where no gradient is wanted.
  static Variable input_for(const Variable& v);
  static bool same(const Variable& a, const Variable& b) {
    const auto producer = producer_of(a);
    return producer ? producer == producer_of(b) && a.impl_->output == b.impl_->output : a.same(b);
  }
  // An empty tensor like the value of a variable or of a Node's input.
  static Tensor buffer_for(const Variable& v);
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
      // One after the other, because an operation may have the same input twice.
      const Variable input = std::move(node.inputs.back());
      node.inputs.pop_back();
      if (input.defined() && input.impl_->producer.use_count() == 1) {
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

}  // namespace linnet
