// HDF5 images: round trips of every dtype, refusals, damaged images.
#include "core/hdf5.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <limits>
#include <thread>

namespace linnet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

template <typename Body>
std::string error_of(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Bitwise equality, so that NaN equals NaN and 0 differs from -0.
bool same_bits(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         (a.bytes() == 0 || std::memcmp(a.raw(), b.raw(), a.bytes()) == 0);
}

std::map<std::string, Tensor> one_of_each() {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  std::map<std::string, Tensor> tensors;
  tensors["f32"] = Tensor::from<float>({1.5f, -0.0f, nan, inf, -inf, 1e-40f}, {2, 3});
  tensors["group/f64"] = Tensor::from<double>({1.0 / 3, -1e300}, {2, 1, 1});
  tensors["group/deep/bf16"] = Tensor::from<bf16>({bf16(1.0f), bf16(nan), bf16(-3.5f)}, {3});
  tensors["i32"] = Tensor::from<int32_t>({INT32_MIN, 0, INT32_MAX}, {3});
  tensors["i64"] = Tensor::from<int64_t>({INT64_MIN, INT64_MAX}, {1, 2});
  tensors["u8"] = Tensor::from<uint8_t>({0, 255}, {2});
  tensors["bool"] = Tensor::zeros({3}, DType::boolean);
  tensors["bool"].data<bool>()[1] = true;
  tensors["scalar"] = Tensor::full({}, 4.25);
  tensors["empty"] = Tensor::zeros({0, 7});
  return tensors;
}

TEST(Hdf5, EveryDtypeComesBackBitForBit) {
  const auto tensors = one_of_each();
  const auto back = tensors_from_hdf5(tensors_to_hdf5(tensors), "image");
  ASSERT_EQ(back.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    ASSERT_TRUE(back.contains(name)) << name;
    EXPECT_TRUE(same_bits(back.at(name), tensor)) << name;
  }
}

TEST(Hdf5, EqualContentsGiveEqualBytes) {
  EXPECT_EQ(tensors_to_hdf5(one_of_each()), tensors_to_hdf5(one_of_each()));
}

TEST(Hdf5, GroupsAreListed) {
  Hdf5Writer writer;
  writer.write("inputs/x", Tensor::zeros({1}));
  writer.write("inputs/deeper/q", Tensor::zeros({1}));
  const Hdf5Reader reader(writer.finish(), "image");
  EXPECT_THAT(reader.list(), ElementsAre("inputs"));
  EXPECT_THAT(reader.list("inputs"), ElementsAre("deeper", "x"));
  EXPECT_THAT(reader.list_datasets(), ElementsAre("inputs/deeper/q", "inputs/x"));
  EXPECT_THAT(reader.list_datasets("inputs"), ElementsAre("deeper/q", "x"));
  EXPECT_TRUE(reader.contains("inputs/x"));
  EXPECT_TRUE(reader.contains("/"));
  EXPECT_FALSE(reader.contains("inputs/y"));
  EXPECT_FALSE(reader.contains("nothing/y"));
  EXPECT_TRUE(reader.is_group("inputs"));
  EXPECT_FALSE(reader.is_group("inputs/x"));
  EXPECT_THAT(error_of([&] { (void)reader.list("inputs/x"); }), HasSubstr("'inputs/x'"));
}

TEST(Hdf5, AttributesAndTexts) {
  const std::string recipe = "name: \"h\xC3\xA9\"\n" + std::string(100'000, 'x');
  Hdf5Writer writer;
  writer.write("x", Tensor::zeros({1}));
  writer.set_attribute("/", "step", int64_t{-5});
  writer.set_attribute("x", "scale", 0.1);
  writer.set_attribute("/", "form", "causal");
  writer.set_attribute("/", "none", "");
  writer.write_text("recipe", recipe);
  EXPECT_THAT(error_of([&] { writer.set_attribute("/", "form", "again"); }), HasSubstr("form"));
  EXPECT_THAT(error_of([&] { writer.set_attribute("y", "a", 1.0); }), HasSubstr("'y'"));
  EXPECT_THAT(error_of([&] { writer.set_attribute("/", "big", recipe); }), HasSubstr("write_text"));
  EXPECT_THAT(error_of([&] { writer.write_text("n", std::string(2, '\0')); }), HasSubstr("NUL"));
  EXPECT_THAT(error_of([&] { writer.write("x", Tensor::zeros({1})); }), HasSubstr("'x'"));
  EXPECT_THAT(error_of([&] { writer.write("z", Tensor()); }), HasSubstr("undefined"));
  const Hdf5Reader reader(writer.finish(), "image");
  EXPECT_EQ(reader.int_attribute("/", "step"), -5);
  EXPECT_EQ(reader.number_attribute("/", "step"), -5.0);
  EXPECT_EQ(reader.number_attribute("x", "scale"), 0.1);
  EXPECT_EQ(reader.text_attribute("/", "form"), "causal");
  EXPECT_EQ(reader.text_attribute("/", "none"), "");
  EXPECT_EQ(reader.read_text("recipe"), recipe);
  EXPECT_TRUE(reader.has_attribute("/", "step"));
  EXPECT_FALSE(reader.has_attribute("/", "stop"));
  EXPECT_THAT(error_of([&] { (void)reader.int_attribute("x", "scale"); }), HasSubstr("'scale'"));
  EXPECT_THAT(error_of([&] { (void)reader.int_attribute("/", "form"); }), HasSubstr("integer"));
  EXPECT_THAT(error_of([&] { (void)reader.text_attribute("/", "step"); }), HasSubstr("not text"));
  EXPECT_THAT(error_of([&] { (void)reader.text_attribute("/", "stop"); }), HasSubstr("'stop'"));
  EXPECT_THAT(error_of([&] { (void)reader.read("recipe"); }), HasSubstr("type"));
  EXPECT_THAT(error_of([&] { (void)reader.read_text("x"); }), HasSubstr("not text"));
}

TEST(Hdf5, ExpectedShapesAndTypesAreChecked) {
  Hdf5Writer writer;
  writer.write("w", Tensor::zeros({2, 3}));
  const Hdf5Reader reader(writer.finish(), "weights.h5");
  EXPECT_EQ(reader.dtype("w"), DType::f32);
  EXPECT_EQ(reader.shape("w"), Shape({2, 3}));
  EXPECT_EQ(reader.read("w", DType::f32, {2, 3}).elements(), 6);
  const std::string shape = error_of([&] { (void)reader.read("w", DType::f32, {3, 2}); });
  EXPECT_EQ(shape, "weights.h5: 'w' should be f32 [3, 2] but is f32 [2, 3]");
  const std::string dtype = error_of([&] { (void)reader.read("w", DType::f64, {2, 3}); });
  EXPECT_EQ(dtype, "weights.h5: 'w' should be f64 [2, 3] but is f32 [2, 3]");
  EXPECT_EQ(error_of([&] { (void)reader.read("v"); }), "weights.h5: there is no 'v'");
}

TEST(Hdf5, OtherFilesAreRefusedQuietly) {
  testing::internal::CaptureStderr();
  EXPECT_THAT(error_of([] { const Hdf5Reader reader("", "a.h5"); }), HasSubstr("a.h5"));
  EXPECT_THAT(error_of([] { const Hdf5Reader reader(std::string(5000, 'x'), "a.h5"); }),
              HasSubstr("a.h5: is not an HDF5 file"));
  const std::string image = tensors_to_hdf5(one_of_each());
  for (const size_t bytes : {size_t{8}, image.size() / 2, image.size() - 1}) {
    EXPECT_THAT(error_of([&] { tensors_from_hdf5(image.substr(0, bytes), "cut.h5"); }),
                HasSubstr("cut.h5"));
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(Hdf5, FinishedWritersRefuse) {
  Hdf5Writer writer;
  writer.finish();
  EXPECT_THAT(error_of([&] { writer.write("x", Tensor::zeros({1})); }), HasSubstr("finish"));
  EXPECT_THAT(error_of([&] { writer.finish(); }), HasSubstr("finish"));
}

TEST(Hdf5, ImagesOpenAtTheSameTimeAreSeparate) {
  const std::string one = tensors_to_hdf5({{"x", Tensor::full({1}, 1.0)}});
  const std::string two = tensors_to_hdf5({{"x", Tensor::full({1}, 2.0)}});
  Hdf5Writer writer;
  const Hdf5Reader first(one, "one");
  const Hdf5Reader second(two, "two");
  writer.write("x", Tensor::full({1}, 3.0));
  EXPECT_EQ(first.read("x").item(), 1.0);
  EXPECT_EQ(second.read("x").item(), 2.0);
  EXPECT_EQ(tensors_from_hdf5(writer.finish(), "three").at("x").item(), 3.0);
}

TEST(Hdf5, ThreadsMayUseTheirOwnReadersAndWriters) {
  const std::string expected = tensors_to_hdf5(one_of_each());
  std::array<std::string, 4> images;
  std::vector<std::thread> threads;
  for (std::string& image : images) {
    threads.emplace_back([&image] {
      for (int i = 0; i < 20; ++i)
        image = tensors_to_hdf5(tensors_from_hdf5(tensors_to_hdf5(one_of_each()), "image"));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& image : images) EXPECT_EQ(image, expected);
}

}  // namespace
}  // namespace linnet
