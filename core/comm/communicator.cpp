#include "core/comm/communicator.h"

#include <algorithm>

#include "core/error.h"

namespace linnet {
namespace {

void check_values(const char* operation, const Tensor& values) {
  require(values.defined(), Cause{ErrorCode::wrong_type}, operation, ": the tensor is undefined");
}

void check_sum(const char* operation, const Tensor& values) {
  check_values(operation, values);
  require(values.dtype() != DType::u8 && values.dtype() != DType::boolean,
          Cause{ErrorCode::wrong_type}, operation, ": there are no sums of ",
          name_of(values.dtype()), "; convert to i32 or i64");
}

void check_text(const std::string& text) {
  require(text.size() <= kMaxTextBytes, Cause{ErrorCode::out_of_range}, "a text of ", text.size(),
          " bytes is too long to be sent to other ranks: at most ", kMaxTextBytes, " bytes");
}

// Nobody else is there.
class SingleCommunicator final : public Communicator {
 public:
  SingleCommunicator() : Communicator(0, 1, kDefaultTimeLimit) {}
  std::string_view name() const override { return "single"; }
  bool reaches(Device) const override { return true; }

 private:
  void all_reduce_sum_checked(const Tensor&) override {}
  void reduce_scatter_sum_checked(const Tensor&) override {}
  void all_gather_checked(const Tensor&) override {}
  void broadcast_checked(const Tensor&, int) override {}
  void send_checked(const Tensor&, int) override {}
  void receive_checked(const Tensor&, int) override {}
};

}  // namespace

void Communicator::set_time_limit(std::chrono::milliseconds limit) {
  require(limit.count() > 0, Cause{ErrorCode::out_of_range},
          "the time limit of a communicator must be positive, got ", limit.count(), " ms");
  time_limit_ = limit;
}

RankShare Communicator::share(int64_t elements, int rank) const {
  const int64_t step = elements / size_ + (elements % size_ != 0 ? 1 : 0);
  return {std::min(elements, rank * step), std::min(elements, (rank + 1) * step)};
}

void Communicator::check_rank(const char* operation, int other) const {
  require(other >= 0 && other < size_, Cause{ErrorCode::out_of_range}, operation,
          ": there is no rank ", other, "; ranks are 0 to ", size_ - 1);
}

template <typename Body>
void Communicator::run_where_reached(const Tensor& values, const Body& body) {
  if (reaches(values.device())) return body(values);
  const Tensor copy = values.to(Device{});
  body(copy);
  values.copy_from(copy);
}

void Communicator::all_reduce_sum(const Tensor& values) {
  check_sum("all_reduce_sum", values);
  run_where_reached(values, [&](const Tensor& reached) { all_reduce_sum_checked(reached); });
}

void Communicator::start_all_reduce_sum(const Tensor& values) {
  check_sum("all_reduce_sum", values);
  run_where_reached(values, [&](const Tensor& reached) { start_all_reduce_sum_checked(reached); });
}

void Communicator::reduce_scatter_sum(const Tensor& values) {
  check_sum("reduce_scatter_sum", values);
  run_where_reached(values, [&](const Tensor& reached) { reduce_scatter_sum_checked(reached); });
}

void Communicator::all_gather(const Tensor& values) {
  check_values("all_gather", values);
  run_where_reached(values, [&](const Tensor& reached) { all_gather_checked(reached); });
}

void Communicator::broadcast(const Tensor& values, int root) {
  check_values("broadcast", values);
  check_rank("broadcast", root);
  run_where_reached(values, [&](const Tensor& reached) { broadcast_checked(reached, root); });
}

void Communicator::send(const Tensor& values, int to) {
  check_values("send", values);
  check_rank("send", to);
  require(to != rank_, Cause{ErrorCode::out_of_range}, "send: rank ", to, " is this rank itself");
  run_where_reached(values, [&](const Tensor& reached) { send_checked(reached, to); });
}

void Communicator::receive(const Tensor& values, int from) {
  check_values("receive", values);
  check_rank("receive", from);
  require(from != rank_, Cause{ErrorCode::out_of_range}, "receive: rank ", from,
          " is this rank itself");
  run_where_reached(values, [&](const Tensor& reached) { receive_checked(reached, from); });
}

void Communicator::barrier() {
  all_gather(Tensor::empty({0}, DType::u8));
}

int64_t Communicator::sum(int64_t value) {
  const Tensor one = Tensor::from(std::vector<int64_t>{value}, {1});
  all_reduce_sum(one);
  return *one.data<int64_t>();
}

double Communicator::sum(double value) {
  const Tensor one = Tensor::from(std::vector<double>{value}, {1});
  all_reduce_sum(one);
  return *one.data<double>();
}

std::vector<std::string> Communicator::all_gather_text(const std::string& text) {
  check_text(text);
  const Tensor lengths = Tensor::zeros({size_}, DType::i64);
  int64_t* length = lengths.data<int64_t>();
  length[rank_] = static_cast<int64_t>(text.size());
  all_gather(lengths);
  const int64_t longest = *std::max_element(length, length + size_);
  const Tensor bytes = Tensor::zeros({size_, longest}, DType::u8);
  char* all = static_cast<char*>(bytes.raw());
  std::copy(text.begin(), text.end(), all + rank_ * longest);
  all_gather(bytes);
  std::vector<std::string> texts;
  for (int i = 0; i < size_; ++i) {
    texts.emplace_back(all + i * longest, static_cast<size_t>(length[i]));
  }
  return texts;
}

std::string Communicator::broadcast_text(const std::string& text, int root) {
  if (rank_ == root) check_text(text);
  const Tensor length = Tensor::from(std::vector<int64_t>{static_cast<int64_t>(text.size())}, {1});
  broadcast(length, root);
  const Tensor bytes = Tensor::zeros({*length.data<int64_t>()}, DType::u8);
  if (rank_ == root) std::copy(text.begin(), text.end(), static_cast<char*>(bytes.raw()));
  broadcast(bytes, root);
  return {static_cast<const char*>(bytes.raw()), bytes.bytes()};
}

std::unique_ptr<Communicator> make_single_communicator() {
  return std::make_unique<SingleCommunicator>();
}

}  // namespace linnet
