// safetensors: files of other programs, files of our own, what is refused, mutations.
#include "core/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/core/mutated_hdf5.h"
#include "tests/data_path.h"
#include "tests/error_helpers.h"
#include "tests/file_failures.h"
#include "tests/peak_memory.h"

namespace linnet {
namespace {

using testing::ElementsAre;
using namespace test;

std::string file_of(const std::string& header, const std::string& data = "") {
  const uint64_t length = header.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + header + data;
}

std::string refused(const std::string& bytes) {
  return causes_of([&] { (void)parse_safetensors(bytes, "a.safetensors"); });
}
std::string refused(const std::string& header, size_t data_bytes) {
  return refused(file_of(header, std::string(data_bytes, 'x')));
}

TEST(Safetensors, FilesOfOtherPrograms) {
  LINNET_REQUIRE_DATA(folder, "safetensors/misc");
  struct Expected {
    const char* file;
    size_t tensors;
    const char* name;
    Shape shape;
    DType dtype;
  };
  const Expected all[] = {
      {"burn_multi_layer", 9, "conv1.weight", {4, 3, 3, 3}, DType::f32},
      {"candle_jfk-codes", 1, "codes", {1, 2, 828}, DType::i64},
      {"syoyo_gen_model", 2, "weight2", {16, 16}, DType::f64},
      {"tensor-1d-int32", 1, "embedding", {3}, DType::i32},
      {"tensor-2d-float64", 1, "embedding", {2, 3}, DType::f64},
      {"tensor-3d-float32", 1, "embedding", {2, 2, 3}, DType::f32},
      {"tensor-4d-float32", 1, "embedding", {2, 3, 1, 3}, DType::f32},
  };
  for (const Expected& each : all) {
    const SafetensorsFiles file(join_path(folder, concat(each.file, ".safetensors")));
    EXPECT_EQ(file.tensors().size(), each.tensors) << each.file;
    const Tensor tensor = file.read(each.name);
    EXPECT_EQ(tensor.shape(), each.shape) << each.file;
    EXPECT_EQ(tensor.dtype(), each.dtype) << each.file;
  }
  const SafetensorsFiles scalar(join_path(folder, "burn_multi_layer.safetensors"));
  EXPECT_EQ(scalar.read("norm1.num_batches_tracked").shape(), Shape());
  EXPECT_EQ(causes_of([&] { (void)scalar.read("conv2.bias"); }),
            concat("unknown_name conv2.bias at ", scalar.path()));
  const std::string abuse = join_path(folder, "safetensors_abuse_attempt_1.safetensors");
  EXPECT_EQ(causes_of([&] { const SafetensorsFiles file(abuse); }), concat("malformed at ", abuse));
}

TEST(Safetensors, TinyBerts) {
  LINNET_REQUIRE_DATA(folder, "safetensors");
  EXPECT_EQ(SafetensorsFiles(join_path(folder, "coldfire_tiny_bert")).tensors().size(), 37u);
  const SafetensorsFiles jammi(join_path(folder, "jammi_tiny_bert"));
  EXPECT_EQ(jammi.tensors().size(), 21u);
  EXPECT_EQ(jammi.read("embeddings.word_embeddings.weight").shape(), Shape({256, 32}));
  for (const float gain : jammi.read("embeddings.LayerNorm.weight").to_vector<float>()) {
    EXPECT_TRUE(std::isfinite(gain));
  }
}

std::map<std::string, Tensor> one_of_each() {
  const std::vector<float> values{-1.5f, 0, 3.25f};
  std::map<std::string, Tensor> tensors;
  for (const DType dtype :
       {DType::f32, DType::f64, DType::bf16, DType::i32, DType::i64, DType::u8}) {
    tensors[concat("of_", name_of(dtype))] =
        Tensor::from(dtype == DType::u8 ? std::vector<float>{7, 0, 255} : values, {3, 1}).to(dtype);
  }
  tensors["empty"] = Tensor::zeros({0, 4});
  tensors["scalar"] = Tensor::from(std::vector<float>{2.5f}, {});
  tensors["a \"quoted\" \xC3\xA9"] = Tensor::from(std::vector<float>{1, 2}, {2});
  return tensors;
}

TEST(Safetensors, WritesWhatItReads) {
  const ScratchDirectory folder;
  const std::map<std::string, Tensor> tensors = one_of_each();
  const std::string path = folder / "a.safetensors";
  write_safetensors(path, tensors, {{"format", "pt"}});
  const SafetensorsFiles file(path);
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    const Tensor there = file.read(name);
    EXPECT_EQ(there.shape(), tensor.shape()) << name;
    ASSERT_EQ(there.dtype(), tensor.dtype()) << name;
    EXPECT_EQ(there.to_vector<double>(), tensor.to_vector<double>()) << name;
  }
  const std::string bytes = read_file(path);
  const SafetensorsContents contents = parse_safetensors(bytes, path);
  EXPECT_THAT(contents.metadata,
              ElementsAre(std::pair<const std::string, std::string>("format", "pt")));
  for (const auto& [name, tensor] : contents.tensors) {
    const auto at = static_cast<size_t>(tensor.bytes.data() - bytes.data());
    EXPECT_EQ(at % size_of(tensors.at(name).dtype()), 0u) << name;
  }
  const std::string again = folder / "b.safetensors";
  write_safetensors(again, tensors, {{"format", "pt"}});
  EXPECT_EQ(read_file(again), bytes);
  EXPECT_EQ(SafetensorsFiles(again).hash(), file.hash());
  EXPECT_THROW(write_safetensors(path, {{"mask", Tensor::zeros({2}, DType::boolean)}}), Error);
  EXPECT_EQ(read_file(path), bytes) << "a refused file leaves the old one";
}

// 0, smallest and largest subnormal, smallest normal, 1, -2, 65504, infinities, NaN.
TEST(Safetensors, HalfPrecisionBecomesF32) {
  const std::vector<uint16_t> halves{0,      0x8000, 0x0001, 0x03ff, 0x0400, 0x3c00,
                                     0xc000, 0x7bff, 0x7c00, 0xfc00, 0x7e01};
  const std::string data(reinterpret_cast<const char*>(halves.data()), 22);
  const std::string bytes =
      file_of(R"({"h":{"dtype":"F16","shape":[11],"data_offsets":[0,22]}})", data);
  const Tensor tensor = parse_safetensors(bytes, "a").tensors.at("h").read();
  ASSERT_EQ(tensor.dtype(), DType::f32);
  const std::vector<float> values = tensor.to_vector<float>();
  const std::vector<float> expected{0, -0.0f, 0x1p-24f, 0x1.ff8p-15f, 0x1p-14f,
                                    1, -2,    65504,    INFINITY,     -INFINITY};
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(values[i], expected[i]) << i;
  EXPECT_TRUE(std::signbit(values[1]));
  EXPECT_TRUE(std::isnan(values[10]));
}

TEST(Safetensors, HeadersThatAreRefused) {
  const std::string malformed = "malformed at a.safetensors", of_a = "malformed a at a.safetensors";
  const auto tensor = [](const std::string& name, const std::string& dtype,
                         const std::string& shape, const std::string& offsets) {
    return concat("\"", name, "\":{\"dtype\":\"", dtype, "\",\"shape\":", shape,
                  ",\"data_offsets\":", offsets, "}");
  };
  const std::string a = tensor("a", "F32", "[2]", "[0,8]");
  EXPECT_EQ(refused("{" + a + "}  ", 8), "nothing thrown");
  EXPECT_EQ(refused("{}", 0), "nothing thrown");
  EXPECT_EQ(refused(""), malformed);
  EXPECT_EQ(refused("", 0), malformed);
  EXPECT_EQ(refused(" {}", 0), malformed) << "white space in front";
  EXPECT_EQ(refused("{} {}", 0), malformed);
  EXPECT_EQ(refused("[]", 0), malformed);
  EXPECT_EQ(refused("{" + a, 8), malformed);
  EXPECT_EQ(refused("{\"\xff\":{}}", 0), malformed) << "not UTF-8";
  // Lengths of the header.
  for (const uint64_t length : {uint64_t{3}, uint64_t{100'000'001}, UINT64_MAX, UINT64_MAX - 7}) {
    std::string bytes = file_of("{}");
    std::memcpy(bytes.data(), &length, sizeof(length));
    EXPECT_EQ(refused(bytes), malformed) << length;
  }
  // Data without an owner, or with two.
  EXPECT_EQ(refused("{" + a + "}", 9), malformed);
  EXPECT_EQ(refused("{" + a + "}", 7), of_a);
  EXPECT_EQ(refused("{" + tensor("a", "F32", "[2]", "[4,12]") + "}", 12), of_a);
  EXPECT_EQ(refused("{" + a + "," + tensor("b", "U8", "[2]", "[7,9]") + "}", 9),
            "malformed b at a.safetensors");
  EXPECT_EQ(refused("{" + a + "," + tensor("b", "U8", "[0]", "[4,4]") + "}", 8),
            "malformed b at a.safetensors");
  EXPECT_EQ(refused("{" + a + "," + tensor("b", "U8", "[0]", "[8,8]") + "}", 8), "nothing thrown");
  // Sizes.
  EXPECT_EQ(refused("{" + tensor("a", "F32", "[3]", "[0,8]") + "}", 8), of_a);
  EXPECT_EQ(refused("{" + tensor("a", "F32", "[2]", "[8,0]") + "}", 8), of_a);
  EXPECT_EQ(refused("{" + tensor("a", "F32", "[4294967296,4294967296]", "[0,0]") + "}", 0), of_a);
  EXPECT_EQ(refused("{" + tensor("a", "U8", "[18446744073709551615]", "[0,8]") + "}", 8), of_a);
  EXPECT_EQ(refused("{" + tensor("a", "U8", "[9223372036854775807,0]", "[0,0]") + "}", 0), of_a);
  EXPECT_EQ(refused("{" + tensor("a", "U8", "[18446744073709551616]", "[0,8]") + "}", 8), of_a);
  EXPECT_EQ(refused("{" + tensor("a", "U8", "[-8]", "[0,8]") + "}", 8), of_a);
  EXPECT_EQ(refused("{" + tensor("a", "U8", "[8.0]", "[0,8]") + "}", 8), of_a);
  // As many sizes as a tensor has at most, and one more.
  EXPECT_EQ(refused("{" + tensor("a", "U8", "[1,1,1,1,1,1,1,8]", "[0,8]") + "}", 8),
            "nothing thrown");
  EXPECT_EQ(refused("{" + tensor("a", "U8", "[1,1,1,1,1,1,1,1,8]", "[0,8]") + "}", 8), of_a);
  EXPECT_EQ(refused("{" + tensor("a", "U8", "[8]", "[0,8,8]") + "}", 8), of_a);
  EXPECT_EQ(refused("{" + tensor("a", "U8", "[8]", "[8]") + "}", 8), of_a);
  // Types and keys.
  EXPECT_EQ(refused("{" + tensor("a", "F8_E4M3", "[8]", "[0,8]") + "}", 8), of_a);
  EXPECT_EQ(refused(R"({"a":{"dtype":"U8","shape":[8]}})", 8), of_a);
  EXPECT_EQ(refused(R"({"a":{"dtype":"U8","shape":8,"data_offsets":[0,8]}})", 8), of_a);
  EXPECT_EQ(refused(R"({"a":{"dtype":"U8","shape":[[8]],"data_offsets":[0,8]}})", 8), of_a);
  EXPECT_EQ(refused(R"({"a":{"dtype":["U8"],"shape":[8],"data_offsets":[0,8]}})", 8), of_a);
  EXPECT_EQ(refused(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8],"x":null}})", 8), of_a);
  EXPECT_EQ(refused(R"({"a":null})", 0), of_a);
  EXPECT_EQ(refused(R"({"__metadata__":{"a":1}})", 0), "malformed __metadata__ at a.safetensors");
  // Names that stand there twice.
  EXPECT_EQ(refused("{" + a + "," + tensor("\\u0061", "U8", "[0]", "[8,8]") + "}", 8),
            "repeated a at a.safetensors");
  EXPECT_EQ(refused(R"({"a":{"dtype":"U8","dtype":"U8","shape":[8],"data_offsets":[0,8]}})", 8),
            "repeated a.dtype at a.safetensors");
  EXPECT_EQ(refused(R"({"a":{"dtype":"U8","shape":[8],"shape":[8],"data_offsets":[0,8]}})", 8),
            "repeated a.shape at a.safetensors");
  EXPECT_EQ(refused(R"({"__metadata__":{},"__metadata__":{}})", 0),
            "repeated __metadata__ at a.safetensors");
  EXPECT_EQ(refused(R"({"__metadata__":{"a":"","a":""}})", 0),
            "repeated __metadata__.a at a.safetensors");
}

