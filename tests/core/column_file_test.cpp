// Tables in files: rows in any order, in bounded memory, in both formats.
#include "core/column_file.h"

#include <gtest/gtest.h>

#include <numeric>

#include "core/hdf5.h"
#include "core/safetensors.h"
#include "core/sanitizers.h"
#include "tests/data/temporary_folder.h"
#include "tests/error_helpers.h"
#include "tests/file_failures.h"
#include "tests/peak_memory.h"

namespace linnet {
namespace {

using namespace test;

const std::vector<Column> kColumns = {
    {"score", DType::f64}, {"place", DType::i64}, {"id", DType::i32}};
const std::map<std::string, std::string> kMetadata = {{"split", "test"}, {"empty", ""}};

// 100 rows in blocks of 7, the last block first.
void write_table(const std::string& path) {
  ColumnFile file(path, kColumns, 100, kMetadata);
  for (int64_t first = 98; first >= 0; first -= 7) {
    const int64_t count = std::min<int64_t>(7, 100 - first);
    std::vector<double> scores;
    std::vector<int64_t> places;
    std::vector<int32_t> ids;
    for (int64_t row = first; row < first + count; ++row) {
      scores.push_back(0.5 * static_cast<double>(row));
      places.push_back((int64_t{1} << 40) + row);
      ids.push_back(static_cast<int32_t>(-row));
    }
    file.write(0, first, Tensor::from(scores, {count}));
    file.write(1, first, Tensor::from(places, {count}));
    file.write(2, first, Tensor::from(ids, {count}));
  }
  file.commit();
}

void expect_table(const Tensor& scores, const Tensor& places, const Tensor& ids) {
  ASSERT_EQ(scores.shape(), Shape({100}));
  for (int64_t row = 0; row < 100; ++row) {
    EXPECT_EQ(scores.data<double>()[row], 0.5 * static_cast<double>(row));
    EXPECT_EQ(places.data<int64_t>()[row], (int64_t{1} << 40) + row);
    EXPECT_EQ(ids.data<int32_t>()[row], -row);
  }
}

TEST(ColumnFile, RowsInAnyOrderAsHdf5) {
  const TemporaryFolder folder;
  write_table(folder / "table.h5");
  write_table(folder / "again.h5");
  const std::string bytes = read_file(folder / "table.h5");
  EXPECT_EQ(bytes, read_file(folder / "again.h5"));
  const Hdf5Reader reader(bytes, "table.h5");
  expect_table(reader.read("score"), reader.read("place"), reader.read("id"));
  EXPECT_EQ(reader.text_attribute("/", "split"), "test");
  EXPECT_EQ(reader.text_attribute("/", "empty"), "");
}

TEST(ColumnFile, RowsInAnyOrderAsSafetensors) {
  const TemporaryFolder folder;
  write_table(folder / "table.safetensors");
  const std::string bytes = read_file(folder / "table.safetensors");
  const SafetensorsContents contents = parse_safetensors(bytes, "table.safetensors");
  EXPECT_EQ(contents.metadata, kMetadata);
  expect_table(contents.tensors.at("score").read(), contents.tensors.at("place").read(),
               contents.tensors.at("id").read());
}

TEST(ColumnFile, RefusesRowsBeyondTheEndAndOtherTypes) {
  const TemporaryFolder folder;
  ColumnFile file(folder / "table.h5", kColumns, 4, {});
  EXPECT_THROW(file.write(0, 3, Tensor::zeros({2}, DType::f64)), Error);
  EXPECT_THROW(file.write(0, -1, Tensor::zeros({1}, DType::f64)), Error);
  EXPECT_THROW(file.write(0, 0, Tensor::zeros({1}, DType::f32)), Error);
  EXPECT_THROW(ColumnFile(folder / "none.h5", kColumns, 0, {}), Error);
}

TEST(ColumnFile, WithoutCommitNothingIsLeft) {
  const TemporaryFolder folder;
  folder.write("table.h5", "before");
  { const ColumnFile file(folder / "table.h5", kColumns, 4, {}); }
  EXPECT_EQ(read_file(folder / "table.h5"), "before");
  EXPECT_EQ(file_system().list(folder.path()).size(), 1U);
}

// 240 MB in blocks of 2 MB.
TEST(ColumnFile, TakesTheMemoryOfABlock) {
  const TemporaryFolder folder;
  FailingFileSystem quick(-1, Failure::no_space);  // syncs nothing
  constexpr int64_t kRows = 12'000'000, kBlock = 100'000;
  for (const char* name : {"table.h5", "table.safetensors"}) {
    start_peak();
    const int64_t before = peak_kibibytes();
    ColumnFile file(folder / name, kColumns, kRows, {});
    for (int64_t first = 0; first < kRows; first += kBlock) {
      file.write(0, first, Tensor::full({kBlock}, 1, DType::f64));
      file.write(1, first, Tensor::full({kBlock}, 2, DType::i64));
      file.write(2, first, Tensor::full({kBlock}, 3, DType::i32));
    }
    file.commit();
    EXPECT_GE(file_bytes(folder / name), static_cast<uint64_t>(kRows) * 20) << name;
    // AddressSanitizer keeps freed blocks back.
    if (!kAddressSanitizer) {
      EXPECT_LE(peak_kibibytes() - before, 24 * 1024) << name;
    }
    remove_all(folder / name);
  }
}

}  // namespace
}  // namespace linnet
