// Operations between ranks: their values to the bit, shares, small values, bytes sent.
#include "core/comm/communicator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "core/threads.h"
#include "tests/core/comm_ranks.h"
#include "tests/error_helpers.h"

namespace linnet {
namespace {

using test::causes_of;
using test::CommRanks;
using test::pass_on_ranks;

constexpr DType kAll[] = {DType::f32, DType::f64, DType::bf16,   DType::i32,
                          DType::i64, DType::u8,  DType::boolean};
constexpr DType kSums[] = {DType::f32, DType::f64, DType::bf16, DType::i32, DType::i64};
constexpr int64_t kCounts[] = {0, 1, 2, 3, 7, 1000, 100'003};

// Element i of rank r: of all magnitudes, so that the order of a sum shows in its bits.
double value_of(int rank, int64_t i) {
  const auto mixed = static_cast<uint32_t>(i * 2654435761u + static_cast<uint32_t>(rank) * 40503u);
  return (static_cast<double>(mixed % 20011) - 10005) * std::pow(2.0, static_cast<int>(mixed % 9)) /
         7;
}

Tensor values_of(int rank, int64_t count, DType dtype) {
  const Tensor values = Tensor::empty({count}, DType::f64);
  for (int64_t i = 0; i < count; ++i) values.data<double>()[i] = value_of(rank, i);
  if (dtype == DType::boolean || dtype == DType::u8) {
    for (int64_t i = 0; i < count; ++i) values.data<double>()[i] = std::abs(value_of(rank, i)) > 9;
  }
  return values.to(dtype);
}

std::string bits(const Tensor& values) {
  return {static_cast<const char*>(values.raw()), values.bytes()};
}

template <typename T, typename Sum>
Tensor sum_of(int size, int64_t count) {
  std::vector<Tensor> all;
  for (int rank = 0; rank < size; ++rank) {
    all.push_back(values_of(rank, count, DTypeOf<T>::value));
  }
  const Tensor total = Tensor::empty({count}, DTypeOf<T>::value);
  for (int64_t i = 0; i < count; ++i) {
    Sum sum = all[0].template data<T>()[i];
    for (int rank = 1; rank < size; ++rank)
      sum += static_cast<Sum>(all[rank].template data<T>()[i]);
    total.data<T>()[i] = static_cast<T>(sum);
  }
  return total;
}

// By its definition: in the order of the ranks, bf16 in f32.
Tensor expected_sum(int size, int64_t count, DType dtype) {
  switch (dtype) {
    case DType::f32:
      return sum_of<float, float>(size, count);
    case DType::f64:
      return sum_of<double, double>(size, count);
    case DType::bf16:
      return sum_of<bf16, float>(size, count);
    case DType::i32:
      return sum_of<int32_t, int32_t>(size, count);
    default:
      return sum_of<int64_t, int64_t>(size, count);
  }
}

std::string where(int64_t count, DType dtype) {
  return concat(count, " ", name_of(dtype));
}

TEST_F(CommRanks, AllReduceSumsInTheOrderOfTheRanks) {
  for (const int size : {2, 4}) {
    pass_on_ranks(size, [](Communicator& ranks) {
      for (const DType dtype : kSums) {
        for (const int64_t count : kCounts) {
          const Tensor values = values_of(ranks.rank(), count, dtype);
          const int64_t before = ranks.bytes_sent();
          ranks.all_reduce_sum(values);
          EXPECT_EQ(bits(values), bits(expected_sum(ranks.size(), count, dtype)))
              << where(count, dtype);
          // The others' shares to them, then its own sum to each of them.
          const int64_t own = ranks.share(count).elements();
          EXPECT_EQ(ranks.bytes_sent() - before,
                    (count - own + (ranks.size() - 1) * own) * static_cast<int64_t>(size_of(dtype)))
              << where(count, dtype);
        }
      }
    });
  }
}

TEST_F(CommRanks, AllReduceIsReduceScatterAndAllGather) {
  for (const int size : {2, 3, 4}) {
    pass_on_ranks(size, [](Communicator& ranks) {
      for (const DType dtype : kSums) {
        for (const int64_t count : kCounts) {
          const Tensor values = values_of(ranks.rank(), count, dtype);
          ranks.reduce_scatter_sum(values);
          const Tensor sum = expected_sum(ranks.size(), count, dtype);
          const Tensor unchanged = values_of(ranks.rank(), count, dtype);
          for (int rank = 0; rank < ranks.size(); ++rank) {
            const RankShare share = ranks.share(count, rank);
            EXPECT_EQ(bits(values.rows(share.begin, share.end)),
                      bits((rank == ranks.rank() ? sum : unchanged).rows(share.begin, share.end)))
                << where(count, dtype);
          }
          ranks.all_gather(values);
          EXPECT_EQ(bits(values), bits(sum)) << where(count, dtype);
        }
      }
    });
  }
}

TEST_F(CommRanks, EveryDtypeIsGatheredBroadcastAndSent) {
  for (const int size : {2, 4}) {
    pass_on_ranks(size, [](Communicator& ranks) {
      const int next = (ranks.rank() + 1) % ranks.size();
      const int previous = (ranks.rank() + ranks.size() - 1) % ranks.size();
      for (const DType dtype : kAll) {
        for (const int64_t count : kCounts) {
          const Tensor gathered = values_of(ranks.rank(), count, dtype);
          ranks.all_gather(gathered);
          for (int rank = 0; rank < ranks.size(); ++rank) {
            const RankShare share = ranks.share(count, rank);
            EXPECT_EQ(bits(gathered.rows(share.begin, share.end)),
                      bits(values_of(rank, count, dtype).rows(share.begin, share.end)))
                << where(count, dtype);
          }
          for (int root = 0; root < ranks.size(); ++root) {
            const Tensor values = values_of(ranks.rank(), count, dtype);
            const int64_t before = ranks.bytes_sent();
            ranks.broadcast(values, root);
            EXPECT_EQ(bits(values), bits(values_of(root, count, dtype))) << where(count, dtype);
            EXPECT_EQ(ranks.bytes_sent() - before,
                      ranks.rank() == root
                          ? static_cast<int64_t>(values.bytes()) * (ranks.size() - 1)
                          : 0);
          }
          // Around the ring: rank 0 sends first.
          const Tensor own = values_of(ranks.rank(), count, dtype);
          const Tensor received = Tensor::zeros({count}, dtype);
          if (ranks.rank() == 0) ranks.send(own, next);
          ranks.receive(received, previous);
          if (ranks.rank() != 0) ranks.send(own, next);
          EXPECT_EQ(bits(received), bits(values_of(previous, count, dtype))) << where(count, dtype);
        }
      }
    });
  }
}

TEST_F(CommRanks, SmallValuesOfAllRanks) {
  for (const int size : {2, 3}) {
    pass_on_ranks(size, [](Communicator& ranks) {
      const int size = ranks.size();
      EXPECT_EQ(ranks.name(), "gloo");
      EXPECT_EQ(ranks.sum(int64_t{1} << (40 + ranks.rank())), ((int64_t{1} << size) - 1) << 40);
      EXPECT_EQ(ranks.sum(0.5 * ranks.rank()), 0.25 * size * (size - 1));
      const std::string longest(kMaxTextBytes, 'x');
      const std::vector<std::string> texts =
          ranks.all_gather_text(ranks.rank() == 0   ? ""
                                : ranks.rank() == 1 ? longest
                                                    : std::string("a\0b", 3));
      ASSERT_EQ(texts.size(), static_cast<size_t>(size));
      EXPECT_EQ(texts[0], "");
      EXPECT_EQ(texts[1], longest);
      if (size == 3) {
        EXPECT_EQ(texts[2], std::string("a\0b", 3));
      }
      EXPECT_EQ(ranks.broadcast_text(concat("of ", ranks.rank()), 1), "of 1");
      EXPECT_EQ(ranks.broadcast_text("", 0), "");
      EXPECT_EQ(causes_of([&] { ranks.all_gather_text(longest + "x"); }), "out_of_range");
      ranks.barrier();
    });
  }
}

TEST_F(CommRanks, SumsDoNotDependOnThreads) {
  pass_on_ranks(2, [](Communicator& ranks) {
    const Tensor values = values_of(ranks.rank(), 300'000, DType::bf16);
    set_thread_count(ranks.rank() + 1);
    ranks.all_reduce_sum(values);
    EXPECT_EQ(bits(values), bits(expected_sum(2, 300'000, DType::bf16)));
  });
}

TEST_F(CommRanks, SharesFollowEachOther) {
  pass_on_ranks(4, [](Communicator& ranks) {
    for (const int64_t count : kCounts) {
      int64_t next = 0;
      for (int rank = 0; rank < 4; ++rank) {
        const RankShare share = ranks.share(count, rank);
        EXPECT_EQ(share.begin, next);
        EXPECT_LE(share.elements(), (count + 3) / 4);
        next = share.end;
      }
      EXPECT_EQ(next, count);
    }
  });
}

TEST(Comm, ASingleProcessKeepsItsValues) {
  const auto alone = make_single_communicator();
  EXPECT_EQ(alone->name(), "single");
  EXPECT_EQ(alone->size(), 1);
  const Tensor values = values_of(0, 100, DType::f32);
  alone->all_reduce_sum(values);
  alone->reduce_scatter_sum(values);
  alone->all_gather(values);
  alone->broadcast(values, 0);
  alone->barrier();
  EXPECT_EQ(bits(values), bits(values_of(0, 100, DType::f32)));
  EXPECT_EQ(alone->sum(2.5), 2.5);
  EXPECT_EQ(alone->all_gather_text("it"), std::vector<std::string>{"it"});
  EXPECT_EQ(alone->broadcast_text("it", 0), "it");
  EXPECT_EQ(alone->bytes_sent(), 0);
}

TEST(Comm, RefusesWhatCannotBe) {
  const auto alone = make_single_communicator();
  const Tensor values = Tensor::zeros({3});
  EXPECT_EQ(causes_of([&] { alone->broadcast(values, 1); }), "out_of_range");
  EXPECT_EQ(causes_of([&] { alone->send(values, -1); }), "out_of_range");
  EXPECT_EQ(causes_of([&] { alone->send(values, 0); }), "out_of_range");
  EXPECT_EQ(causes_of([&] { alone->receive(values, 0); }), "out_of_range");
  EXPECT_EQ(causes_of([&] { alone->all_gather({}); }), "wrong_type");
  EXPECT_EQ(causes_of([&] { alone->all_reduce_sum(Tensor::zeros({3}, DType::u8)); }), "wrong_type");
  EXPECT_EQ(causes_of([&] { alone->set_time_limit(std::chrono::milliseconds(0)); }),
            "out_of_range");
}

}  // namespace
}  // namespace linnet
