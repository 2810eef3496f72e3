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
  auto best = pieces_.end();
  for (auto piece = pieces_.begin(); piece != pieces_.end(); ++piece) {
    if (!piece->second.free || piece->second.bytes < bytes) continue;
    if (best == pieces_.end() || piece->second.bytes < best->second.bytes) best = piece;
  }
  if (best == pieces_.end()) return new_segment(bytes);
  auto& [begin, piece] = *best;
  piece.free = false;
  if (piece.bytes > bytes) {
    pieces_.emplace(begin + bytes, Piece{piece.bytes - bytes, true, false});
    piece.bytes = bytes;
  }
  return begin;
}

void* GraphMemory::new_segment(size_t bytes) {
  void* memory = take_(bytes);
  if (memory == nullptr) return nullptr;
  segments_.emplace_back(memory, bytes);
  pieces_.emplace(static_cast<char*>(memory), Piece{bytes, false, true});
  bytes_ += bytes;
  return memory;
}

void GraphMemory::release(void* block) {
  auto piece = pieces_.find(static_cast<char*>(block));
  piece->second.free = true;
  const auto next = std::next(piece);
  if (next != pieces_.end() && next->second.free && !next->second.begins) {
    piece->second.bytes += next->second.bytes;
    pieces_.erase(next);
  }
  if (piece->second.begins) return;
  const auto before = std::prev(piece);
  if (!before->second.free) return;
  before->second.bytes += piece->second.bytes;
  pieces_.erase(piece);
}

void GraphMemory::keep(std::function<void()> give) {
  kept_.push_back(std::move(give));
}

}  // namespace linnet::cuda
