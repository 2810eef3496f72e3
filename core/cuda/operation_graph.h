// Operations on tensors as data: a graph that cuDNN fuses into one kernel (core/cuda/cudnn.h).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace linnet::cuda {

enum class GraphType : uint8_t { f32, bf16, i32, boolean };

struct GraphTensor {
  std::array<int64_t, 4> sizes{}, strides{};  // in elements
  GraphType type = GraphType::f32;
  bool in_memory = false;      // else it exists inside the kernel alone
  std::optional<float> value;  // a scalar, which the host passes
};

// product (of matrices), transposed, row_sum and row_maximum (over the last dimension) concern the
// last two dimensions. The other kinds are element-wise, with sizes of 1 repeated: identity changes
// the type or the place, row_index and column_index are the index in the third and the last
// dimension of their input, at_least is first >= second, select is third ? first : second.
enum class GraphKind : uint8_t {
  product,
  transposed,
  row_sum,
  row_maximum,
  add,
  subtract,
  multiply,
  divide,
  exponential,
  logarithm,
  identity,
  row_index,
  column_index,
  at_least,
  select
};

struct GraphOperation {
  GraphKind kind;
  std::vector<int> inputs;  // indices of tensors
  int output;
};

// Operations stand in an order in which they could be computed one by one.
struct OperationGraph {
  std::vector<GraphTensor> tensors;
  std::vector<GraphOperation> operations;

  // Both return the tensor's index.
  int add(const GraphTensor& tensor) {
    tensors.push_back(tensor);
    return static_cast<int>(tensors.size()) - 1;
  }
  int apply(GraphKind kind, std::vector<int> inputs, const GraphTensor& output) {
    const int index = add(output);
    operations.push_back({kind, std::move(inputs), index});
    return index;
  }
};

}  // namespace linnet::cuda
