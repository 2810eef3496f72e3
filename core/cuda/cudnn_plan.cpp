// Plans by cuDNN's backend interface. Descriptors of tensors and operations make an operation
// graph; heuristics rank engines for it; the first that can be finalized becomes the plan. All of
// that is done for a description of the device, the present one's or another's, so that tests
// without a GPU make the plans that run on one.
#include <cudnn_graph.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <type_traits>

#include "core/cuda/cudnn.h"
#include "core/cuda/runtime.h"

namespace linnet::cuda {
namespace {

// Older ones compute gradients wrongly at lengths that are no multiple of 128.
constexpr size_t kOldest = 91600;

std::string version_text(size_t version) {
  return concat(version / 10000, ".", version % 10000 / 100, ".", version % 100);
}

// The functions of the library; `problem` says why there are none.
struct Library {
  decltype(&cudnnGetVersion) version = nullptr;
  decltype(&cudnnGetErrorString) error_string = nullptr;
  decltype(&cudnnGetLastErrorString) last_error = nullptr;
  decltype(&cudnnCreate) create = nullptr;
  decltype(&cudnnSetStream) set_stream = nullptr;
  decltype(&cudnnBackendCreateDescriptor) create_descriptor = nullptr;
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor = nullptr;
  decltype(&cudnnBackendSetAttribute) set_attribute = nullptr;
  decltype(&cudnnBackendGetAttribute) get_attribute = nullptr;
  decltype(&cudnnBackendFinalize) finalize = nullptr;
  decltype(&cudnnBackendExecute) execute = nullptr;
  std::string problem;

  Library() {
    const std::string name = concat("libcudnn.so.", CUDNN_MAJOR);
    void* found = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (found == nullptr) {
      const char* reason = dlerror();
      problem = concat("cuDNN cannot be loaded (", reason == nullptr ? name : std::string(reason),
                       "); install it or add its folder to LD_LIBRARY_PATH");
      return;
    }
    const auto get = [&](auto& function, const char* symbol) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(found, symbol));
      if (function == nullptr && problem.empty()) problem = concat(name, " has no ", symbol);
    };
    get(version, "cudnnGetVersion");
    get(error_string, "cudnnGetErrorString");
    get(last_error, "cudnnGetLastErrorString");
    get(create, "cudnnCreate");
    get(set_stream, "cudnnSetStream");
    get(create_descriptor, "cudnnBackendCreateDescriptor");
    get(destroy_descriptor, "cudnnBackendDestroyDescriptor");
    get(set_attribute, "cudnnBackendSetAttribute");
    get(get_attribute, "cudnnBackendGetAttribute");
    get(finalize, "cudnnBackendFinalize");
    get(execute, "cudnnBackendExecute");
    if (problem.empty() && version() < kOldest) {
      problem = concat("cuDNN ", version_text(version()), " is too old; install ",
                       version_text(kOldest), " or newer");
    }
  }
};

const Library& library() {
  static const Library loaded;
  return loaded;
}

std::string reason_of(cudnnStatus_t status) {
  std::array<char, 512> more{};
  library().last_error(more.data(), more.size());
  return concat(library().error_string(status), more[0] == 0 ? "" : ": ", more.data());
}

void check(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw Error(concat("cuDNN: ", what, " failed: ", reason_of(status)));
}

// The statuses "not supported": another engine may support the graph.
bool is_unsupported(cudnnStatus_t status) {
  return status >= CUDNN_STATUS_NOT_SUPPORTED && status < CUDNN_STATUS_INTERNAL_ERROR;
}

// Owns one descriptor.
class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type) {
    check(library().create_descriptor(type, &descriptor_), "cudnnBackendCreateDescriptor");
  }
  ~Descriptor() {
    if (descriptor_ != nullptr) library().destroy_descriptor(descriptor_);
  }
  Descriptor(Descriptor&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, nullptr)) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const void* values,
           size_t count) {
    check(library().set_attribute(descriptor_, name, type, static_cast<int64_t>(count), values),
          "cudnnBackendSetAttribute");
  }
  template <typename T>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const T& value) {
    set(name, type, &value, 1);
  }
  void set(cudnnBackendAttributeName_t name, const Descriptor& other) {
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, other.descriptor_);
  }
  int64_t get_int64(cudnnBackendAttributeName_t name) const {
    int64_t value = 0, count = 0;
    check(library().get_attribute(descriptor_, name, CUDNN_TYPE_INT64, 1, &count, &value),
          "cudnnBackendGetAttribute");
    return value;
  }
  cudnnStatus_t try_to_finalize() { return library().finalize(descriptor_); }
  void finalize(const char* what) { check(try_to_finalize(), what); }
  cudnnBackendDescriptor_t get() const { return descriptor_; }

 private:
  cudnnBackendDescriptor_t descriptor_ = nullptr;
};

