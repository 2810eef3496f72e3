// Tensors: shapes, views on shared storage, conversions, refusals, uninitialised contents.
#include "core/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

using test::message_of;
using test::random_tensor;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

TEST(Shapes, CountElementsAndIndexFromBothEnds) {
  const Shape shape{2, 3, 4};
  EXPECT_EQ(shape.elements(), 24);
  EXPECT_EQ(shape[0], 2);
  EXPECT_EQ(shape[-1], 4);
  EXPECT_EQ(shape.to_string(), "[2, 3, 4]");
  EXPECT_EQ(Shape{}.elements(), 1);
  EXPECT_EQ((Shape{3, 0, 5}).elements(), 0);
  EXPECT_THROW(shape[3], Error);
  EXPECT_THROW(shape[-4], Error);
  EXPECT_THROW(Shape{}[0], Error);
}

TEST(Shapes, RefuseNegativeSizesAndOverflow) {
  EXPECT_NE(message_of<Error>([] { Shape{2, -1}; }).find("-1"), std::string::npos);
  EXPECT_THROW((Shape{kMax, 2}), Error);
  EXPECT_THROW((Shape{int64_t{1} << 31, int64_t{1} << 31, 4}), Error);
}

TEST(Shapes, HaveAtMostEightDimensions) {
  const std::vector<int64_t> most(Shape::kMaxRank, 1);
  EXPECT_EQ(Shape(most).to_vector(), most);
  EXPECT_THROW(Shape(std::vector<int64_t>(Shape::kMaxRank + 1, 1)), Error);
}

TEST(Shapes, WithAnotherSizeOfOneDimension) {
  const Shape shape{2, 3, 4};
  EXPECT_EQ(shape.with(1, 5), Shape({2, 5, 4}));
  EXPECT_EQ(shape.with(-1, 1).elements(), 6);
  EXPECT_NE(shape.with(0, 7), shape);
  EXPECT_THROW(shape.with(3, 1), Error);
  EXPECT_THROW(shape.with(0, -1), Error);
}

TEST(Tensors, ContinueOnceInTheRoomBehindThem) {
  const Tensor past = Tensor::with_room({1, 2, 3}, 6);
  for (int64_t i = 0; i < 6; ++i) past.data<float>()[i] = static_cast<float>(i);
  const Tensor more = past.continued(3, {1, 2, 3});
  ASSERT_TRUE(more.defined());
  EXPECT_TRUE(more.shares_storage(past));
  EXPECT_EQ(more.data<float>(), past.data<float>() + 3);
  // What was given away is not given to another one.
  EXPECT_FALSE(past.continued(3, {1, 2, 3}).defined());
  EXPECT_FALSE(past.slice(0, {1, 1, 3}).continued(0, {1, 2, 3}).defined());
  // The last three elements of the room, and no more.
  EXPECT_FALSE(more.continued(0, {1, 4, 3}).defined());
  EXPECT_TRUE(more.continued(0, {1, 3, 3}).defined());
  EXPECT_FALSE(Tensor::zeros({1, 2, 3}).continued(0, {1, 3, 3}).defined());
  EXPECT_THROW(past.continued(7, {1}), Error);
}

TEST(Tensors, ViewsShareElements) {
  const Tensor t = Tensor::from(std::vector<float>{0, 1, 2, 3, 4, 5}, {3, 2});
  const Tensor rows = t.rows(1, 3);
  EXPECT_EQ(rows.shape(), (Shape{2, 2}));
  EXPECT_EQ(rows.to_vector<float>(), (std::vector<float>{2, 3, 4, 5}));
  const Tensor row = rows.slice(1, {2});
  EXPECT_EQ(row.to_vector<float>(), (std::vector<float>{3, 4}));
  row.fill(9);
  EXPECT_EQ(t.reshape({6}).to_vector<float>(), (std::vector<float>{0, 1, 2, 9, 9, 5}));
  EXPECT_TRUE(row.shares_storage(t));
  EXPECT_FALSE(t.unique());
  EXPECT_FALSE(t.clone().shares_storage(t));
  EXPECT_TRUE(t.clone().unique());
  EXPECT_EQ(t.rows(3, 3).elements(), 0);
  EXPECT_EQ(t.rows(2, 3).clone().to_vector<float>(), (std::vector<float>{9, 5}));
}

