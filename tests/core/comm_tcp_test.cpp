// The store that rank 0 keeps, those who should not be in it, and ranks that meet there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "core/comm/tcp_socket.h"
#include "core/comm/tcp_store.h"
#include "tests/core/comm_ranks.h"
#include "tests/core/held_port.h"
#include "tests/error_helpers.h"

namespace linnet {
namespace {

using std::chrono::milliseconds;
using test::causes_of;
using testing::HasSubstr;

Deadline in(milliseconds time) {
  return std::chrono::steady_clock::now() + time;
}

TcpStoreOptions options(int rank, int port, const std::string& token = "ours") {
  return {.rank = rank, .host = "127.0.0.1", .port = port, .ports = 1, .token = token};
}

// What comes back for these bytes before the connection ends.
std::string answer_to(int port, const std::string& bytes) {
  const Socket socket = connect_to(addresses_of("127.0.0.1", port).front(), in(milliseconds(5000)));
  EXPECT_TRUE(socket);
  EXPECT_EQ(::send(socket.descriptor(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
  std::string all;
  char some[256];
  while (wait_for(socket, POLLIN, in(milliseconds(5000)))) {
    const ssize_t count = ::recv(socket.descriptor(), some, sizeof(some), 0);
    if (count <= 0) return all;
    all.append(some, static_cast<size_t>(count));
  }
  return all + "(still open)";
}

TEST(TcpStore, KeepsTheFirstValueOfAKey) {
  const int port = test::free_port();
  const TcpStore host = make_tcp_store(options(0, port), in(milliseconds(5000)));
  const TcpStore guest = make_tcp_store(options(1, port), in(milliseconds(5000)));
  EXPECT_EQ(host.address, "127.0.0.1");
  EXPECT_EQ(guest.address, "127.0.0.1");
  EXPECT_EQ(guest.store->get("key"), std::nullopt);
  EXPECT_TRUE(guest.store->add("key", std::string("a\0b", 3)));
  EXPECT_FALSE(host.store->add("key", "c"));
  EXPECT_EQ(host.store->get("key"), std::string("a\0b", 3));
  EXPECT_EQ(guest.store->get("key"), std::string("a\0b", 3));
  guest.store->remove("key");
  guest.store->remove("key");
  EXPECT_TRUE(host.store->add("key", ""));
  EXPECT_EQ(guest.store->get("key"), "");
  const std::string longest(kMaxTextBytes, '\xff');
  EXPECT_TRUE(guest.store->add("long", longest));
  EXPECT_EQ(guest.store->get("long"), longest);
  EXPECT_EQ(causes_of([&] { guest.store->add("longer", longest + "x"); }), "out_of_range");
  EXPECT_EQ(causes_of([&] { host.store->add("longer", longest + "x"); }), "out_of_range");
  EXPECT_EQ(guest.store->wait("never", in(milliseconds(50))), std::nullopt);
}

TEST(TcpStore, WaitsForRankZeroAndForItsGuests) {
  const int port = test::free_port();
  std::thread late([&] {
    std::this_thread::sleep_for(milliseconds(100));
    const TcpStore host = make_tcp_store(options(0, port), in(milliseconds(5000)));
    EXPECT_EQ(host.store->wait("come", in(milliseconds(20'000))), "yes");
    host.store->wait_for_clients(in(milliseconds(20'000)));
  });
  auto guest = make_tcp_store(options(1, port), in(milliseconds(20'000)));
  EXPECT_TRUE(guest.store->add("come", "yes"));
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(guest.store->get("come"), "yes");
  guest.store = nullptr;
  late.join();

  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(causes_of([&] { make_tcp_store(options(1, port), in(milliseconds(300))); }), "system");
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(5000));
}

TEST(TcpStore, TellsWhenRankZeroHasEnded) {
  const int port = test::free_port();
  auto host = make_tcp_store(options(0, port), in(milliseconds(5000)));
  const TcpStore guest = make_tcp_store(options(1, port), in(milliseconds(5000)));
  host.store = nullptr;
  EXPECT_EQ(causes_of([&] { guest.store->get("key"); }), "system");
}

TEST(TcpStore, AWrongTokenIsRefused) {
  const int port = test::free_port();
  const TcpStore host = make_tcp_store(options(0, port), in(milliseconds(5000)));
  for (const char* token : {"", "our", "oursx", "Ours"}) {
    EXPECT_EQ(causes_of([&] { make_tcp_store(options(1, port, token), in(milliseconds(5000))); }),
              "conflict LINNET_TOKEN")
        << token;
  }
  // Another job's store on the first of several ports is no reason to give up.
  TcpStoreOptions several = options(1, port, "theirs");
  several.ports = 2;
  EXPECT_EQ(causes_of([&] { make_tcp_store(several, in(milliseconds(200))); }),
            "conflict LINNET_TOKEN");
}

TEST(TcpStore, StrangersAreShownTheDoorAndHarmNobody) {
  const int port = test::free_port();
  const TcpStore host = make_tcp_store(options(0, port), in(milliseconds(5000)));
  const TcpStore guest = make_tcp_store(options(1, port), in(milliseconds(5000)));
  EXPECT_EQ(answer_to(port, "GET / HTTP/1.1\r\n\r\n"), "");
  EXPECT_EQ(answer_to(port, store_message::bytes_of({'g', "key", ""})), "");
  EXPECT_EQ(answer_to(port, store_message::bytes_of({'h', "linnet-store-0", "ours"})), "");
  // Too long, before and after the hello.
  const std::string too_long("a\x03\x00\x01\x00\x01key", 9);
  const std::string hello = store_message::bytes_of({'h', store_message::kProtocol, "ours"});
  const std::string yes = store_message::bytes_of({'y'}), refusal = store_message::bytes_of({'l'});
  EXPECT_EQ(answer_to(port, "h" + too_long.substr(1)), refusal);
  EXPECT_EQ(answer_to(port, hello + too_long), yes + refusal);
  // Half a message, and nothing more.
  {
    const Socket half = connect_to(addresses_of("127.0.0.1", port).front(), in(milliseconds(5000)));
    ASSERT_TRUE(half);
    EXPECT_GT(::send(half.descriptor(), hello.data(), 5, MSG_NOSIGNAL), 0);
    EXPECT_TRUE(guest.store->add("key", "value"));
  }
  EXPECT_EQ(guest.store->get("key"), "value");
}

TEST(TcpStore, APortInUseIsNamedOrPassedOver) {
  const test::HeldPort held;
  EXPECT_EQ(causes_of([&] { make_tcp_store(options(0, held.port), in(milliseconds(5000))); }),
            "conflict MASTER_PORT");
  TcpStoreOptions rank0 = options(0, held.port), rank1 = options(1, held.port);
  rank0.ports = rank1.ports = 16;
  const TcpStore host = make_tcp_store(rank0, in(milliseconds(5000)));
  const TcpStore guest = make_tcp_store(rank1, in(milliseconds(20'000)));
  EXPECT_TRUE(guest.store->add("key", "value"));
  EXPECT_EQ(host.store->get("key"), "value");
}

TEST(TcpStore, AnAddressThatIsNotThisMachinesIsNamed) {
  TcpStoreOptions elsewhere = options(0, test::free_port());
  elsewhere.host = "203.0.113.7";  // for documentation
  EXPECT_EQ(causes_of<UsageError>([&] { make_tcp_store(elsewhere, in(milliseconds(5000))); }),
            "conflict MASTER_ADDR");
}

class CommTcp : public test::CommRanks {};

// As torchrun gives them, and as users do who start ranks by hand; the port differs with the size,
// which tells the runs of a test apart.
test::RankNames met_at(int port, std::vector<std::string> others = {}) {
  others.push_back("MASTER_ADDR=localhost");
  others.push_back(concat("MASTER_PORT=", port));
  return {"RANK", "WORLD_SIZE", std::move(others)};
}

TEST_F(CommTcp, RanksMeetAtAnAddressAndAPort) {
  const auto body = [](Communicator& ranks) {
    EXPECT_EQ(ranks.sum(int64_t{1}), ranks.size());
    EXPECT_EQ(ranks.name(), "gloo");
  };
  const test::HeldPort held;  // by torchrun's agent
  test::pass_on_ranks(2, body,
                      met_at(held.port, {"TORCHELASTIC_USE_AGENT_STORE=True", "LOCAL_WORLD_SIZE=2",
                                         "TORCHELASTIC_RUN_ID=a"}));
  test::pass_on_ranks(3, body, met_at(test::free_port()));
  test::pass_on_ranks(
      4, body,
      {"OMPI_COMM_WORLD_RANK",
       "OMPI_COMM_WORLD_SIZE",
       {concat("LINNET_STORE=tcp://127.0.0.1:", test::free_port()), "LINNET_TOKEN=b"}});
}

// Also rank 0, who keeps the store.
TEST_F(CommTcp, AKilledRankIsNamedByAll) {
  for (const int size : {3, 4}) {
    const int killed = 4 - size;
    const std::vector<test::RankEnd> ends = test::run_ranks(
        size,
        [&](Communicator& ranks) {
          ranks.barrier();
          if (ranks.rank() == killed) ::raise(SIGKILL);
          std::string text;
          try {
            while (true) ranks.barrier();
          } catch (const Error& error) {
            text = error.what();
          }
          EXPECT_THAT(text, HasSubstr(concat("all_gather of 0 u8: rank ", killed, " has ended")));
        },
        60, -1, met_at(test::free_port()));
    for (size_t rank = 0; rank < ends.size(); ++rank) {
      EXPECT_EQ(ends[rank].exit_code, static_cast<int>(rank) == killed ? 128 + SIGKILL : 0)
          << ends[rank].output;
    }
  }
}

TEST_F(CommTcp, ARankWithAnotherTokenDoesNotJoin) {
  const std::vector<test::RankEnd> ends =
      test::run_ranks(2, [](Communicator&) { FAIL() << "connected"; }, 4, -1,
                      {"RANK",
                       "WORLD_SIZE",
                       {concat("LINNET_STORE=tcp://127.0.0.1:", test::free_port())},
                       "LINNET_TOKEN"});
  for (const test::RankEnd& end : ends) EXPECT_NE(end.exit_code, 0);
  EXPECT_THAT(ends[0].output, HasSubstr("no sign of rank 1 within 4 s"));
  EXPECT_THAT(ends[1].output, HasSubstr("another token"));
}

}  // namespace
}  // namespace linnet