cudnnDataType_t type_of(GraphType type) {
  switch (type) {
    case GraphType::bf16:
      return CUDNN_DATA_BFLOAT16;
    case GraphType::i32:
      return CUDNN_DATA_INT32;
    case GraphType::boolean:
      return CUDNN_DATA_BOOLEAN;
    case GraphType::f32:
      break;
  }
  return CUDNN_DATA_FLOAT;
}

DType stored_type(GraphType type) {
  return type == GraphType::bf16 ? DType::bf16 : DType::f32;
}

constexpr int64_t kAlignment = 16;

Descriptor describe(const GraphTensor& tensor, int64_t index) {
  Descriptor result(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  result.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, index);
  result.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type_of(tensor.type));
  result.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, kAlignment);
  result.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, tensor.sizes.data(),
             tensor.sizes.size());
  result.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, tensor.strides.data(),
             tensor.strides.size());
  const bool by_value = tensor.value.has_value(), is_virtual = !tensor.in_memory && !by_value;
  result.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, is_virtual);
  result.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, by_value);
  result.finalize("a tensor of the graph");
  return result;
}

cudnnPointwiseMode_t mode_of(GraphKind kind) {
  switch (kind) {
    case GraphKind::add:
      return CUDNN_POINTWISE_ADD;
    case GraphKind::subtract:
      return CUDNN_POINTWISE_SUB;
    case GraphKind::multiply:
      return CUDNN_POINTWISE_MUL;
    case GraphKind::divide:
      return CUDNN_POINTWISE_DIV;
    case GraphKind::exponential:
      return CUDNN_POINTWISE_EXP;
    case GraphKind::logarithm:
      return CUDNN_POINTWISE_LOG;
    case GraphKind::row_index:
    case GraphKind::column_index:
      return CUDNN_POINTWISE_GEN_INDEX;
    case GraphKind::at_least:
      return CUDNN_POINTWISE_CMP_GE;
    case GraphKind::select:
      return CUDNN_POINTWISE_BINARY_SELECT;
    default:
      return CUDNN_POINTWISE_IDENTITY;
  }
}

// One operation between tensors that are described already.
Descriptor describe(const GraphOperation& operation, const std::vector<Descriptor>& tensors) {
  const auto tensor = [&](size_t i) -> const Descriptor& {
    return tensors.at(static_cast<size_t>(operation.inputs.at(i)));
  };
  const Descriptor& output = tensors.at(static_cast<size_t>(operation.output));
  const cudnnDataType_t compute =
      operation.kind == GraphKind::at_least ? CUDNN_DATA_BOOLEAN : CUDNN_DATA_FLOAT;
  if (operation.kind == GraphKind::product) {
    Descriptor how(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    how.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, compute);
    how.finalize("a product's kind");
    Descriptor result(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    result.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, tensor(0));
    result.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, tensor(1));
    result.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, output);
    result.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    result.finalize("a product");
    return result;
  }
  if (operation.kind == GraphKind::transposed) {
    Descriptor result(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    result.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, tensor(0));
    result.set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, output);
    result.finalize("a transposition");
    return result;
  }
  if (operation.kind == GraphKind::row_sum || operation.kind == GraphKind::row_maximum) {
    Descriptor how(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    how.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, compute);
    how.set(
        CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE,
        operation.kind == GraphKind::row_sum ? CUDNN_REDUCE_TENSOR_ADD : CUDNN_REDUCE_TENSOR_MAX);
    how.finalize("a reduction's kind");
    Descriptor result(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    result.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, tensor(0));
    result.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, output);
    result.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    result.finalize("a reduction");
    return result;
  }
  Descriptor how(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  how.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode_of(operation.kind));
  how.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, compute);
  if (operation.kind == GraphKind::row_index || operation.kind == GraphKind::column_index) {
    const int64_t dimension = operation.kind == GraphKind::row_index ? 2 : 3;
    how.set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, dimension);
  }
  how.finalize("an operation's kind");
  Descriptor result(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  result.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
  result.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, tensor(0));
  if (operation.inputs.size() > 1) result.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, tensor(1));
  if (operation.inputs.size() > 2) result.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, tensor(2));
  result.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, output);
  result.finalize("an operation by elements");
  return result;
}

Descriptor describe_device(const std::string& json) {
  Descriptor result(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  if (json.empty()) {
    const auto index = static_cast<int32_t>(current_device());
    result.set(CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32, index);
  } else {
    result.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, json.data(),
               json.size());
  }
  result.finalize("the description of the device");
  return result;
}

