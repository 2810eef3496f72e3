#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "core/comm/cuda/nccl.h"
#include "core/comm/cuda/nccl_library.h"
#include "core/comm/store.h"
#include "core/cuda/graph.h"
#include "core/cuda/runtime.h"
#include "core/error.h"

namespace linnet::cuda {
namespace {

using std::chrono::steady_clock;

ncclDataType_t sum_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return ncclFloat32;
    case DType::f64:
      return ncclFloat64;
    case DType::bf16:
      return ncclBfloat16;
    case DType::i32:
      return ncclInt32;
    default:
      return ncclInt64;
  }
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::unique_ptr<Communicator> host, Device device);
  ~NcclCommunicator() override;
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;
  std::string_view name() const override { return "nccl"; }
  bool reaches(Device device) const override { return device == Device() || device == device_; }
  void finish_sums() override;

 private:
  void all_reduce_sum_checked(const Tensor& values) override;
  void start_all_reduce_sum_checked(const Tensor& values) override;
  void reduce_scatter_sum_checked(const Tensor& values) override;
  void all_gather_checked(const Tensor& values) override;
  void broadcast_checked(const Tensor& values, int root) override;
  void send_checked(const Tensor& values, int to) override;
  void receive_checked(const Tensor& values, int from) override;

  // Makes a call of NCCL, and waits until its work has ended.
  template <typename Call>
  void run(const char* operation, const Call& call);
  // Makes a call of NCCL, which puts its work into a stream.
  template <typename Call>
  void submit(const char* operation, const Call& call, Deadline deadline);
  // Until NCCL has accepted a call.
  void settle(const char* operation, ncclResult_t result, Deadline deadline);
  // For the end of the stream's work; in a capture there is none.
  void wait(const char* operation, Deadline deadline);
  // Lets the stream wait for the sums beside it.
  void join();
  void require_done(const char* operation, cudaError_t status);
  // Of a tensor with as many elements for every rank.
  ncclResult_t reduce_scatter(const Tensor& shares, cudaStream_t stream) const;
  ncclResult_t gather(const Tensor& shares, cudaStream_t stream) const;
  // Now, or in every replay of the graph that is captured.
  void count(int64_t bytes);
  int64_t bytes_of_reduce_scatter(const Tensor& values) const;
  int64_t bytes_of_gather(const Tensor& values) const;
  Deadline deadline() const { return steady_clock::now() + time_limit(); }
  [[noreturn]] void fail(const char* operation, const std::string& finding);
  // Runs body(shares), with as many elements for every rank: `shares` is `values`, or a copy with a
  // longer end where they do not divide.
  template <typename Body>
  void with_equal_shares(const Tensor& values, const Body& body);
  static cudaStream_t stream() { return static_cast<cudaStream_t>(cuda::stream()); }

  const NcclLibrary& library_ = nccl_library();
  std::unique_ptr<Communicator> host_;
  Device device_;
  ncclComm_t comm_ = nullptr;
  // Where started sums run, and what it and the stream wait for: values, and their sums.
  cudaStream_t side_ = nullptr;
  cudaEvent_t made_ = nullptr, summed_ = nullptr;
  bool started_ = false;
  std::string failure_;
};

NcclCommunicator::NcclCommunicator(std::unique_ptr<Communicator> host, Device device)
    : Communicator(host->rank(), host->size(), host->time_limit()),
      host_(std::move(host)),
      device_(device) {
  require_usage(library_.problem.empty(), Cause{ErrorCode::not_found}, library_.problem);
  set_device(device.index);
  require_done("connecting", cudaStreamCreateWithFlags(&side_, cudaStreamNonBlocking));
  require_done("connecting", cudaEventCreateWithFlags(&made_, cudaEventDisableTiming));
  require_done("connecting", cudaEventCreateWithFlags(&summed_, cudaEventDisableTiming));
  const Deadline limit = deadline();
  ncclUniqueId id{};
  if (rank() == 0) settle("connecting", library_.unique_id(&id), limit);
  const std::string text =
      host_->broadcast_text(std::string(static_cast<const char*>(id.internal), sizeof(id)), 0);
  std::memcpy(&id, text.data(), sizeof(id));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;  // so that nothing waits beyond the time limit
  settle("connecting", library_.init_rank(&comm_, size(), id, rank(), &config), limit);
}