TEST(Tensors, RefuseViewsThatDoNotFit) {
  const Tensor t = Tensor::zeros({3, 2});
  EXPECT_THROW(t.reshape({5}), Error);
  EXPECT_THROW(t.rows(2, 4), Error);
  EXPECT_THROW(t.rows(2, 1), Error);
  EXPECT_THROW(t.rows(-1, 1), Error);
  EXPECT_THROW(t.slice(5, {2}), Error);
  EXPECT_THROW(t.slice(-1, {2}), Error);
  EXPECT_THROW(t.slice(kMax, {2}), Error);
  EXPECT_THROW(Tensor::zeros({}).rows(0, 1), Error);
}

TEST(Tensors, UndefinedOnesMayOnlyBeTested) {
  const Tensor none;
  EXPECT_FALSE(none.defined());
  EXPECT_THROW(none.raw(), Error);
  EXPECT_THROW(none.data<float>(), Error);
  EXPECT_THROW(none.device(), Error);
  EXPECT_THROW(none.clone(), Error);
  EXPECT_THROW(none.item(), Error);
  EXPECT_THROW(none.reshape({1}), Error);
  EXPECT_THROW(none.to(DType::f64), Error);
  EXPECT_THROW(none.slice(0, {1}), Error);
}

TEST(Tensors, TypedAccessNamesBothTypes) {
  const std::string message = message_of<Error>([] { Tensor::zeros({2}).data<double>(); });
  EXPECT_NE(message.find("f64"), std::string::npos) << message;
  EXPECT_NE(message.find("f32"), std::string::npos) << message;
}

TEST(Tensors, ConvertBetweenAllTypes) {
  const std::vector<double> values{0, 1, 2, 100};
  const Tensor t = Tensor::from(values, {4});
  for (const DType from :
       {DType::f32, DType::f64, DType::bf16, DType::i32, DType::i64, DType::u8}) {
    for (const DType to :
         {DType::f32, DType::f64, DType::bf16, DType::i32, DType::i64, DType::u8}) {
      EXPECT_EQ(t.to(from).to(to).to(DType::f64).to_vector<double>(), values)
          << name_of(from) << " to " << name_of(to);
    }
    const Tensor truth = t.to(from).to(DType::boolean);
    EXPECT_EQ(truth.to(DType::u8).to_vector<uint8_t>(), (std::vector<uint8_t>{0, 1, 1, 1}));
  }
  EXPECT_TRUE(t.to(DType::f64).shares_storage(t)) << "the same handle when nothing changes";
  EXPECT_EQ(Tensor::full({1}, -2.9).to(DType::i32).item(), -2) << "towards zero, as in C++";
  EXPECT_EQ(static_cast<double>(Tensor::full({1}, 1.0 + 1.0 / 256, DType::bf16).item()), 1.0);
}

TEST(Tensors, LargeConversionsAreExactInEveryElement) {
  const Tensor t = random_tensor({300001}, "large");
  const Tensor narrow = t.to(DType::bf16);
  for (int64_t i = 0; i < t.elements(); ++i) {
    ASSERT_EQ(narrow.data<bf16>()[i].bits, bf16(static_cast<float>(t.data<double>()[i])).bits);
  }
}

