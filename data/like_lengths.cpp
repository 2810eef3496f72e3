#include "data/like_lengths.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/random.h"
#include "data/permutation.h"

namespace linnet {
namespace {

constexpr int64_t kMaxLengths = 64;
constexpr int64_t kMinStep = 16;
constexpr int64_t kBlocksOfPool = 128;

int64_t rounded_up(int64_t value, int64_t step) {
  return (value + step - 1) / step * step;
}

}  // namespace

int64_t padded_length(int64_t longest, int64_t limit) {
  const int64_t step = rounded_up((limit + kMaxLengths - 1) / kMaxLengths, kMinStep);
  return std::min(limit, rounded_up(std::max<int64_t>(longest, 1), step));
}

LikeLengthOrder::LikeLengthOrder(std::vector<int64_t> lengths, int64_t together, uint64_t seed)
    : lengths_(std::move(lengths)), together_(together), seed_(seed) {
  require(!lengths_.empty() && together_ > 0,
          "LikeLengthOrder: expected examples, and blocks of at least 1; got ", lengths_.size(),
          " and ", together_);
}

std::vector<int64_t> LikeLengthOrder::make_epoch(int64_t epoch) const {
  const int64_t count = std::ssize(lengths_);
  std::vector<int64_t> shuffled(lengths_.size());
  for (int64_t i = 0; i < count; ++i)
    shuffled[static_cast<size_t>(i)] = permuted_index(seed_, epoch, i, count);
  // Blocks begin at multiples of together_ in the stream, not in the epoch.
  const int64_t before = epoch * count % together_;
  const int64_t head = std::min(count, before == 0 ? 0 : together_ - before);
  const int64_t blocks = (count - head) / together_;
  const auto first = shuffled.begin() + head;
  for (int64_t pool = 0; pool < blocks; pool += kBlocksOfPool) {
    std::stable_sort(first + pool * together_,
                     first + std::min(pool + kBlocksOfPool, blocks) * together_,
                     [this](int64_t a, int64_t b) {
                       return lengths_[static_cast<size_t>(a)] < lengths_[static_cast<size_t>(b)];
                     });
  }
  std::vector<int64_t> order = shuffled;
  const uint64_t seed = seed_ ^ hash_name("order of blocks");
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t from = permuted_index(seed, epoch, block, blocks);
    std::copy_n(first + from * together_, together_, order.begin() + head + block * together_);
  }
  return order;
}

int64_t LikeLengthOrder::example(int64_t place) const {
  require(place >= 0, "LikeLengthOrder: a place is at least 0, got ", place);
  const int64_t count = std::ssize(lengths_), epoch = place / count;
  const std::scoped_lock lock(mutex_);
  if (epoch != epoch_) {
    order_ = make_epoch(epoch);
    epoch_ = epoch;
  }
  return order_[static_cast<size_t>(place % count)];
}

std::vector<int64_t> LikeLengthOrder::longest_first(int64_t count) const {
  require(0 <= count && count <= std::ssize(lengths_), "LikeLengthOrder: ", count, " of ",
          lengths_.size(), " examples");
  std::vector<int64_t> examples(static_cast<size_t>(count));
  std::iota(examples.begin(), examples.end(), int64_t{0});
  std::stable_sort(examples.begin(), examples.end(), [this](int64_t a, int64_t b) {
    return lengths_[static_cast<size_t>(a)] > lengths_[static_cast<size_t>(b)];
  });
  return examples;
}

}  // namespace linnet