NcclCommunicator::~NcclCommunicator() {
  if (comm_ != nullptr) library_.destroy(comm_);
  if (summed_ != nullptr) cudaEventDestroy(summed_);
  if (made_ != nullptr) cudaEventDestroy(made_);
  if (side_ != nullptr) cudaStreamDestroy(side_);
}

void NcclCommunicator::require_done(const char* operation, cudaError_t status) {
  if (status != cudaSuccess) fail(operation, cudaGetErrorString(status));
}

void NcclCommunicator::settle(const char* operation, ncclResult_t result, Deadline deadline) {
  while (result == ncclInProgress && steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    if (library_.async_error(comm_, &result) != ncclSuccess) result = ncclInternalError;
  }
  if (result != ncclSuccess) fail(operation, library_.error_string(result));
}

template <typename Call>
void NcclCommunicator::run(const char* operation, const Call& call) {
  const Deadline limit = deadline();
  join();
  submit(operation, call, limit);
  wait(operation, limit);
}

template <typename Call>
void NcclCommunicator::submit(const char* operation, const Call& call, Deadline deadline) {
  if (!failure_.empty()) throw Error(Cause{ErrorCode::system}, failure_);
  require_current(device_.index);
  settle(operation, call(), deadline);
}

void NcclCommunicator::wait(const char* operation, Deadline deadline) {
  if (!failure_.empty()) throw Error(Cause{ErrorCode::system}, failure_);
  if (capturing()) return;
  while (true) {
    const cudaError_t status = cudaStreamQuery(stream());
    if (status == cudaSuccess) return;
    if (status != cudaErrorNotReady) fail(operation, cudaGetErrorString(status));
    ncclResult_t result = ncclSuccess;
    library_.async_error(comm_, &result);
    if (result != ncclSuccess && result != ncclInProgress) {
      fail(operation, library_.error_string(result));
    }
    if (steady_clock::now() >= deadline) fail(operation, "no end within the time limit");
    std::this_thread::yield();
  }
}

// Ranks that do not take part are known to the host's communicator.
void NcclCommunicator::fail(const char* operation, const std::string& finding) {
  if (comm_ != nullptr) library_.abort(std::exchange(comm_, nullptr));
  failure_ = concat("rank ", rank(), " of ", size(), ", ", operation, " on ", name_of(device_),
                    ": ", finding);
  host_->set_time_limit(std::min<std::chrono::milliseconds>(time_limit(), std::chrono::seconds(5)));
  try {
    host_->barrier();
  } catch (const Error& error) {
    failure_ += concat("; ", error.what());
  }
  throw Error(Cause{ErrorCode::system}, failure_);
}

template <typename Body>
void NcclCommunicator::with_equal_shares(const Tensor& values, const Body& body) {
  const int64_t step = share(values.elements(), 0).elements();
  if (step * size() == values.elements()) return body(values);
  const Tensor padded = Tensor::zeros({step * size()}, values.dtype(), device_);
  const Tensor same = padded.slice(0, values.shape());
  same.copy_from(values);
  body(padded);
  values.copy_from(same);
}

// In place: where NCCL finds the sums of a rank's own share, it leaves the other shares alone.
ncclResult_t NcclCommunicator::reduce_scatter(const Tensor& shares, cudaStream_t stream) const {
  const auto step = static_cast<size_t>(shares.elements() / size());
  char* all = static_cast<char*>(shares.raw());
  return library_.reduce_scatter(all,
                                 all + static_cast<size_t>(rank()) * step * size_of(shares.dtype()),
                                 step, sum_type(shares.dtype()), ncclSum, comm_, stream);
}

ncclResult_t NcclCommunicator::gather(const Tensor& shares, cudaStream_t stream) const {
  const size_t bytes = shares.bytes() / static_cast<size_t>(size());
  char* all = static_cast<char*>(shares.raw());
  return library_.all_gather(all + static_cast<size_t>(rank()) * bytes, all, bytes, ncclUint8,
                             comm_, stream);
}