TEST(Safetensors, SeveralFilesOfAnIndex) {
  const ScratchDirectory folder;
  const Tensor one = Tensor::from(std::vector<float>{1}, {1}),
               two = Tensor::from(std::vector<float>{2}, {1});
  EXPECT_EQ(causes_of([&] { const SafetensorsFiles none(folder.path()); }),
            concat("not_found at ", folder / "model.safetensors"));
  write_safetensors(folder / "1.safetensors", {{"a", one}});
  write_safetensors(folder / "2.safetensors", {{"b", two}, {"c", one}});
  const std::string index = folder / "model.safetensors.index.json";
  const auto cause_of_index = [&](const std::string& text) {
    write_file(index, text);
    return causes_of([&] { const SafetensorsFiles files(folder.path()); }, folder.path());
  };
  EXPECT_EQ(cause_of_index(R"({"metadata":{"total_size":12},"weight_map":{"c":"2.safetensors",)"
                           R"("a":"1.safetensors","b":"2.safetensors"}})"),
            "nothing thrown");
  const SafetensorsFiles files(folder.path());
  EXPECT_EQ(files.path(), index);
  EXPECT_EQ(files.tensors().size(), 3u);
  EXPECT_EQ(files.read("b").item(), 2);
  const std::string hash = files.hash();
  EXPECT_NE(hash, SafetensorsFiles(folder / "2.safetensors").hash());
  EXPECT_EQ(cause_of_index("[]"), "malformed at model.safetensors.index.json");
  EXPECT_EQ(cause_of_index("{}"), "malformed at model.safetensors.index.json");
  EXPECT_EQ(cause_of_index(R"({"weight_map":{"a":1}})"),
            "malformed at model.safetensors.index.json");
  EXPECT_EQ(cause_of_index(R"({"weight_map":{"a":"../1.safetensors"}})"),
            "malformed at model.safetensors.index.json");
  EXPECT_EQ(cause_of_index(R"({"weight_map":{"a":"3.safetensors"}})"),
            "not_found at 3.safetensors");
  EXPECT_EQ(cause_of_index(R"({"weight_map":{"d":"1.safetensors"}})"),
            "malformed d at 1.safetensors");
  EXPECT_EQ(cause_of_index(R"({"weight_map":{"b":"2.safetensors"}})"),
            "malformed at 2.safetensors");
}

