#include "data/lra_image.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/files.h"
#include "core/interrupt.h"
#include "core/progress.h"
#include "data/byte_source.h"
#include "data/image.h"

namespace linnet {
namespace {

constexpr size_t kCifarPixels = 32 * 32, kCifarImageBytes = 1 + 3 * kCifarPixels;
constexpr int32_t kCifarClasses = 10;
// A packed image of kMaxImageSide a side is smaller.
constexpr uint64_t kMaxImageBytes = uint64_t{64} << 20;
constexpr uint64_t kMaxBatchBytes = uint64_t{1} << 30;

std::string without_compression(std::string name) {
  for (const char* ending : {".xz", ".gz"})
    if (name.ends_with(ending)) name.resize(name.size() - 3);
  return name;
}

// Batches whose names begin so, sorted; of a plain file and a compressed one with its name, the
// plain one.
std::vector<std::string> batches(const std::string& folder, std::string_view start) {
  std::vector<std::string> found;
  std::string before;
  for (const std::string& name : file_system().list(folder)) {
    const std::string plain = without_compression(name);
    if (!plain.starts_with(start) || !plain.ends_with(".bin") || plain == before) continue;
    before = plain;
    found.push_back(join_path(folder, name));
  }
  return found;
}

std::optional<ClassificationSplit> read_batches(const std::string& folder, std::string_view start,
                                                const PixelOptions& pixels) {
  ClassificationSplit split;
  pixels.set_up(split);
  std::vector<uint8_t> grey(kCifarPixels);
  for (const std::string& path : batches(folder, start)) {
    interruption_point();
    const std::string bytes = read_decompressed(path, kMaxBatchBytes);
    const size_t count = bytes.size() / kCifarImageBytes, rest = bytes.size() % kCifarImageBytes;
    require(count > 0 && rest == 0, Cause{ErrorCode::malformed, "", path}, path, ": holds ", count,
            " images of 3073 bytes and ", rest,
            " bytes more; it is truncated, or no binary batch of CIFAR-10");
    for (size_t i = 0; i < count; ++i) {
      const auto* image =
          reinterpret_cast<const unsigned char*>(bytes.data()) + i * kCifarImageBytes;
      const std::string name = concat(path, ": image ", i);
      require(image[0] < kCifarClasses, Cause{ErrorCode::out_of_range, "", path}, name,
              " (at byte offset ", i * kCifarImageBytes, ") has the label ", int{image[0]},
              "; CIFAR-10 has the labels 0 to 9");
      const unsigned char* red = image + 1;
      for (size_t p = 0; p < kCifarPixels; ++p)
        grey[p] = grey_value(red[p], red[kCifarPixels + p], red[2 * kCifarPixels + p]);
      pixels.add(grey, image[0], name, split);
    }
  }
  if (split.size() == 0) return std::nullopt;
  return split;
}

bool is_image_name(const std::string& name) {
  return name.ends_with(".png") || name.ends_with(".jpg") || name.ends_with(".jpeg");
}

std::vector<std::string> folders_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const std::string& name : file_system().list(folder))
    if (!name.starts_with('.') && is_directory(join_path(folder, name))) names.push_back(name);
  return names;
}

class ClassFolders {
 public:
  ClassFolders(const PixelOptions& pixels, std::vector<std::string> classes)
      : pixels_(pixels), classes_(std::move(classes)) {}

  ClassificationSplit read(const std::string& folder) {
    ClassificationSplit split;
    pixels_.set_up(split);
    for (const std::string& name : folders_in(folder)) {
      const auto place = std::find(classes_.begin(), classes_.end(), name);
      require(place != classes_.end(), Cause{ErrorCode::unknown_name, "", join_path(folder, name)},
              join_path(folder, name), ": the training images have no class '", name, "'");
      read_class(join_path(folder, name), static_cast<int32_t>(place - classes_.begin()), split);
    }
    require(split.size() > 0, Cause{ErrorCode::not_found, "", folder}, folder,
            " holds no CLASS/*.png, *.jpg or *.jpeg");
    return split;
  }
  bool saw_jpeg() const { return saw_jpeg_; }