void NcclCommunicator::count(int64_t bytes) {
  if (!capturing()) return count_sent(bytes);
  before_each_replay([this, bytes](uint64_t) { count_sent(bytes); });
}

int64_t NcclCommunicator::bytes_of_reduce_scatter(const Tensor& values) const {
  return (values.elements() - share(values.elements()).elements()) *
         static_cast<int64_t>(size_of(values.dtype()));
}

int64_t NcclCommunicator::bytes_of_gather(const Tensor& values) const {
  return share(values.elements()).elements() * (size() - 1) *
         static_cast<int64_t>(size_of(values.dtype()));
}

// The bits of its halves, which an all-reduce of NCCL would not have.
void NcclCommunicator::all_reduce_sum_checked(const Tensor& values) {
  reduce_scatter_sum_checked(values);
  all_gather_checked(values);
}

void NcclCommunicator::start_all_reduce_sum_checked(const Tensor& values) {
  // A copy that makes values divide is the stream's own: it would be released too early.
  if (values.device() == Device() || values.elements() % size() != 0) {
    return all_reduce_sum_checked(values);
  }
  if (values.elements() == 0) return;
  count(bytes_of_reduce_scatter(values) + bytes_of_gather(values));
  require_done("all_reduce_sum", cudaEventRecord(made_, stream()));
  require_done("all_reduce_sum", cudaStreamWaitEvent(side_, made_));
  started_ = true;
  const Deadline limit = deadline();
  submit(
      "all_reduce_sum", [&] { return reduce_scatter(values, side_); }, limit);
  submit(
      "all_reduce_sum", [&] { return gather(values, side_); }, limit);
}

void NcclCommunicator::join() {
  if (!std::exchange(started_, false)) return;
  require_done("all_reduce_sum", cudaEventRecord(summed_, side_));
  require_done("all_reduce_sum", cudaStreamWaitEvent(stream(), summed_));
}

void NcclCommunicator::finish_sums() {
  join();
  wait("all_reduce_sum", deadline());
}

void NcclCommunicator::reduce_scatter_sum_checked(const Tensor& values) {
  if (values.device() == Device()) return host_->reduce_scatter_sum(values);
  if (values.elements() == 0) return;
  count(bytes_of_reduce_scatter(values));
  with_equal_shares(values, [&](const Tensor& shares) {
    run("reduce_scatter_sum", [&] { return reduce_scatter(shares, stream()); });
  });
}

void NcclCommunicator::all_gather_checked(const Tensor& values) {
  if (values.device() == Device()) return host_->all_gather(values);
  if (values.elements() == 0) return;
  count(bytes_of_gather(values));
  with_equal_shares(values, [&](const Tensor& shares) {
    run("all_gather", [&] { return gather(shares, stream()); });
  });
}

void NcclCommunicator::broadcast_checked(const Tensor& values, int root) {
  if (values.device() == Device()) return host_->broadcast(values, root);
  if (rank() == root) count(static_cast<int64_t>(values.bytes()) * (size() - 1));
  run("broadcast", [&] {
    return library_.broadcast(values.raw(), values.raw(), values.bytes(), ncclUint8, root, comm_,
                              stream());
  });
}

void NcclCommunicator::send_checked(const Tensor& values, int to) {
  if (values.device() == Device()) return host_->send(values, to);
  count(static_cast<int64_t>(values.bytes()));
  run("send",
      [&] { return library_.send(values.raw(), values.bytes(), ncclUint8, to, comm_, stream()); });
}

void NcclCommunicator::receive_checked(const Tensor& values, int from) {
  if (values.device() == Device()) return host_->receive(values, from);
  run("receive", [&] {
    return library_.receive(values.raw(), values.bytes(), ncclUint8, from, comm_, stream());
  });
}

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator> host,
                                                     Device device) {
  return std::make_unique<NcclCommunicator>(std::move(host), device);
}

}  // namespace linnet::cuda
