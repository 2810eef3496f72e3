#include "core/cuda/cuda_device.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

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

std::string mebibytes(size_t bytes) {
  return concat((bytes + (size_t{1} << 19)) >> 20, " MiB");
}

class CudaDevice final : public DeviceInterface {
 public:
  CudaDevice(int index, DeviceFacts facts) : index_(index), facts_(std::move(facts)) {}

  void* allocate(size_t bytes) override {
    if (bytes == 0) return nullptr;
    const OnDevice here(index_);
    void* memory = cuda::allocate(bytes);
    const std::lock_guard lock(mutex_);
    if (memory == nullptr) throw OutOfMemory(shortage(bytes), bytes, free_bytes(), bytes_);
    const char* user = memory_user();
    blocks_[memory] = user;
    by_user_[user] += bytes;
    bytes_ += bytes;
    peak_ = std::max(peak_, bytes_);
    return memory;
  }
  void release(void* memory, size_t bytes) noexcept override {
    if (memory == nullptr) return;
    const std::lock_guard lock(mutex_);
    const auto block = blocks_.find(memory);
    by_user_[block->second] -= bytes;
    blocks_.erase(block);
    bytes_ -= bytes;
    const OnDevice here(index_);
    cuda::release(memory);
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
  std::string shortage(size_t asked) const {
    std::vector<std::pair<size_t, std::string>> users;
    for (const auto& [user, held] : by_user_) users.emplace_back(held, user);
    std::sort(users.rbegin(), users.rend());
    std::string text = concat("out of memory on ", name_of({DeviceKind::cuda, index_}), ": ",
                              mebibytes(asked), " asked for by ", memory_user(), ", ",
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
  std::mutex mutex_;
  std::unordered_map<void*, std::string> blocks_;
  std::map<std::string, size_t> by_user_;
  size_t bytes_ = 0;
  size_t peak_ = 0;
};

// Never destroyed: tensors in static objects may outlive any order of destruction.
std::vector<std::unique_ptr<CudaDevice>>& known_devices(std::string& why) {
  static std::string reason;
  static auto& found = *[] {
    auto* list = new std::vector<std::unique_ptr<CudaDevice>>;
    int index = 0;
    for (DeviceFacts& facts : devices(&reason)) {
      const bool usable = facts.major >= 8;
      if (!usable && reason.empty()) {
        reason = concat(facts.name, " has compute capability ", facts.major, ".", facts.minor,
                        ", linnet needs 8.0 for bf16");
      }
      list->push_back(usable ? std::make_unique<CudaDevice>(index, std::move(facts)) : nullptr);
      ++index;
    }
    return list;
  }();
  why = reason;
  return found;
}

CudaDevice& find(int index) {
  std::string why;
  auto& all = known_devices(why);
  const auto i = static_cast<size_t>(index);
  require_usage(index >= 0 && i < all.size() && all[i] != nullptr, "device cuda:", index,
                " cannot be used: ",
                !why.empty() ? why : concat("this machine has ", all.size(), " CUDA devices"),
                "; use --device cpu, or `linnet doctor` to see what is there");
  return *all[i];
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

}  // namespace linnet::cuda
