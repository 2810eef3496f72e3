// Host memory kept for reuse: fresh pages from the system cost several times what an element-wise
// operation on them does, and a training step requests the same sizes again and again.
#pragma once

#include <cstddef>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace linnet {

// Aligned blocks; freed ones wait for the next request of their size class, large ones also for
// one of at least half their size where none of its class waits. Waiting blocks and blocks in use
// hold at most the largest sum of simultaneous requests so far and a quarter of it (at most 256
// MiB), counted in size classes, which are up to an eighth larger than requests. Thread safe.
// Under sanitizers nothing is kept, so that use after free is seen.
class MemoryCache {
 public:
  MemoryCache() = default;
  ~MemoryCache();
  MemoryCache(const MemoryCache&) = delete;
  MemoryCache& operator=(const MemoryCache&) = delete;

  // 64-byte aligned memory for bytes > 0, or nullptr when there is none.
  void* allocate(size_t bytes);
  // `bytes` as given to allocate.
  void release(void* memory, size_t bytes) noexcept;
  // Bytes held for reuse.
  size_t waiting_bytes() const;

 private:
  struct Block {
    void* memory;
    size_t bytes;
  };
  void drop_oldest();
  // Drops waiting blocks until `more` further bytes fit within the limit, or none waits.
  void drop_beyond(size_t more);
  // The waiting block that fits best, the newest of equal ones; waiting_.end() where none fits.
  std::vector<Block>::iterator best_waiting(size_t size);
  // False where there is no memory for it.
  bool note_larger(const Block& block) noexcept;

  mutable std::mutex mutex_;
  std::vector<Block> waiting_;                      // oldest first
  std::unordered_map<const void*, size_t> larger_;  // in use, of more than their request's class
  size_t waiting_bytes_ = 0;
  size_t used_bytes_ = 0;       // of blocks in use
  size_t requested_bytes_ = 0;  // of their requests
  size_t max_requested_bytes_ = 0;
};

}  // namespace linnet
