#include "core/comm/message_communicator.h"

#include <array>
#include <cstddef>
#include <deque>
#include <span>
#include <type_traits>
#include <utility>

#include "core/comm/rank_sum.h"
#include "core/comm/transport.h"
#include "core/error.h"
#include "core/version.h"

namespace linnet {
namespace {

// Sent before every message, so that two ranks notice that they call different things.
using Header = std::array<int64_t, 4>;
constexpr int kHeaders = 0, kValues = 1;  // lanes

enum class Kind : int64_t { all_reduce_sum, reduce_scatter_sum, all_gather, broadcast, message };

// One call, as all ranks have to make it.
struct Operation {
  Kind kind;
  DType dtype;
  int64_t elements;
  int root = -1;  // of broadcast; the sender of a message

  Header header() const {
    return {static_cast<int64_t>(kind), static_cast<int64_t>(dtype), elements, root};
  }
  std::string text() const {
    constexpr std::array kNames{"all_reduce_sum", "reduce_scatter_sum", "all_gather", "broadcast",
                                "send and receive"};
    return concat(kNames.at(static_cast<size_t>(kind)), " of ", elements, " ", name_of(dtype),
                  root < 0 ? "" : concat(" from rank ", root));
  }
};

Operation operation_of(const Header& header) {
  return {static_cast<Kind>(header[0]), static_cast<DType>(header[1]), header[2],
          static_cast<int>(header[3])};
}

// Thrown where two ranks call different operations.
struct Mismatch {
  int rank;
  Operation theirs;
};

// The messages of one rank in one step of an operation. All are on their way before the first is
// waited for.
class Exchange {
 public:
  Exchange(Transport& transport, const Operation& operation, Deadline deadline)
      : transport_(transport), header_(operation.header()), deadline_(deadline) {}

  void send(int to, std::span<const std::byte> bytes) {
    sent_.push_back(transport_.send(to, kHeaders, header_.data(), sizeof(Header)));
    if (!bytes.empty()) {
      sent_.push_back(transport_.send(to, kValues, bytes.data(), bytes.size()));
    }
  }

  void receive(int from, std::span<std::byte> bytes) {
    Expected& expected = expected_.emplace_back(Expected{from, bytes, {}, nullptr});
    expected.message = transport_.receive(from, kHeaders, expected.header.data(), sizeof(Header));
  }

  void finish() {
    for (Expected& expected : expected_) {
      expected.message->wait(deadline_);
      expected.message = nullptr;
      if (expected.header != header_) {
        throw Mismatch{expected.from, operation_of(expected.header)};
      }
      if (!expected.bytes.empty()) {
        expected.message = transport_.receive(expected.from, kValues, expected.bytes.data(),
                                              expected.bytes.size());
      }
    }
    for (const Expected& expected : expected_) {
      if (expected.message != nullptr) expected.message->wait(deadline_);
    }
    for (const auto& message : sent_) message->wait(deadline_);
  }

 private:
  struct Expected {
    int from;
    std::span<std::byte> bytes;
    Header header;
    std::unique_ptr<Transport::Message> message;
  };

  Transport& transport_;
  Header header_;
  Deadline deadline_;
  std::vector<std::unique_ptr<Transport::Message>> sent_;
  std::deque<Expected> expected_;  // their headers must not move
};

std::span<std::byte> bytes_of(const Tensor& values, RankShare share) {
  const auto width = static_cast<int64_t>(size_of(values.dtype()));
  return {static_cast<std::byte*>(values.raw()) + share.begin * width,
          static_cast<size_t>(share.elements() * width)};
}

class MessageCommunicator final : public Communicator {
 public:
  MessageCommunicator(const CommunicatorOptions& options, std::unique_ptr<Store> store);
  std::string_view name() const override { return "gloo"; }

 private:
  void all_reduce_sum_checked(const Tensor& values) override {
    const Operation operation{Kind::all_reduce_sum, values.dtype(), values.elements()};
    run(operation, [&] {
      reduce_scatter(operation, values);
      gather(operation, values);
    });
  }
  void reduce_scatter_sum_checked(const Tensor& values) override {
    const Operation operation{Kind::reduce_scatter_sum, values.dtype(), values.elements()};
    run(operation, [&] { reduce_scatter(operation, values); });
  }
  void all_gather_checked(const Tensor& values) override {
    const Operation operation{Kind::all_gather, values.dtype(), values.elements()};
    run(operation, [&] { gather(operation, values); });
  }
  void broadcast_checked(const Tensor& values, int root) override;
  void send_checked(const Tensor& values, int to) override;
  void receive_checked(const Tensor& values, int from) override;

  void meet();
  template <typename Body>
  void run(const Operation& operation, const Body& body);
  [[noreturn]] void fail(const std::string& operation, const std::string& finding);
  Exchange exchange(const Operation& operation) { return {*transport_, operation, deadline_}; }
  void send(Exchange& messages, int to, std::span<const std::byte> bytes) {
    messages.send(to, bytes);
    count_sent(static_cast<int64_t>(bytes.size()));
  }
  void reduce_scatter(const Operation& operation, const Tensor& values);
  void gather(const Operation& operation, const Tensor& values);
  std::string self() const { return concat("rank ", rank(), " of ", size()); }
  static std::string rank_key(int rank) { return concat("rank-", rank); }