// A file that is cut while it is open is an error instead of SIGBUS.
TEST(Safetensors, AFileThatIsCutMeanwhile) {
  const ScratchDirectory folder;
  const std::string path = folder / "a.safetensors";
  write_safetensors(path, {{"a", Tensor::zeros({5000})}});
  const SafetensorsFiles file(path);
  file_system().truncate(path, 4096);
  EXPECT_EQ(causes_of([&] { (void)file.read("a"); }), concat("malformed at ", path));
}

// Reads every tensor; whether nothing was refused.
bool reads_all(const std::string& bytes) {
  try {
    for (const auto& [name, tensor] : parse_safetensors(bytes, "a").tensors) (void)tensor.read();
    return true;
  } catch (const Error&) {
    return false;
  }
}

// The header's length, or one of its numbers, replaced by one at an edge; or a part of the header
// that stands there twice, or not at all.
std::string edited(std::string bytes, MutationDraws& draws) {
  constexpr const char* kNumbers[] = {"0",
                                      "1",
                                      "-1",
                                      "2147483647",
                                      "4294967296",
                                      "9223372036854775807",
                                      "9223372036854775808",
                                      "18446744073709551615",
                                      "18446744073709551616",
                                      "1e400",
                                      "1.5"};
  constexpr uint64_t kLengths[] = {
      0, 1, 7, 8, 100'000'000, 100'000'001, INT64_MAX, UINT64_MAX - 7, UINT64_MAX};
  const uint64_t header = bytes.find('}', bytes.rfind("data_offsets")) + 2, kind = draws.below(4);
  const uint64_t at = 8 + draws.below(header - 8), length = draws.below(header - at);
  if (kind == 0) std::memcpy(bytes.data(), &kLengths[draws.below(std::size(kLengths))], 8);
  if (kind == 1) bytes.insert(at, bytes.substr(at, length));
  if (kind == 2) bytes.erase(at, length);
  if (kind == 3) {
    const size_t begin = bytes.find_first_of("0123456789", at);
    if (begin >= header) return bytes;
    const size_t end = bytes.find_first_not_of("0123456789", begin);
    bytes.replace(begin, end - begin, kNumbers[draws.below(std::size(kNumbers))]);
  }
  // The length again true, so that the parser sees the header.
  const uint64_t now = bytes.find('}', bytes.rfind("data_offsets")) - 6;
  if (kind != 0 && draws.below(4) > 0) std::memcpy(bytes.data(), &now, 8);
  return bytes;
}

