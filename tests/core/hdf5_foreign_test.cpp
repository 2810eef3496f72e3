// HDF5 images of other programs: what is read, what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hdf5.h>

#include <numeric>

#include "core/hdf5.h"
#include "tests/core/foreign_hdf5.h"
#include "tests/core/mutated_hdf5.h"
#include "tests/error_helpers.h"

namespace linnet {
namespace {

using hdf5::Handle;
using testing::ElementsAre;
using namespace test;

template <typename T>
std::vector<T> counted(size_t count) {
  std::vector<T> values(count);
  std::iota(values.begin(), values.end(), T{-7});
  return values;
}

Handle chunked(const std::vector<hsize_t>& sizes) {
  Handle creation(H5Pcreate(H5P_DATASET_CREATE), "no list");
  H5Pset_chunk(creation.get(), static_cast<int>(sizes.size()), sizes.data());
  return creation;
}

std::string refused(const std::string& image, const std::string& name = "x") {
  return causes_of([&] { (void)Hdf5Reader(image, "a.h5").read(name); });
}

TEST(ForeignHdf5, VariableLengthTexts) {
  const ForeignHdf5 file;
  const std::string config = "width: 8\nheads: 2\n", big(5000, 'y');
  file.text_attribute("/", "config", config);
  file.text_attribute("/", "empty", "");
  file.text_attribute("/", "big", big);
  const char* text = "h\xC3\xA9";
  const Handle type = variable_text_type();
  file.dataset("text", {}, type.get(), type.get(), &text);
  const Hdf5Reader reader(file.image(), "a.h5");
  EXPECT_EQ(reader.text_attribute("/", "config"), config);
  EXPECT_EQ(reader.text_attribute("/", "empty"), "");
  EXPECT_EQ(reader.text_attribute("/", "big"), big);
  EXPECT_EQ(reader.read_text("text"), text);
  const char* two[] = {"a", "b"};
  file.attribute("/", "two", type.get(), type.get(), two, {2});
  const Hdf5Reader again(file.image(), "a.h5");
  EXPECT_EQ(causes_of([&] { (void)again.text_attribute("/", "two"); }), "malformed at a.h5");
}

TEST(ForeignHdf5, ManyMembersAndAttributes) {
  const ForeignHdf5 file;
  const double value = 0.25;
  for (int64_t i = 0; i < 300; ++i) {
    file.dataset(concat("group/w", i), {}, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, &value);
    file.attribute("/", concat("a", i), H5T_STD_I64LE, H5T_NATIVE_INT64, &i);
  }
  const Hdf5Reader reader(file.image(), "a.h5");
  EXPECT_EQ(reader.list_datasets().size(), 300u);
  EXPECT_EQ(reader.attributes("/").size(), 300u);
  EXPECT_EQ(reader.read("group/w299").item(), value);
  EXPECT_EQ(reader.int_attribute("/", "a299"), 299);
}

TEST(ForeignHdf5, NumbersOfEveryWidthAndByteOrder) {
  const ForeignHdf5 file;
  const int64_t minus = -100;
  const double real = -0.3;
  const uint64_t large = UINT64_MAX;
  struct Whole {
    const char* name;
    hid_t type;
  };
  const Whole wholes[] = {{"i8", H5T_STD_I8LE},   {"i16be", H5T_STD_I16BE},
                          {"i32", H5T_STD_I32LE}, {"i32be", H5T_STD_I32BE},
                          {"i64", H5T_STD_I64LE}, {"i64be", H5T_STD_I64BE}};
  for (const Whole& whole : wholes) {
    file.attribute("/", whole.name, whole.type, H5T_NATIVE_INT64, &minus);
  }
  file.attribute("/", "u64", H5T_STD_U64BE, H5T_NATIVE_UINT64, &large);
  file.attribute("/", "f32be", H5T_IEEE_F32BE, H5T_NATIVE_DOUBLE, &real);
  file.attribute("/", "f64be", H5T_IEEE_F64BE, H5T_NATIVE_DOUBLE, &real);
  const std::vector<int64_t> values = counted<int64_t>(12);
  file.dataset("i32", {3, 4}, H5T_STD_I32BE, H5T_NATIVE_INT64, values.data());
  file.dataset("f64", {12}, H5T_IEEE_F64BE, H5T_NATIVE_INT64, values.data());
  file.dataset("i16", {12}, H5T_STD_I16LE, H5T_NATIVE_INT64, values.data());
  const Hdf5Reader reader(file.image(), "a.h5");
  for (const Whole& whole : wholes) {
    EXPECT_EQ(reader.int_attribute("/", whole.name), minus) << whole.name;
    EXPECT_EQ(reader.number_attribute("/", whole.name), minus) << whole.name;
  }
  EXPECT_EQ(causes_of([&] { (void)reader.int_attribute("/", "u64"); }), "malformed at a.h5");
  EXPECT_EQ(reader.number_attribute("/", "f32be"), double{-0.3f});
  EXPECT_EQ(reader.number_attribute("/", "f64be"), real);
  EXPECT_EQ(reader.read("i32").to_vector<int64_t>(), values);
  EXPECT_EQ(reader.read("f64").to_vector<int64_t>(), values);
  EXPECT_EQ(reader.dtype("f64"), DType::f64);
  EXPECT_EQ(causes_of([&] { (void)reader.read("i16"); }), "malformed at a.h5");
}

TEST(ForeignHdf5, AsManyDimensionsAsATensorHas) {
  const ForeignHdf5 file;
  const float values[] = {1, 2};
  file.dataset("most", {1, 1, 1, 1, 1, 1, 1, 2}, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, values);
  file.dataset("x", {1, 1, 1, 1, 1, 1, 1, 1, 2}, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, values);
  EXPECT_THAT(Hdf5Reader(file.image(), "a.h5").read("most").to_vector<float>(), ElementsAre(1, 2));
  EXPECT_EQ(refused(file.image()), "malformed at a.h5");
}

TEST(ForeignHdf5, NumpyBooleans) {
  const ForeignHdf5 file;
  const Handle type(H5Tenum_create(H5T_NATIVE_INT8), "no type");
  const int8_t no = 0, yes = 1;
  H5Tenum_insert(type.get(), "FALSE", &no);
  H5Tenum_insert(type.get(), "TRUE", &yes);
  const int8_t values[] = {1, 0, 1};
  file.dataset("mask", {3}, type.get(), type.get(), values);
  file.attribute("/", "training", type.get(), type.get(), &yes);
  const Hdf5Reader reader(file.image(), "a.h5");
  EXPECT_EQ(reader.dtype("mask"), DType::boolean);
  EXPECT_THAT(reader.read("mask").to_vector<int32_t>(), ElementsAre(1, 0, 1));
  EXPECT_EQ(reader.int_attribute("/", "training"), 1);
}

// Chunks that the shape does not fill, in every number of dimensions, and enough of them for a tree
// of several levels.
TEST(ForeignHdf5, ChunksAndFilters) {
  const ForeignHdf5 file;
  struct Setting {
    std::vector<hsize_t> sizes, chunk;
  };
  const Setting settings[] = {
      {{10}, {3}},      {{5000}, {3}},          {{7, 9}, {2, 4}},
      {{7, 9}, {7, 9}}, {{3, 5, 4}, {2, 5, 3}}, {{2, 3, 2, 5}, {1, 2, 2, 2}}};
  std::map<std::string, std::vector<double>> expected;
  for (const Setting& setting : settings) {
    size_t count = 1;
    for (const hsize_t size : setting.sizes) count *= size;
    const std::vector<double> values = counted<double>(count);
    for (const bool shuffle : {false, true}) {
      for (const bool deflate : {false, true}) {
        const Handle creation = chunked(setting.chunk);
        if (shuffle) H5Pset_shuffle(creation.get());
        if (deflate) H5Pset_deflate(creation.get(), 6);
        const std::string name = concat("x", expected.size());
        file.dataset(name, setting.sizes, H5T_IEEE_F32BE, H5T_NATIVE_DOUBLE, values.data(),
                     creation.get());
        expected[name] = values;
      }
    }
  }
  const std::map<std::string, Tensor> tensors = tensors_from_hdf5(file.image(), "a.h5");
  ASSERT_EQ(tensors.size(), expected.size());
  for (const auto& [name, values] : expected) {
    EXPECT_EQ(tensors.at(name).to_vector<double>(), values) << name;
  }
}

TEST(ForeignHdf5, CompactAndEmptyDatasets) {
  const ForeignHdf5 file;
  const Handle compact(H5Pcreate(H5P_DATASET_CREATE), "no list");
  H5Pset_layout(compact.get(), H5D_COMPACT);
  const std::vector<float> values = counted<float>(5);
  file.dataset("compact", {5}, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, values.data(), compact.get());
  file.dataset("empty", {0, 5}, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, nullptr);
  file.dataset("x", {5}, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, nullptr);
  const Hdf5Reader reader(file.image(), "a.h5");
  EXPECT_EQ(reader.read("compact").to_vector<float>(), values);
  EXPECT_EQ(reader.read("empty").shape(), Shape({0, 5}));
  EXPECT_EQ(causes_of([&] { (void)reader.read("x"); }), "malformed at a.h5") << "never written";
}

// h5py.Empty.
TEST(ForeignHdf5, AValueOfNoShapeSpoilsNothingElse) {
  const ForeignHdf5 file;
  const Handle space(H5Screate(H5S_NULL), "no space");
  const Handle none(
      H5Acreate2(file.file(), "none", H5T_IEEE_F64LE, space.get(), H5P_DEFAULT, H5P_DEFAULT),
      "no attribute");
  const std::vector<float> values = counted<float>(5);
  file.dataset("x", {5}, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, values.data());
  const Hdf5Reader reader(file.image(), "a.h5");
  EXPECT_TRUE(reader.has_attribute("/", "none"));
  EXPECT_EQ(causes_of([&] { (void)reader.number_attribute("/", "none"); }), "malformed at a.h5");
  EXPECT_EQ(reader.read("x").to_vector<float>(), values);
}

TEST(ForeignHdf5, WhatIsNotInTheImageIsRefused) {
  const ForeignHdf5 file;
  const std::vector<float> values = counted<float>(5);
  file.dataset("y", {5}, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, values.data());
  H5Lcreate_soft("/y", file.file(), "x", H5P_DEFAULT, H5P_DEFAULT);
  const Handle external(H5Pcreate(H5P_DATASET_CREATE), "no list");
  H5Pset_external(external.get(), "/etc/passwd", 0, 20);
  file.dataset("outside", {5}, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, nullptr, external.get());
  const std::string image = file.image();
  EXPECT_EQ(refused(image, "y"), "nothing thrown");
  EXPECT_EQ(refused(image, "x"), "malformed at a.h5");
  EXPECT_EQ(refused(image, "outside"), "malformed at a.h5");
}

// One object under two names could be read any number of times.
TEST(ForeignHdf5, SecondNamesAndCirclesAreRefused) {
  for (const char* target : {"/y", "/"}) {
    const ForeignHdf5 file;
    const float value = 1;
    file.dataset("y", {}, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, &value);
    H5Lcreate_hard(file.file(), target, file.file(), "x", H5P_DEFAULT, H5P_DEFAULT);
    EXPECT_EQ(refused(file.image(), "y"), "malformed at a.h5") << target;
  }
}

TEST(ForeignHdf5, OtherFiltersTypesAndFormatsAreRefused) {
  const std::vector<float> values = counted<float>(5);
  const ForeignHdf5 file;
  const Handle checked = chunked({5});
  H5Pset_fletcher32(checked.get());
  file.dataset("x", {5}, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, values.data(), checked.get());
  const Handle twice = chunked({5});
  H5Pset_shuffle(twice.get());
  H5Pset_shuffle(twice.get());
  file.dataset("twice", {5}, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, values.data(), twice.get());
  const Handle pair(H5Tcreate(H5T_COMPOUND, 8), "no type");
  H5Tinsert(pair.get(), "re", 0, H5T_IEEE_F32LE);
  H5Tinsert(pair.get(), "im", 4, H5T_IEEE_F32LE);
  file.dataset("pair", {2}, pair.get(), pair.get(), values.data());
  const std::string image = file.image();
  EXPECT_EQ(refused(image), "malformed at a.h5");
  EXPECT_EQ(refused(image, "twice"), "malformed at a.h5");
  EXPECT_EQ(refused(image, "pair"), "malformed at a.h5");
  const ForeignHdf5 newest(true);
  newest.dataset("x", {5}, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, values.data());
  EXPECT_EQ(refused(newest.image()), "malformed at a.h5");
}

// Everything that a reader can do with an image; true when nothing was refused.
bool reads_all(const std::string& image) {
  bool sound = true;
  const auto attempt = [&](const auto& body) {
    try {
      body();
    } catch (const Error&) {
      sound = false;
    }
  };
  attempt([&] {
    const Hdf5Reader reader(image, "a.h5");
    for (const std::string& name : reader.attributes("/")) {
      attempt([&] { (void)reader.text_attribute("/", name); });
    }
    for (const std::string& name : reader.list_datasets()) {
      attempt([&] { (void)reader.read(name); });
    }
  });
  return sound;
}

// Built with sanitizers, this finds reads outside the image. The campaign of attention's cases
// (damaged_case_test.cpp) measures time and memory.
TEST(ForeignHdf5, MutationsAreReadOrRefused) {
  const ForeignHdf5 file;
  const std::vector<double> values = counted<double>(60);
  for (const bool deflate : {false, true}) {
    const Handle creation = chunked({3, 4});
    if (deflate) H5Pset_deflate(creation.get(), 6);
    H5Pset_shuffle(creation.get());
    file.dataset(concat("group/chunked", deflate), {6, 10}, H5T_IEEE_F64BE, H5T_NATIVE_DOUBLE,
                 values.data(), creation.get());
  }
  file.dataset("group/whole", {60}, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, values.data());
  file.text_attribute("/", "form", "causal");
  file.text_attribute("/", "config", "width: 8");
  const std::string image = file.image();
  ASSERT_TRUE(reads_all(image));
  const int64_t count = mutation_count(2000), seed = mutation_seed();
  int64_t sound = 0;
  for (int64_t i = 0; i < count; ++i) {
    MutationDraws draws(seed, i);
    sound += reads_all(mutated(image, draws));
  }
  EXPECT_GT(sound, 0);
  EXPECT_LT(sound, count);
}

}  // namespace
}  // namespace linnet