TEST(Tensors, FillAndFullRefuseWhatTheTypeCannotHold) {
  EXPECT_EQ(Tensor::full({2}, 255, DType::u8).to_vector<uint8_t>(),
            (std::vector<uint8_t>{255, 255}));
  EXPECT_THROW(Tensor::full({2}, 256, DType::u8), Error);
  EXPECT_THROW(Tensor::full({2}, -1, DType::u8), Error);
  EXPECT_THROW(Tensor::full({2}, 3e9, DType::i32), Error);
  EXPECT_THROW(Tensor::full({2}, std::nan(""), DType::i32), Error);
  EXPECT_THROW(Tensor::full({2}, 1e19, DType::i64), Error);
  EXPECT_EQ(Tensor::full({1}, -1, DType::boolean).to(DType::u8).to_vector<uint8_t>()[0], 1);
  EXPECT_TRUE(std::isnan(Tensor::full({1}, std::nan(""), DType::bf16).item()));
}

TEST(Tensors, CopyFromConvertsAndChecksShapes) {
  const Tensor to = Tensor::empty({2, 2}, DType::bf16);
  to.copy_from(Tensor::from(std::vector<double>{1, 2, 3, 4}, {2, 2}));
  EXPECT_EQ(to.to_vector<float>(), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_THROW(to.copy_from(Tensor::zeros({4})), Error);
  EXPECT_THROW(Tensor::from(std::vector<float>{1, 2}, {3}), Error);
}

TEST(Tensors, EmptyIsFilledWithNanInTests) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    for (const double value : Tensor::empty({5}, dtype).to_vector<double>()) {
      EXPECT_TRUE(std::isnan(value));
    }
  }
  EXPECT_EQ(Tensor::empty({1}, DType::i32).data<int32_t>()[0], std::numeric_limits<int32_t>::max());
  EXPECT_EQ(Tensor::empty({1}, DType::i64).data<int64_t>()[0], kMax);
  EXPECT_EQ(Tensor::empty({1}, DType::u8).data<uint8_t>()[0], 255);
}

TEST(Tensors, ZeroElementsAreFine) {
  const Tensor none = Tensor::empty({0, 3}, DType::bf16);
  EXPECT_TRUE(none.defined());
  EXPECT_TRUE(none.to(DType::f32).to_vector<float>().empty());
  EXPECT_EQ(none.clone().elements(), 0);
  EXPECT_EQ(none.rows(0, 0).reshape({3, 0}).elements(), 0);
  none.fill(1);
  none.set_zero();
  EXPECT_THROW(none.item(), Error);
}

TEST(Tensors, ItemNeedsExactlyOneElement) {
  EXPECT_EQ(Tensor::full({1, 1}, 3).item(), 3);
  EXPECT_THROW(Tensor::zeros({2}).item(), Error);
}

TEST(Devices, NamesAreStrict) {
  EXPECT_EQ(device_from_name("auto"), Device{});
  EXPECT_EQ(device_from_name("cpu"), Device{});
  for (const char* name : {"", "gpu", "cpu:0", "cudax", "cuda:", "cuda:x", "cuda:-1", "cuda:1x"}) {
    const std::string message = message_of<UsageError>([name] { device_from_name(name); });
    EXPECT_NE(message.find("unknown device"), std::string::npos) << name << ": " << message;
  }
  const std::string absent = message_of<UsageError>([] { device_from_name("cuda:1"); });
  EXPECT_NE(absent.find("cuda:1"), std::string::npos) << absent;
}

TEST(Devices, MemoryIsAlignedAndCounted) {
  const size_t before = allocated_bytes({});
  {
    const Tensor t = Tensor::empty({1000003}, DType::f32);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(t.raw()) % 64, 0u);
    EXPECT_EQ(allocated_bytes({}), before + t.bytes());
    reset_peak_memory({});
  }
  EXPECT_EQ(allocated_bytes({}), before);
  EXPECT_GE(peak_allocated_bytes({}), before + 4000012);
  reset_peak_memory({});
  EXPECT_EQ(peak_allocated_bytes({}), before);
}

TEST(Devices, OutOfMemoryNamesTheSize) {
  const std::string message = message_of<Error>([] { Tensor::empty({int64_t{1} << 56}); });
  EXPECT_NE(message.find("256 PiB requested"), std::string::npos) << message;
}

}  // namespace
}  // namespace linnet
