#include "core/cuda/stream_owner.h"

#include <array>
#include <atomic>
#include <thread>

#include "core/error.h"

namespace linnet::cuda {
namespace {

constexpr size_t kMaxDevices = 64;
std::array<std::atomic<std::thread::id>, kMaxDevices> owners{};  // no thread: nobody's

}  // namespace

void require_stream_owner(int device) {
  std::atomic<std::thread::id>& owner = owners.at(static_cast<size_t>(device));
  const std::thread::id self = std::this_thread::get_id();
  if (owner.load() == self) return;
  std::thread::id nobody;
  require(owner.compare_exchange_strong(nobody, self),
          "CUDA: this thread submits work to cuda:", device,
          ", whose stream belongs to another thread; that one must call cuda::hand_over_stream() "
          "first");
}

void disown_stream(int device) {
  owners.at(static_cast<size_t>(device)) = std::thread::id();
}

}  // namespace linnet::cuda
