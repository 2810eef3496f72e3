// Damaged cases of `linnet attention run`: an Error or a result, soon, in little memory.
// LINNET_MUTATIONS=N and LINNET_MUTATION_SEED=S run N mutations (default: 400) from another seed.
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "core/files.h"
#include "tests/attention/case_file.h"
#include "tests/core/foreign_hdf5.h"
#include "tests/data_path.h"

namespace linnet {
namespace {

using namespace test;

constexpr double kSeconds = 2;
constexpr int64_t kKibibytes = 512 * 1024;

// As h5py writes it: texts of variable length.
std::string foreign_image(const CaseFile& file) {
  const ForeignHdf5 foreign;
  for (const auto& [name, tensor] : file.tensors) {
    const std::vector<int64_t>& sizes = tensor.shape().sizes();
    foreign.dataset(name, std::vector<hsize_t>(sizes.begin(), sizes.end()),
                    hdf5::file_type(tensor.dtype()), hdf5::memory_type(tensor.dtype()),
                    tensor.raw());
  }
  foreign.text_attribute("/", "mechanism", file.mechanism);
  foreign.text_attribute("/", "form", file.form);
  foreign.text_attribute("/", "config", file.config);
  for (const auto& [name, value] :
       {std::pair{"core", file.core}, {"seed", file.seed}, {"max_length", file.max_length}}) {
    foreign.attribute("/", name, H5T_STD_I64LE, H5T_NATIVE_INT64, &value);
  }
  return foreign.image();
}

// One case of every mechanism, written by linnet and as h5py writes.
std::vector<std::string> sound_images() {
  std::vector<std::string> images;
  for (const Mechanism& mechanism : mechanisms()) {
    const Form form = mechanism.traits.has(Form::causal) ? Form::causal : Form::noncausal;
    const CaseFile file = make_case(mechanism, form);
    images.push_back(file.image());
    images.push_back(foreign_image(file));
  }
  return images;
}

class Draws {
 public:
  explicit Draws(uint64_t seed) : key_{seed, 0, 0} {}
  uint64_t below(uint64_t bound) { return key_.below(count_++, bound); }

 private:
  RandomKey key_;
  uint64_t count_ = 0;
};

std::string mutated(std::string image, Draws& draws) {
  const uint64_t kind = draws.below(6), count = 1 + draws.below(4);
  if (kind == 0) return image.substr(0, draws.below(image.size()));
  // Structures, not tensors, hold most of the zeros: where one byte in four is not zero.
  const auto of_structure = [&] {
    for (int tries = 0; tries < 1000; ++tries) {
      const uint64_t at = draws.below(image.size() - 16);
      const int64_t zeros = std::count(image.begin() + static_cast<int64_t>(at),
                                       image.begin() + static_cast<int64_t>(at) + 16, '\0');
      if (zeros >= 4 && zeros < 16) return at;
    }
    return uint64_t{0};
  };
  constexpr uint64_t kWords[] = {0,         1,         7, 255, 65'536, INT32_MAX, uint64_t{1} << 40,
                                 INT64_MAX, UINT64_MAX};
  for (uint64_t i = 0; i < count; ++i) {
    if (kind == 1) image[draws.below(image.size())] ^= static_cast<char>(1 << draws.below(8));
    if (kind == 2) image[draws.below(image.size())] = static_cast<char>(draws.below(256));
    if (kind == 3) image[of_structure()] ^= static_cast<char>(1 << draws.below(8));
    if (kind == 4) image[of_structure()] = static_cast<char>(draws.below(256));
    if (kind == 5) {
      const uint64_t word = kWords[draws.below(std::size(kWords))];
      std::memcpy(image.data() + of_structure() / 8 * 8, &word, 8);
    }
  }
  return image;
}

double cpu_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

// Of this process, since start_peak.
int64_t peak_kibibytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6));
  }
  return 0;
}
void start_peak() {
  std::ofstream("/proc/self/clear_refs") << 5;
}

struct Most {
  double seconds = 0;
  int64_t kibibytes = 0;
};

// Whether it ran. Anything but a result or an Error is a failure of the test.
bool runs(const std::string& image, const std::string& what, Most& most) {
  start_peak();
  const double begin = cpu_seconds();
  bool ran = false;
  try {
    run_case(image, "CASE.h5", {});
    ran = true;
  } catch (const Error& error) {
    EXPECT_STRNE(error.what(), "") << what;
  } catch (const std::exception& error) {
    ADD_FAILURE() << what << ": " << error.what();
  }
  const Most now{cpu_seconds() - begin, peak_kibibytes()};
  EXPECT_LE(now.seconds, kSeconds) << what;
  EXPECT_LE(now.kibibytes, kKibibytes) << what;
  most = {std::max(most.seconds, now.seconds), std::max(most.kibibytes, now.kibibytes)};
  return ran;
}

int64_t setting(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::stoll(text);
}

TEST(DamagedCase, FilesThatCrashedOrHungAreRefused) {
  LINNET_REQUIRE_DATA(folder, "damaged");
  int files = 0;
  Most most;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    EXPECT_FALSE(runs(read_file(entry.path().string()), entry.path().string(), most));
    ++files;
  }
  EXPECT_GE(files, 6);
}

TEST(DamagedCase, MutationsEndSoonInLittleMemory) {
  const std::vector<std::string> images = sound_images();
  Most most;
  for (size_t i = 0; i < images.size(); ++i) {
    EXPECT_TRUE(runs(images[i], concat("sound ", i), most));
  }
  const int64_t count = setting("LINNET_MUTATIONS", 400);
  const int64_t seed = setting("LINNET_MUTATION_SEED", 1);
  int64_t ran = 0;
  for (int64_t i = 0; i < count; ++i) {
    Draws draws(static_cast<uint64_t>(seed * 1'000'000 + i));
    const uint64_t which = draws.below(images.size());
    const std::string what = concat("seed ", seed, ", mutation ", i, " of image ", which);
    ran += runs(mutated(images[which], draws), what, most);
  }
  std::cout << count << " mutations: " << ran << " ran, " << count - ran
            << " were refused; at most " << most.seconds << " s of CPU, " << most.kibibytes / 1024
            << " MiB\n";
  EXPECT_GT(ran, 0);
  EXPECT_LT(ran, count);
}

}  // namespace
}  // namespace linnet
