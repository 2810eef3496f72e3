// What the other ranks say, and how soon, when one of them ends, stands still, never comes or does
// something else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "core/comm/message_communicator.h"
#include "tests/core/comm_ranks.h"

namespace linnet {
namespace {

using std::chrono::milliseconds;
using test::RankEnd;
using test::run_ranks;
using testing::HasSubstr;

// The sentence of the Error that `body` throws within `limit`.
std::string failure_of(const std::function<void()>& body, milliseconds limit) {
  const auto start = std::chrono::steady_clock::now();
  std::string text = "nothing thrown";
  try {
    body();
  } catch (const Error& error) {
    text = error.what();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, limit) << text;
  return text;
}

constexpr milliseconds kSoon{10'000};  // far below the limit of these ranks

class CommFailure : public test::CommRanks {};

TEST_F(CommFailure, AKilledRankIsNamedByAll) {
  for (const int size : {2, 4}) {
    const std::vector<RankEnd> ends = run_ranks(size, [](Communicator& ranks) {
      const Tensor values = Tensor::zeros({1000});
      ranks.all_reduce_sum(values);
      if (ranks.rank() == 1) ::raise(SIGKILL);
      const std::string text = failure_of(
          [&] {
            while (true) ranks.all_reduce_sum(values);
          },
          kSoon);
      EXPECT_EQ(text, concat("rank ", ranks.rank(), " of ", ranks.size(),
                             ", all_reduce_sum of 1000 f32: rank 1 has ended; its last lines say "
                             "why"));
      // Of no more use.
      EXPECT_EQ(failure_of([&] { ranks.barrier(); }, kSoon), text);
    });
    for (size_t rank = 0; rank < ends.size(); ++rank) {
      EXPECT_EQ(ends[rank].exit_code, rank == 1 ? 128 + SIGKILL : 0) << ends[rank].output;
    }
  }
}

TEST_F(CommFailure, ARankThatStandsStillIsNamedByAll) {
  for (const RankEnd& end : run_ranks(4, [](Communicator& ranks) {
         ranks.barrier();
         if (ranks.rank() == 2) {
           std::this_thread::sleep_for(milliseconds(6000));
           EXPECT_THAT(failure_of([&] { ranks.sum(1.0); }, kSoon), HasSubstr("rank 2"));
           return;
         }
         ranks.set_time_limit(milliseconds(1500));
         EXPECT_EQ(failure_of([&] { ranks.sum(1.0); }, kSoon),
                   concat("rank ", ranks.rank(),
                          " of 4, all_reduce_sum of 1 f64: rank 2 did not "
                          "take part within 1.5 s: it stands still, is slower than that, or waits "
                          "elsewhere"));
       })) {
    EXPECT_EQ(end.exit_code, 0) << end.output;
  }
}

TEST_F(CommFailure, ReceivingEndsInTime) {
  for (const RankEnd& end : run_ranks(2, [](Communicator& ranks) {
         ranks.barrier();
         if (ranks.rank() == 1) {
           std::this_thread::sleep_for(milliseconds(6000));
           return;
         }
         ranks.set_time_limit(milliseconds(1000));
         EXPECT_THAT(failure_of([&] { ranks.receive(Tensor::zeros({5}), 1); }, kSoon),
                     HasSubstr("send and receive of 5 f32 from rank 1: rank 1 did not take part"));
       })) {
    EXPECT_EQ(end.exit_code, 0) << end.output;
  }
}

TEST_F(CommFailure, ARankThatNeverComesIsNamed) {
  const auto start = std::chrono::steady_clock::now();
  const std::vector<RankEnd> ends = run_ranks(
      4, [](Communicator&) { FAIL() << "connected"; }, 2, 2);
  EXPECT_LT(std::chrono::steady_clock::now() - start, kSoon);
  for (size_t rank = 0; rank < ends.size(); ++rank) {
    EXPECT_NE(ends[rank].exit_code, 0);
    EXPECT_THAT(ends[rank].output,
                HasSubstr(concat("rank ", rank, " of 4: no sign of rank 2, 3 within 2 s")));
  }
}

TEST_F(CommFailure, RanksThatCallDifferentThingsSayWhich) {
  struct Case {
    std::function<void(Communicator&, bool odd)> call;
    const char *ours, *theirs;
  };
  const std::vector<Case> cases = {
      {[](Communicator& ranks, bool odd) { ranks.all_reduce_sum(Tensor::zeros({odd ? 11 : 10})); },
       "all_reduce_sum of 10 f32", "all_reduce_sum of 11 f32"},
      {[](Communicator& ranks, bool odd) {
         ranks.all_gather(Tensor::zeros({8}, odd ? DType::i32 : DType::f32));
       },
       "all_gather of 8 f32", "all_gather of 8 i32"},
      {[](Communicator& ranks, bool odd) {
         if (odd) {
           ranks.broadcast(Tensor::zeros({8}), 1);
         } else {
           ranks.reduce_scatter_sum(Tensor::zeros({8}));
         }
       },
       "reduce_scatter_sum of 8 f32", "broadcast of 8 f32 from rank 1"},
      {[](Communicator& ranks, bool odd) { ranks.broadcast(Tensor::zeros({odd ? 4 : 0}), 0); },
       "broadcast of 0 f32 from rank 0", "broadcast of 4 f32 from rank 0"},
  };
  for (const Case& one : cases) {
    // Ranks find the case that is theirs by its place in the order of runs.
    const int size = 2 + static_cast<int>(&one - cases.data());
    for (const RankEnd& end : run_ranks(size, [&](Communicator& ranks) {
           const std::string text = failure_of(
               [&] {
                 one.call(ranks, ranks.rank() == 1);
                 ranks.barrier();  // a root learns of it afterwards
               },
               kSoon);
           EXPECT_THAT(text, HasSubstr(one.ours));
           EXPECT_THAT(text, HasSubstr(one.theirs));
           EXPECT_THAT(text, HasSubstr("; all ranks must run the same job"));
         })) {
      EXPECT_EQ(end.exit_code, 0) << end.output;
    }
  }
}

TEST(CommMeeting, AStoreOfAnotherJobIsRefused) {
  const test::ScratchDirectory scratch;
  auto store = make_file_store(scratch / "store");
  EXPECT_TRUE(store->add("rank-0", "of another job"));
  CommunicatorOptions options{.rank = 0, .size = 2, .time_limit = milliseconds(200)};
  EXPECT_THAT(
      failure_of([&] { make_gloo_communicator(options, make_file_store(scratch / "store")); },
                 kSoon),
      HasSubstr("every job needs a new one"));
  options.rank = 1;
  EXPECT_THAT(
      failure_of([&] { make_gloo_communicator(options, make_file_store(scratch / "store")); },
                 kSoon),
      HasSubstr("rank 0 is another linnet, of another job"));
}

}  // namespace
}  // namespace linnet
