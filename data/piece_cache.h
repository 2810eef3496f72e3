// What tokenizers keep between calls: the ids of frequent pieces of text, and work memory.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "core/hash.h"

namespace linnet {

// A direct-mapped cache of the ids of short pieces: bounded size, a collision overwrites.
class PieceCache {
 public:
  // Appends the ids of `piece`: the remembered ones, or what make() appends, which is remembered.
  template <typename Make>
  void append(std::string_view piece, std::vector<int32_t>& ids, const Make& make) {
    if (piece.size() > kMaxBytes) return make();
    Slot& slot = slots_[hash64(piece) % kSlots];
    if (slot.bytes == piece.size() &&
        std::memcmp(slot.key.data(), piece.data(), piece.size()) == 0) {
      ids.insert(ids.end(), slot.ids.begin(), slot.ids.begin() + slot.count);
      return;
    }
    const size_t before = ids.size();
    make();
    const std::span<const int32_t> made = std::span(ids).subspan(before);
    if (made.size() > kMaxIds) return;
    slot.bytes = static_cast<uint8_t>(piece.size());
    slot.count = static_cast<uint8_t>(made.size());
    std::copy(piece.begin(), piece.end(), slot.key.begin());
    std::copy(made.begin(), made.end(), slot.ids.begin());
  }

 private:
  static constexpr size_t kMaxBytes = 30, kMaxIds = 8, kSlots = size_t{1} << 16;  // 4 MiB
  struct Slot {
    uint8_t bytes = 0, count = 0;  // no piece is empty
    std::array<char, kMaxBytes> key;
    std::array<int32_t, kMaxIds> ids;
  };
  std::vector<Slot> slots_ = std::vector<Slot>(kSlots);
};

// Work memory that is lent to running calls and comes back with what it has learnt: as many objects
// as calls ran at the same time.
template <typename Workspace>
class WorkspacePool {
 public:
  class Loan {
   public:
    explicit Loan(WorkspacePool& pool) : pool_(pool), workspace_(pool.take()) {}
    ~Loan() { pool_.give(std::move(workspace_)); }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    Workspace& operator*() const { return *workspace_; }

   private:
    WorkspacePool& pool_;
    std::unique_ptr<Workspace> workspace_;
  };

 private:
  std::unique_ptr<Workspace> take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) {
      idle_.reserve(++made_);  // so that giving back never allocates
      return std::make_unique<Workspace>();
    }
    auto workspace = std::move(idle_.back());
    idle_.pop_back();
    return workspace;
  }
  void give(std::unique_ptr<Workspace> workspace) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(workspace));
  }
  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> idle_;
  size_t made_ = 0;
};

}  // namespace linnet
