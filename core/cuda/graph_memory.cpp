#include "core/cuda/graph_memory.h"

#include <iterator>

namespace linnet::cuda {
namespace {

constexpr size_t kAlignment = 512;  // at least cudaMalloc's own

}  // namespace

GraphMemory::GraphMemory(Take take, Give give) : take_(std::move(take)), give_(std::move(give)) {}

GraphMemory::~GraphMemory() {
  for (const auto& [memory, bytes] : segments_) give_(memory, bytes);
  for (const auto& give : kept_) give();
}

void* GraphMemory::allocate(size_t bytes) {
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  auto best = regions_.end();
  for (auto region = regions_.begin(); region != regions_.end(); ++region) {
    if (!region->second.free || region->second.bytes < bytes) continue;
    if (best == regions_.end() || region->second.bytes < best->second.bytes) best = region;
  }
  if (best == regions_.end()) return new_segment(bytes);
  auto& [begin, region] = *best;
  region.free = false;
  if (region.bytes > bytes) {
    regions_.emplace(begin + bytes, Region{region.bytes - bytes, true, false});
    region.bytes = bytes;
  }
  return begin;
}

void* GraphMemory::new_segment(size_t bytes) {
  void* memory = take_(bytes);
  if (memory == nullptr) return nullptr;
  segments_.emplace_back(memory, bytes);
  regions_.emplace(static_cast<char*>(memory), Region{bytes, false, true});
  bytes_ += bytes;
  return memory;
}

void GraphMemory::release(void* block) {
  auto region = regions_.find(static_cast<char*>(block));
  region->second.free = true;
  const auto next = std::next(region);
  if (next != regions_.end() && next->second.free && !next->second.begins) {
    region->second.bytes += next->second.bytes;
    regions_.erase(next);
  }
  if (region->second.begins) return;
  const auto before = std::prev(region);
  if (!before->second.free) return;
  before->second.bytes += region->second.bytes;
  regions_.erase(region);
}

void GraphMemory::keep(std::function<void()> give) {
  kept_.push_back(std::move(give));
}

}  // namespace linnet::cuda
