// TensorBoard files, read back by a decoder that shares no code with the writer.
#include "recipes/engine/tensorboard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "tests/file_failures.h"

namespace linnet {
namespace {

using testing::StartsWith;

// CRC-32C by its definition: one bit at a time.
uint32_t slow_crc32c(const std::string& bytes) {
  uint32_t crc = ~0u;
  for (const char byte : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      const bool one = ((crc ^ static_cast<uint32_t>(static_cast<uint8_t>(byte)) >> bit) & 1) != 0;
      crc = (crc >> 1) ^ (one ? 0x82f63b78u : 0u);
    }
  }
  return ~crc;
}

uint32_t slow_masked(const std::string& bytes) {
  const uint64_t crc = slow_crc32c(bytes);
  return static_cast<uint32_t>((crc >> 15 | crc << 17) + 0xa282ead8u);
}

template <typename T>
T take(const std::string& bytes, size_t& at) {
  T value;
  if (at + sizeof(T) > bytes.size()) throw Error("record cut short");
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  at += sizeof(T);
  return value;
}

std::vector<std::string> decode_records(const std::string& file) {
  std::vector<std::string> records;
  for (size_t at = 0; at < file.size();) {
    const std::string header = file.substr(at, 8);
    const auto bytes = take<uint64_t>(file, at);
    if (take<uint32_t>(file, at) != slow_masked(header)) throw Error("wrong CRC of the length");
    records.push_back(file.substr(at, bytes));
    at += bytes;
    if (take<uint32_t>(file, at) != slow_masked(records.back())) throw Error("wrong CRC");
  }
  return records;
}

// Fields of a protocol-buffer message: number -> raw contents, in order.
std::multimap<int, std::string> decode_message(const std::string& message) {
  std::multimap<int, std::string> fields;
  size_t at = 0;
  const auto varint = [&] {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = take<uint8_t>(message, at);
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
  };
  while (at < message.size()) {
    const uint64_t key = varint();
    const size_t start = at;
    size_t bytes = 0;
    switch (key & 7) {
      case 0: {
        const uint64_t value = varint();
        fields.emplace(key >> 3, std::to_string(value));
        continue;
      }
      case 1:
        bytes = 8;
        break;
      case 2:
        bytes = varint();
        break;
      case 5:
        bytes = 4;
        break;
      default:
        throw Error("unknown wire type");
    }
    const size_t begin = (key & 7) == 2 ? at : start;
    fields.emplace(key >> 3, message.substr(begin, bytes));
    at = begin + bytes;
  }
  return fields;
}

TEST(TensorBoard, Crc32cHasThePublishedValues) {
  // RFC 3720, B.4.
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
}

TEST(TensorBoard, AnIndependentDecoderReadsTheScalars) {
  const test::ScratchDirectory scratch;
  std::string path;
  {
    TensorBoardWriter writer(scratch / "a/tensorboard");
    path = writer.path();
    writer.write_scalars(1, {{"train/loss", 5.5}, {"train/lr", 1e-3}});
    writer.write_scalars(int64_t{1} << 40, {{"train/loss", std::nan("")}});
  }
  EXPECT_THAT(file_name(path), StartsWith("events.out.tfevents."));
  const auto records = decode_records(read_file(path));
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(decode_message(records[0]).find(3)->second, "brain.Event:2");
  const auto event = decode_message(records[1]);
  double wall_time = 0;
  std::memcpy(&wall_time, event.find(1)->second.data(), 8);
  EXPECT_LE(std::abs(wall_time - static_cast<double>(std::time(nullptr))), 60);
  EXPECT_EQ(event.find(2)->second, "1");
  const auto summary = decode_message(event.find(5)->second);
  ASSERT_EQ(summary.count(1), 2u);
  std::vector<std::pair<std::string, float>> scalars;
  for (const auto& [field, value] : summary) {
    const auto item = decode_message(value);
    scalars.emplace_back(item.find(1)->second, 0.0f);
    std::memcpy(&scalars.back().second, item.find(2)->second.data(), 4);
  }
  EXPECT_EQ(scalars[0], std::make_pair(std::string("train/loss"), 5.5f));
  EXPECT_EQ(scalars[1], std::make_pair(std::string("train/lr"), 1e-3f));
  EXPECT_EQ(decode_message(records[2]).find(2)->second, "1099511627776");
}

// Nested messages by the numbers of their fields.
std::string inside(const std::string& message, std::initializer_list<int> path) {
  std::string found = message;
  for (const int field : path) found = decode_message(found).find(field)->second;
  return found;
}

TEST(TensorBoard, HyperparametersAreThoseOfTheHparamsPlugin) {
  const test::ScratchDirectory scratch;
  TensorBoardWriter writer(scratch.path());
  writer.write_hyperparameters(
      {{"optim.lr", 0.5}, {"train.cuda_graph", true}, {"model.kind", "x"}});
  const std::string value = inside(decode_records(read_file(writer.path())).at(1), {5, 1});
  EXPECT_EQ(inside(value, {1}), "_hparams_/session_start_info");
  EXPECT_EQ(inside(value, {9, 1, 1}), "hparams");
  EXPECT_EQ(inside(value, {9, 4}), "2");
  EXPECT_EQ(inside(value, {8, 2, 2, 1}), "1");
  const auto session = decode_message(inside(value, {9, 1, 2, 3}));
  ASSERT_EQ(session.count(1), 3u);
  auto entry = session.lower_bound(1);
  EXPECT_EQ(inside(entry->second, {1}), "optim.lr");
  double number = 0;
  std::memcpy(&number, inside(entry->second, {2, 2}).data(), 8);
  EXPECT_EQ(number, 0.5);
  EXPECT_EQ(inside((++entry)->second, {2, 4}), "1");
  EXPECT_EQ(inside((++entry)->second, {2, 3}), "x");
  EXPECT_EQ(session.count(5), 1u);
}

TEST(TensorBoard, AResumedRunSaysWhereItGoesOn) {
  const test::ScratchDirectory scratch;
  const TensorBoardWriter first(scratch.path());
  const TensorBoardWriter second(scratch.path(), 41);
  EXPECT_LT(first.path(), second.path());
  const auto records = decode_records(read_file(second.path()));
  ASSERT_EQ(records.size(), 2u);
  const auto event = decode_message(records[1]);
  EXPECT_EQ(event.find(2)->second, "42");
  EXPECT_EQ(decode_message(event.find(7)->second).find(1)->second, "1");  // SessionLog.START
}

TEST(TensorBoard, AFullDiskIsAnError) {
  const test::ScratchDirectory scratch;
  TensorBoardWriter writer(scratch.path());
  const test::FailingFileSystem failing(0, test::Failure::no_space);
  EXPECT_THROW(writer.write_scalars(1, {{"x", 1.0}}), Error);
}

}  // namespace
}  // namespace linnet