// Engines for the graph, the best first.
std::vector<Descriptor> engines(const Descriptor& graph, const Descriptor& device,
                                cudnnBackendHeurMode_t mode) {
  Descriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device);
  std::vector<Descriptor> found;
  if (heuristics.try_to_finalize() != CUDNN_STATUS_SUCCESS) return found;
  constexpr int64_t kMax = 16;
  std::vector<cudnnBackendDescriptor_t> places;
  for (int64_t i = 0; i < kMax; ++i) {
    places.push_back(found.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).get());
  }
  int64_t count = 0;
  check(library().get_attribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                CUDNN_TYPE_BACKEND_DESCRIPTOR, kMax, &count, places.data()),
        "ranking engines");
  while (std::ssize(found) > count) found.pop_back();
  return found;
}

// The handle of this thread's device, used under `mutex`. Never destroyed: the driver may be gone
// before static objects are.
std::mutex mutex;
cudnnHandle_t handle() {
  static auto& all = *new std::map<int, cudnnHandle_t>;
  cudnnHandle_t& here = all[current_device()];
  if (here == nullptr) check(library().create(&here), "cudnnCreate");
  return here;
}

}  // namespace

std::string cudnn_problem() {
  return library().problem;
}

std::string cudnn_version() {
  return library().problem.empty() ? version_text(library().version()) : "";
}

struct GraphPlan::State {
  OperationGraph graph;
  std::vector<Descriptor> descriptors;  // of tensors, then of operations and their graph
  std::optional<Descriptor> plan;
  int64_t workspace = 0;  // bytes of device memory that a run needs besides the tensors
};

GraphPlan::GraphPlan(const OperationGraph& graph, const std::string& device)
    : state_(std::make_unique<State>()) {
  require_usage(library().problem.empty(), library().problem);
  state_->graph = graph;
  std::vector<Descriptor>& made = state_->descriptors;
  for (const GraphTensor& tensor : graph.tensors)
    made.push_back(describe(tensor, std::ssize(made)));
  std::vector<cudnnBackendDescriptor_t> operations;
  for (const GraphOperation& operation : graph.operations) {
    Descriptor described = describe(operation, made);
    operations.push_back(described.get());
    made.push_back(std::move(described));
  }
  Descriptor& whole = made.emplace_back(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  whole.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, operations.data(),
            operations.size());
  whole.finalize("the graph");
  const Descriptor target = describe_device(device);
  std::string reason = "it ranks no engine";
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    for (Descriptor& engine : engines(whole, target, mode)) {
      Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
      plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, engine);
      plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, target);
      const cudnnStatus_t status = plan.try_to_finalize();
      if (is_unsupported(status)) {
        reason = reason_of(status);
        continue;
      }
      check(status, "making a kernel");
      state_->workspace = plan.get_int64(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
      made.push_back(std::move(engine));
      state_->plan.emplace(std::move(plan));
      return;
    }
  }
  throw Error(concat("cuDNN ", cudnn_version(), " has no kernel for this graph: ", reason));
}

GraphPlan::~GraphPlan() = default;

void GraphPlan::run(const std::vector<std::pair<int, Tensor>>& tensors) const {
  std::vector<int64_t> indices;
  std::vector<void*> places;
  for (const auto& [index, tensor] : tensors) {
    const GraphTensor& wanted = state_->graph.tensors.at(static_cast<size_t>(index));
    int64_t elements = 1;
    for (const int64_t size : wanted.sizes) elements *= size;
    require(wanted.in_memory && tensor.dtype() == stored_type(wanted.type) &&
                tensor.elements() == elements &&
                reinterpret_cast<uintptr_t>(tensor.raw()) % kAlignment == 0,
            "cuDNN: tensor ", index, " of the graph cannot be ", tensor.shape(), " ",
            name_of(tensor.dtype()));
    require_current(tensor.device().index);
    indices.push_back(index);
    places.push_back(tensor.raw());
  }
  for (size_t i = 0; i < state_->graph.tensors.size(); ++i) {
    GraphTensor& tensor = state_->graph.tensors[i];
    if (!tensor.value) continue;
    indices.push_back(static_cast<int64_t>(i));
    places.push_back(&*tensor.value);
  }
  const Tensor workspace = Tensor::empty({std::max<int64_t>(state_->workspace, 1)}, DType::u8,
                                         Device{DeviceKind::cuda, current_device()});
  void* const workspace_memory = workspace.raw();
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, indices.data(), indices.size());
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, places.data(),
           places.size());
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace_memory);
  pack.finalize("the tensors of a run");
  const std::lock_guard lock(mutex);
  check(library().set_stream(handle(), static_cast<cudaStream_t>(stream())), "cudnnSetStream");
  check(library().execute(handle(), state_->plan->get(), pack.get()), "cudnnBackendExecute");
}

}  // namespace linnet::cuda