TEST(Safetensors, MutationsEndSoonInLittleMemory) {
  const ScratchDirectory folder;
  const std::string path = folder / "a.safetensors";
  write_safetensors(path, one_of_each(), {{"format", "pt"}});
  std::vector<std::string> images{read_file(path)};
  for (const char* name : {"safetensors/jammi_tiny_bert/model.safetensors",
                           "safetensors/misc/burn_multi_layer.safetensors",
                           "safetensors/misc/tensor-4d-float32.safetensors"}) {
    const std::string real = data_path(name);
    if (!real.empty()) images.push_back(read_file(real));
  }
  const int64_t count = mutation_count(10'000), seed = mutation_seed();
  int64_t sound = 0;
  double most_seconds = 0;
  start_peak();
  for (int64_t i = 0; i < count; ++i) {
    MutationDraws draws(seed, i);
    const std::string& image = images[draws.below(images.size())];
    const std::string bytes = draws.below(2) == 0 ? edited(image, draws) : mutated(image, draws);
    const double begin = cpu_seconds();
    sound += reads_all(bytes);
    most_seconds = std::max(most_seconds, cpu_seconds() - begin);
  }
  EXPECT_LE(most_seconds, 1);
  const int64_t peak = peak_kibibytes();
  EXPECT_LE(peak, kPeakKibibytes);
  EXPECT_GT(sound, count / 100);
  EXPECT_LT(sound, count * 99 / 100);
  std::cout << sound << " of " << count << " mutations were read; at most " << most_seconds
            << " s of CPU, " << peak / 1024 << " MiB\n";
}

}  // namespace
}  // namespace linnet
