// Damaged cases of `linnet attention run`: an Error or a result, soon, in little memory.
// LINNET_MUTATIONS=N and LINNET_MUTATION_SEED=S make N mutations (default: 400) from another seed.
#include <hdf5.h>

#include <filesystem>

#include "core/files.h"
#include "core/threads.h"
#include "tests/attention/case_file.h"
#include "tests/core/foreign_hdf5.h"
#include "tests/core/mutated_hdf5.h"
#include "tests/data_path.h"
#include "tests/peak_memory.h"

namespace linnet {
namespace {

using namespace test;

constexpr double kSeconds = 2;

// As h5py writes it: texts of variable length.
std::string foreign_image(const CaseFile& file) {
  const ForeignHdf5 foreign;
  for (const auto& [name, tensor] : file.tensors) {
    const std::span<const int64_t> sizes = tensor.shape().sizes();
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
  EXPECT_LE(now.kibibytes, kPeakKibibytes) << what;
  most = {std::max(most.seconds, now.seconds), std::max(most.kibibytes, now.kibibytes)};
  return ran;
}

// One thread: threads that wait for each other on a busy machine would count as time.
class DamagedCase : public testing::Test {
 protected:
  void SetUp() override { set_thread_count(1); }
  void TearDown() override { set_thread_count(before_); }

 private:
  int before_ = thread_count();
};

TEST_F(DamagedCase, FilesThatCrashedOrHungAreRefused) {
  LINNET_REQUIRE_DATA(folder, "damaged");
  int files = 0;
  Most most;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    EXPECT_FALSE(runs(read_file(entry.path().string()), entry.path().string(), most));
    ++files;
  }
  EXPECT_GE(files, 6);
}

TEST_F(DamagedCase, MutationsEndSoonInLittleMemory) {
  const std::vector<std::string> images = sound_images();
  Most most;
  for (size_t i = 0; i < images.size(); ++i) {
    EXPECT_TRUE(runs(images[i], concat("sound ", i), most));
  }
  const int64_t count = mutation_count(400), seed = mutation_seed();
  int64_t ran = 0;
  for (int64_t i = 0; i < count; ++i) {
    MutationDraws draws(seed, i);
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

// Sizes that a sound file names are compared with its tensors before memory is taken for them. An
// option of the mechanism may ask for much work, as in a recipe.
TEST_F(DamagedCase, HugeSizesEndSoonInLittleMemory) {
  Most most;
  for (const Mechanism& mechanism : mechanisms()) {
    for (const Form form : {Form::noncausal, Form::causal, Form::cross}) {
      if (!mechanism.traits.has(form)) continue;
      const CaseFile sound = make_case(mechanism, form);
      const auto attempt = [&](const CaseFile& file, const std::string& what) {
        runs(file.image(), concat(mechanism.name, ' ', name_of(form), ' ', what), most);
      };
      for (const int64_t length : {int64_t{1} << 14, int64_t{1} << 24, INT64_MAX}) {
        CaseFile file = sound;
        file.max_length = length;
        attempt(file, concat("max_length ", length));
      }
      for (const char* size : {"3000", "1000000000", "9223372036854775807"}) {
        for (const char* config : {"{width: SIZE, heads: 2}", "{width: SIZE, heads: SIZE}",
                                   "{width: 16, heads: 2, rotary_width: SIZE}"}) {
          CaseFile file = sound;
          file.config = config;
          for (size_t at; (at = file.config.find("SIZE")) != std::string::npos;)
            file.config.replace(at, 4, size);
          attempt(file, file.config);
        }
      }
    }
  }
  std::cout << "at most " << most.seconds << " s of CPU, " << most.kibibytes / 1024 << " MiB\n";
}

}  // namespace
}  // namespace linnet
