// Orders in which examples of like lengths come together, so that batches hold little padding.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

namespace linnet {

// The tokens to which a batch is padded: those of its longest row, rounded up so that at most 64
// lengths arise (each captured CUDA graph and each set of buffers is of one); at most `limit`.
int64_t padded_length(int64_t longest, int64_t limit);

// The endless stream of shuffled epochs, where each `together` examples that begin at a multiple
// of `together` are of like lengths, the shortest first. An epoch is permuted and cut into pools
// of some hundred such blocks; each pool is sorted by length and cut again, and then the blocks of
// the epoch are permuted. The examples of a block that two epochs share are in random order. Safe
// to call from several threads.
class LikeLengthOrder {
 public:
  // `lengths`: of the examples. Throws Error unless there are any and `together` > 0.
  LikeLengthOrder(std::vector<int64_t> lengths, int64_t together, uint64_t seed);
  // The example at that place, from 0: a pure function of the arguments. An epoch has each example
  // once.
  int64_t example(int64_t place) const;
  // The first `count` examples, the longest first: for scoring, where order does not matter.
  std::vector<int64_t> longest_first(int64_t count) const;

 private:
  std::vector<int64_t> make_epoch(int64_t epoch) const;

  std::vector<int64_t> lengths_;
  int64_t together_;
  uint64_t seed_;
  // The epoch that was asked for last: making one takes a sort.
  mutable std::mutex mutex_;
  mutable int64_t epoch_ = -1;
  mutable std::vector<int64_t> order_;
};

}  // namespace linnet