  std::unique_ptr<Store> store_;
  std::unique_ptr<Transport> transport_;
  Deadline deadline_;  // of the operation that runs
  std::string failure_;
};

constexpr const char* kFailureKey = "failure";

MessageCommunicator::MessageCommunicator(const CommunicatorOptions& options,
                                         std::unique_ptr<Store> store)
    : Communicator(options.rank, options.size, options.time_limit), store_(std::move(store)) {
  deadline_ = std::chrono::steady_clock::now() + options.time_limit;
  meet();
  transport_ = make_gloo_transport(rank(), size(), *store_, options.interface, deadline_);
  // Once all are connected, nobody needs what led to this rank: the folder is as it was.
  barrier();
  store_->remove(rank_key(rank()));
  store_->remove(concat("gloo-", rank()));       // its addresses
  store_->remove(concat("gloo-rank_", rank()));  // its machine
}

// Until all ranks have come. Who does not, and who is of another kind, is named.
void MessageCommunicator::meet() {
  const std::string build = concat(linnet_version(), " (", git_hash(), ", ", compiler_description(),
                                   "), ", size(), " ranks");
  const bool fresh = !store_->get(kFailureKey) && store_->add(rank_key(rank()), build);
  require(fresh, Cause{ErrorCode::conflict, "LINNET_STORE"}, self(),
          ": the store already has a rank ", rank(),
          " or the failure of a job: every job needs a new one (LINNET_STORE)");
  std::string missing;
  for (int other = 0; other < size(); ++other) {
    const auto found = store_->wait(rank_key(other), deadline_);
    if (!found) {
      missing += concat(missing.empty() ? "" : ", ", other);
      continue;
    }
    require(*found == build, Cause{ErrorCode::conflict}, self(), ": rank ", other,
            " is another linnet, ", *found, ", where this one is ", build,
            "; start the same program on all ranks with one number of them");
  }
  require(missing.empty(), Cause{ErrorCode::system}, self(), ": no sign of rank ", missing,
          " within ", time_limit().count() / 1000.0,
          " s; see whether it was started and what its last lines say");
}

template <typename Body>
void MessageCommunicator::run(const Operation& operation, const Body& body) {
  if (!failure_.empty()) throw Error(Cause{ErrorCode::system}, failure_);
  deadline_ = std::chrono::steady_clock::now() + time_limit();
  try {
    body();
  } catch (const PeerLost& lost) {
    fail(operation.text(),
         lost.in_time ? concat("rank ", lost.rank, " has ended; its last lines say why")
                      : concat("rank ", lost.rank, " did not take part within ",
                               time_limit().count() / 1000.0,
                               " s: it stands still, is slower than that, or waits elsewhere"));
  } catch (const Mismatch& found) {
    fail(operation.text(),
         concat("rank ", found.rank, " calls ", found.theirs.text(), " where rank ", rank(),
                " calls ", operation.text(), "; all ranks must run the same job"));
  }
}

// The first finding is everyone's: a rank that sees its neighbours close their connections reads
// there whom they gave up.
void MessageCommunicator::fail(const std::string& operation, const std::string& finding) {
  std::string first = finding;
  try {
    if (!store_->add(kFailureKey, finding)) first = store_->get(kFailureKey).value_or(finding);
  } catch (const Error&) {  // the store is gone: what this rank saw is all it knows
  }
  transport_ = nullptr;  // tells the others
  failure_ = concat(self(), ", ", operation, ": ", first);
  throw Error(Cause{ErrorCode::system}, failure_);
}

// Every rank gets the other ranks' values of its own share, and adds them in their order.
void MessageCommunicator::reduce_scatter(const Operation& operation, const Tensor& values) {
  const RankShare own = share(values.elements());
  const Tensor others = Tensor::empty({size(), own.elements()}, values.dtype());
  const auto row = [&](int rank) {
    return bytes_of(others, {rank * own.elements(), (rank + 1) * own.elements()});
  };
  std::vector<const void*> sources;
  {
    Exchange messages = exchange(operation);
    for (int other = 0; other < size(); ++other) {
      const std::span<std::byte> bytes = other == rank() ? bytes_of(values, own) : row(other);
      sources.push_back(bytes.data());
      if (other == rank()) continue;
      messages.receive(other, bytes);
      send(messages, other, bytes_of(values, share(values.elements(), other)));
    }
    messages.finish();
  }
  sum_in_order(sources, bytes_of(values, own).data(), own.elements(), values.dtype());
}

void MessageCommunicator::gather(const Operation& operation, const Tensor& values) {
  Exchange messages = exchange(operation);
  for (int other = 0; other < size(); ++other) {
    if (other == rank()) continue;
    messages.receive(other, bytes_of(values, share(values.elements(), other)));
    send(messages, other, bytes_of(values, share(values.elements())));
  }
  messages.finish();
}

void MessageCommunicator::broadcast_checked(const Tensor& values, int root) {
  const Operation operation{Kind::broadcast, values.dtype(), values.elements(), root};
  run(operation, [&] {
    Exchange messages = exchange(operation);
    const std::span<std::byte> all = bytes_of(values, {0, values.elements()});
    if (rank() != root) {
      messages.receive(root, all);
    } else {
      for (int other = 0; other < size(); ++other) {
        if (other != root) send(messages, other, all);
      }
    }
    messages.finish();
  });
}

void MessageCommunicator::send_checked(const Tensor& values, int to) {
  const Operation operation{Kind::message, values.dtype(), values.elements(), rank()};
  run(operation, [&] {
    Exchange messages = exchange(operation);
    send(messages, to, bytes_of(values, {0, values.elements()}));
    messages.finish();
  });
}

void MessageCommunicator::receive_checked(const Tensor& values, int from) {
  const Operation operation{Kind::message, values.dtype(), values.elements(), from};
  run(operation, [&] {
    Exchange messages = exchange(operation);
    messages.receive(from, bytes_of(values, {0, values.elements()}));
    messages.finish();
  });
}

}  // namespace

std::unique_ptr<Communicator> make_gloo_communicator(const CommunicatorOptions& options,
                                                     std::unique_ptr<Store> store) {
  return std::make_unique<MessageCommunicator>(options, std::move(store));
}

}  // namespace linnet
