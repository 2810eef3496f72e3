#include "core/cuda/cuda_device.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/cuda/refusals.h"
#include "core/cuda/runtime.h"
#include "core/error.h"

namespace linnet::cuda {
namespace {

// Makes a device the current one for a while.
class OnDevice {
 public:
  explicit OnDevice(int index) : before_(current_device()) {
    if (index != before_) set_device(index);
  }
  ~OnDevice() {
    if (current_device() != before_) set_device(before_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_;
};

// The memory of this thread's new tensors while it captures a graph.
thread_local std::shared_ptr<GraphMemory> allocate_from;

std::string mebibytes(size_t bytes) {
  return concat((bytes + (size_t{1} << 19)) >> 20, " MiB");
}

class CudaDevice final : public DeviceInterface {
 public:
  CudaDevice(int index, DeviceFacts facts)
      : index_(index), facts_(std::move(facts)), usable_(device_problem(facts_).empty()) {}

  void* allocate(size_t bytes) override {
    if (bytes == 0) return nullptr;
    const OnDevice here(index_);
    const std::lock_guard lock(mutex_);
    void* memory = allocate_from ? allocate_from->allocate(bytes) : cuda::allocate(bytes);
    if (memory == nullptr)
      throw OutOfMemory(out_of_memory_text(bytes), bytes, free_bytes(), bytes_);
    if (allocate_from) {
      in_graph_memory_[memory] = allocate_from;
    } else {
      hold(memory, bytes, memory_user());
    }
    return memory;
  }
  void release(void* memory, size_t bytes) noexcept override {
    if (memory == nullptr) return;
    const std::lock_guard lock(mutex_);
    if (const auto found = in_graph_memory_.find(memory); found != in_graph_memory_.end()) {
      const std::shared_ptr<GraphMemory> owner = std::move(found->second);
      in_graph_memory_.erase(found);
      owner->release(memory);
    } else if (allocate_from) {
      allocate_from->keep([this, memory, bytes] { give_back(memory, bytes, cuda::release); });
    } else {
      give_back(memory, bytes, cuda::release);
    }
  }
  void copy(void* to, const void* from, size_t bytes) override {
    const OnDevice here(index_);
    if (bytes > 0) cuda::copy(to, from, bytes);
  }
  void copy_from_host(void* to, const void* from, size_t bytes) override {
    const OnDevice here(index_);
    if (bytes > 0) cuda::copy_from_host(to, from, bytes);
  }
  void copy_to_host(void* to, const void* from, size_t bytes) override {
    const OnDevice here(index_);
    if (bytes > 0) cuda::copy_to_host(to, from, bytes);
  }
  void set_zero(void* memory, size_t bytes) override {
    const OnDevice here(index_);
    if (bytes > 0) fill_bytes(memory, 0, bytes);
  }
  void synchronize() override {
    const OnDevice here(index_);
    cuda::synchronize();
  }
  std::string description() const override {
    return concat(facts_.name, ", compute capability ", facts_.major, ".", facts_.minor, ", ",
                  mebibytes(facts_.memory));
  }

  const DeviceFacts& facts() const { return facts_; }
  bool usable() const { return usable_; }

  std::shared_ptr<GraphMemory> make_graph_memory() {
    return std::make_shared<GraphMemory>(
        [this](size_t bytes) {
          const OnDevice here(index_);
          const std::lock_guard lock(mutex_);
          void* memory = allocate_lasting(bytes);
          if (memory != nullptr) hold(memory, bytes, "CUDA graphs");
          return memory;
        },
        [this](void* memory, size_t bytes) { give_back(memory, bytes, release_lasting); });
  }

  size_t bytes() {
    const std::lock_guard lock(mutex_);
    return bytes_;
  }
  size_t peak() {
    const std::lock_guard lock(mutex_);
    return peak_;
  }
  void reset_peak() {
    const std::lock_guard lock(mutex_);
    peak_ = bytes_;
  }

 private:
  void hold(void* memory, size_t bytes, const char* user) {
    blocks_[memory] = user;
    by_user_[user] += bytes;
    bytes_ += bytes;
    peak_ = std::max(peak_, bytes_);
  }
  void give_back(void* memory, size_t bytes, void (*give)(void*)) {
    const OnDevice here(index_);
    const std::lock_guard lock(mutex_);
    const auto block = blocks_.find(memory);
    by_user_[block->second] -= bytes;
    blocks_.erase(block);
    bytes_ -= bytes;
    give(memory);
  }
  std::string out_of_memory_text(size_t requested) const {
    std::vector<std::pair<size_t, std::string>> users;
    for (const auto& [user, held] : by_user_) users.emplace_back(held, user);
    std::sort(users.rbegin(), users.rend());
    std::string text = concat("out of memory on ", name_of({DeviceKind::cuda, index_}), ": ",
                              mebibytes(requested), " requested by ", memory_user(), ", ",
                              mebibytes(free_bytes()), " free of ", mebibytes(facts_.memory));
    const size_t listed = std::min<size_t>(3, users.size());
    for (size_t i = 0; i < listed; ++i) {
      text += concat(i == 0 ? "; the largest users are " : ", ", users[i].second, " (",
                     mebibytes(users[i].first), ")");
    }
    return text;
  }

  const int index_;
  const DeviceFacts facts_;
  const bool usable_;
  std::recursive_mutex mutex_;  // graph memory takes and gives back while this is held
  std::unordered_map<void*, std::string> blocks_;
  std::unordered_map<void*, std::shared_ptr<GraphMemory>> in_graph_memory_;
  std::map<std::string, size_t> by_user_;
  size_t bytes_ = 0;
  size_t peak_ = 0;
};

struct KnownDevices {
  std::string problem;  // why there are none
  std::vector<std::unique_ptr<CudaDevice>> list;
};

// Never destroyed: tensors in static objects may outlive any order of destruction.
KnownDevices& known_devices() {
  static auto& known = *[] {
    auto* found = new KnownDevices;
    for (DeviceFacts& facts : devices(&found->problem)) {
      const auto index = static_cast<int>(found->list.size());
      found->list.push_back(std::make_unique<CudaDevice>(index, std::move(facts)));
    }
    return found;
  }();
  return known;
}

// Why no device of that index can be used, and the remedy.
std::string why_not(const KnownDevices& known, int index) {
  const bool exists = index >= 0 && static_cast<size_t>(index) < known.list.size();
  if (known.list.empty() || exists) {
    const std::string problem =
        exists ? device_problem(known.list[static_cast<size_t>(index)]->facts()) : known.problem;
    return problem + "; use --device cpu, or `linnet doctor` to see what is there";
  }
  std::string text = "this machine has ";
  for (size_t i = 0; i < known.list.size(); ++i) {
    text += concat(i == 0 ? "" : ", ", "cuda:", i, " (", known.list[i]->facts().name, ")");
  }
  return text + "; use one of these, or --device cpu";
}

CudaDevice& find(int index) {
  const KnownDevices& known = known_devices();
  const auto i = static_cast<size_t>(index);
  if (index >= 0 && i < known.list.size() && known.list[i]->usable()) return *known.list[i];
  throw UsageError(concat("device cuda:", index, " cannot be used: ", why_not(known, index)));
}

}  // namespace

DeviceInterface& device(int index) {
  return find(index);
}
size_t allocated_bytes(int index) {
  return find(index).bytes();
}
size_t peak_allocated_bytes(int index) {
  return find(index).peak();
}
void reset_peak_memory(int index) {
  find(index).reset_peak();
}

std::shared_ptr<GraphMemory> make_graph_memory(int index) {
  return find(index).make_graph_memory();
}

AllocateFrom::AllocateFrom(std::shared_ptr<GraphMemory> memory)
    : before_(std::exchange(allocate_from, std::move(memory))) {}

AllocateFrom::~AllocateFrom() {
  allocate_from = std::move(before_);
}

}  // namespace linnet::cuda
