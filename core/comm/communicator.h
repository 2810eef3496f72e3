// Several processes ("ranks") that compute together: sums and copies of tensors between them.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"

namespace linnet {

// How long an operation waits for the other ranks unless something else is asked for.
inline constexpr std::chrono::milliseconds kDefaultTimeLimit = std::chrono::minutes(5);
// The longest text that ranks exchange, and the longest value of a Store.
inline constexpr size_t kMaxTextBytes = size_t{64} * 1024;

// The elements [begin, end) of a tensor that one rank owns.
struct RankShare {
  int64_t begin = 0, end = 0;
  int64_t elements() const { return end - begin; }
};

// All ranks call the same operations in the same order, with the same dtypes and element counts.
// Tensors are of any shape; every operation works in place. Afterwards what ranks have in common
// has the same bits on all of them, and the same bits in every run. Tensors of a device pass
// through host memory, which cannot be captured in a graph, unless the communicator is that of
// NCCL.
//
// Each operation ends within the time limit, or throws Error, which names this rank, the operation
// and the rank that is at fault. After that the communicator is of no more use: every further call
// throws the same error, and the other ranks fail, too, within the limit.
//
// For one thread at a time. Its bytes travel unencrypted, and nobody proves who he is.
class Communicator {
 public:
  Communicator(int rank, int size, std::chrono::milliseconds time_limit)
      : rank_(rank), size_(size), time_limit_(time_limit) {}
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  // "single", "gloo" or "nccl".
  virtual std::string_view name() const = 0;
  // Whether operations take tensors of this device as they are. On a GPU they can be captured then.
  virtual bool reaches(Device device) const { return device == Device(); }
  std::chrono::milliseconds time_limit() const { return time_limit_; }
  // Of the operations from now on. Throws Error unless it is positive.
  void set_time_limit(std::chrono::milliseconds limit);

  // The share of `rank` of so many elements: shares follow each other in the order of the ranks,
  // all of the same length but for the last ones, which may be shorter or empty.
  RankShare share(int64_t elements, int rank) const;
  RankShare share(int64_t elements) const { return share(elements, rank_); }

  // Sums are added in the order of the ranks: bf16 in f32 and rounded once, integers modulo their
  // range. dtypes f32, f64, bf16, i32, i64. all_reduce_sum has the bits of reduce_scatter_sum
  // followed by all_gather. Takes as many bytes again while it runs.
  void all_reduce_sum(const Tensor& values);
  // The same, but it may return before the end: a GPU that is reached sums beside what is submitted
  // after this. Until finish_sums() nothing may touch the values.
  void start_all_reduce_sum(const Tensor& values);
  // Waits for the sums that were started, and for those of graphs that were replayed. In a capture:
  // lets what is captured after it wait.
  virtual void finish_sums() {}
  // Afterwards this rank's share of `values` holds the sum; the other elements are unchanged.
  void reduce_scatter_sum(const Tensor& values);
  // Every rank's share of `values` is copied to all. Any dtype.
  void all_gather(const Tensor& values);
  // The values of rank `root` are copied to all. Any dtype.
  void broadcast(const Tensor& values, int root);
  // From one rank to another one, which calls receive. Any dtype.
  void send(const Tensor& values, int to);
  void receive(const Tensor& values, int from);
  // Waits until all ranks are here.
  void barrier();

  // Small values: the sum over ranks; the texts of all ranks in their order; the text of `root`.
  // Texts have at most kMaxTextBytes bytes.
  int64_t sum(int64_t value);
  double sum(double value);
  std::vector<std::string> all_gather_text(const std::string& text);
  std::string broadcast_text(const std::string& text, int root);

  // Bytes of tensors and small values that this rank has sent, without what the transport adds.
  int64_t bytes_sent() const { return bytes_sent_; }

 protected:
  void count_sent(int64_t bytes) { bytes_sent_ += bytes; }

 private:
  // Runs `body` on the values, or on a copy in host memory that takes their place afterwards.
  template <typename Body>
  void run_where_reached(const Tensor& values, const Body& body);
  // Arguments are checked before.
  virtual void all_reduce_sum_checked(const Tensor& values) = 0;
  virtual void start_all_reduce_sum_checked(const Tensor& values) {
    all_reduce_sum_checked(values);
  }
  virtual void reduce_scatter_sum_checked(const Tensor& values) = 0;
  virtual void all_gather_checked(const Tensor& values) = 0;
  virtual void broadcast_checked(const Tensor& values, int root) = 0;
  virtual void send_checked(const Tensor& values, int to) = 0;
  virtual void receive_checked(const Tensor& values, int from) = 0;

  void check_rank(const char* operation, int other) const;

  int rank_, size_;
  std::chrono::milliseconds time_limit_;
  int64_t bytes_sent_ = 0;
};

// The communicator of a process that is alone: its operations do nothing.
std::unique_ptr<Communicator> make_single_communicator();

}  // namespace linnet