 private:
  void read_class(const std::string& folder, int32_t label, ClassificationSplit& split) {
    const std::vector<std::string> names = file_system().list(folder);
    for (size_t i = 0; i < names.size(); ++i) {
      if (names[i].starts_with('.') || !is_image_name(names[i])) continue;
      interruption_point();
      const std::string path = join_path(folder, names[i]);
      const Image image = decode_image(read_file(path, kMaxImageBytes), path);
      if (width_ == 0) {
        width_ = image.width;
        height_ = image.height;
        first_ = path;
      }
      require(image.width == width_ && image.height == height_,
              Cause{ErrorCode::conflict, "", path}, path, ": has ", image.width, " x ",
              image.height, " pixels, but ", first_, " has ", width_, " x ", height_,
              "; all images must have one size");
      saw_jpeg_ = saw_jpeg_ || !path.ends_with(".png");
      pixels_.add(grey_values(image), label, path, split);
      if (progress_.due())
        progress_.show(concat("reading images of ", folder), static_cast<double>(i),
                       static_cast<double>(names.size()));
    }
  }

  const PixelOptions& pixels_;
  std::vector<std::string> classes_;
  int64_t width_ = 0, height_ = 0;
  std::string first_;
  bool saw_jpeg_ = false;
  WorkProgress progress_;
};

void put_held_out(ClassificationDataset& data, const ClassificationSplit& whole,
                  const LraImageOptions& options, bool in_order) {
  auto [train, validation] = hold_out(whole, options.validation_fraction, options.seed, in_order);
  data.set(Split::train, std::move(train));
  data.set(Split::validation, std::move(validation));
}

ClassificationDataset read_class_folders(const std::string& folder,
                                         const LraImageOptions& options) {
  ClassificationDataset data;
  const std::string train = join_path(folder, "train"), test = join_path(folder, "test");
  data.class_names = folders_in(is_directory(train) ? train : test);
  data.classes = static_cast<int32_t>(data.class_names.size());
  ClassFolders reader(options, data.class_names);
  std::string validation;
  for (const char* name : {"validation", "valid", "dev"})
    if (is_directory(join_path(folder, name))) validation = join_path(folder, name);
  if (is_directory(train)) {
    const ClassificationSplit whole = reader.read(train);
    if (validation.empty())
      put_held_out(data, whole, options, false);
    else
      data.set(Split::train, whole);
  }
  if (!validation.empty()) data.set(Split::validation, reader.read(validation));
  if (is_directory(test)) data.set(Split::test, reader.read(test));
  data.layout = reader.saw_jpeg() ? "folders of images by class, in lossy JPEG: not the values of "
                                    "the images that they were made from"
                                  : "folders of images by class";
  return data;
}

}  // namespace

void LraImageOptions::describe(ConfigDescription<LraImageOptions>& d) {
  describe_pixels(d);
  d.group<HoldOutOptions>();
}

bool is_lra_image(const std::string& folder) {
  if (!is_directory(folder)) return false;
  if (!batches(folder, "data_batch").empty() || !batches(folder, "test_batch").empty()) return true;
  for (const char* split : {"train", "test"}) {
    const std::string path = join_path(folder, split);
    if (!is_directory(path)) continue;
    for (const std::string& name : folders_in(path)) {
      const auto names = file_system().list(join_path(path, name));
      if (std::any_of(names.begin(), names.end(), is_image_name)) return true;
    }
  }
  return false;
}

ClassificationDataset read_lra_image(const std::string& folder, const LraImageOptions& options) {
  require(is_lra_image(folder), Cause{ErrorCode::not_found, "", folder}, folder,
          is_directory(folder) ? " holds neither data_batch*.bin and test_batch*.bin nor "
                                 "train/CLASS/ and test/CLASS/ with .png, .jpg or .jpeg files"
          : exists(folder)     ? " is a file; the images of CIFAR-10 are a folder"
                               : " does not exist");
  ClassificationDataset data;
  const auto train = read_batches(folder, "data_batch", options);
  auto test = read_batches(folder, "test_batch", options);
  if (train || test) {
    data.layout = "binary batches of CIFAR-10";
    data.classes = kCifarClasses;
    data.class_names = {"airplane", "automobile", "bird",  "cat",  "deer",
                        "dog",      "frog",       "horse", "ship", "truck"};
    if (train) put_held_out(data, *train, options, true);
    if (test) data.set(Split::test, std::move(*test));
  } else {
    data = read_class_folders(folder, options);
  }
  data.vocabulary_size = options.vocabulary();
  return data;
}

DataKind lra_image_kind() {
  return {.name = "lra_image",
          .help = "CIFAR-10 in grey, a token a pixel: binary batches, or PNG or JPEG by class",
          .options = KindOptions(LraImageOptions()),
          .gives = LabelledData{.load =
                                    [](const DataConfig& config) {
                                      return read_lra_image(config.path,
                                                            config.options.as<LraImageOptions>());
                                    }},
          .likeness =
              [](const std::string& path) {
                return is_lra_image(path) ? Likeness::files : Likeness::none;
              },
          .source_keys = {"validation_fraction", "seed"}};
}

}  // namespace linnet
