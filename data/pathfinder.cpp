#include "data/pathfinder.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/files.h"
#include "core/interrupt.h"
#include "core/progress.h"
#include "data/image.h"
#include "data/lines.h"
#include "data/permutation.h"
#include "data/words.h"

namespace linnet {
namespace {

constexpr uint64_t kMaxImageBytes = uint64_t{64} << 20, kMaxMetadataBytes = uint64_t{1} << 30;

struct Picture {
  std::string path;
  std::string line;  // "metadata/0.npy:3"
  int32_t label;
};

std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> fields;
  for (size_t at = 0; at < line.size();) {
    const size_t begin = at;
    while (at < line.size() && !is_space(line[at])) ++at;
    if (at > begin) fields.push_back(line.substr(begin, at - begin));
    while (at < line.size() && is_space(line[at])) ++at;
  }
  return fields;
}

// A name from a file must not lead out of the data.
bool stays_inside(std::string_view name) {
  if (name.starts_with('/')) return false;
  for (size_t at = 0; at <= name.size();) {
    const size_t end = std::min(name.find('/', at), name.size());
    if (name.substr(at, end - at) == "..") return false;
    at = end + 1;
  }
  return true;
}

void read_metadata(const std::string& root, const std::string& path,
                   std::vector<Picture>& pictures) {
  const std::string text = read_file(path, kMaxMetadataBytes);
  require(!text.starts_with("\x93NUMPY"), Cause{ErrorCode::malformed, "", path}, path,
          ": is an array of NumPy; the Long Range Arena's metadata are text, a line a picture");
  for (TextLines lines(without_byte_order_mark(text)); lines.next();) {
    const std::vector<std::string_view> fields = fields_of(lines.line());
    if (fields.empty()) continue;
    const std::string place = concat(path, ":", lines.number());
    const Cause cause{ErrorCode::malformed, "", place};
    require(fields.size() >= 4, cause, place, ": has ", fields.size(),
            " fields; expected folder, file, index and label between blanks");
    require(fields[3] == "0" || fields[3] == "1", cause, place, ": the label '", fields[3],
            "' (the fourth field) is neither 0 nor 1");
    require(stays_inside(fields[0]) && stays_inside(fields[1]), cause, place, ": the name '",
            fields[0], "/", fields[1], "' leads out of the folder of the data");
    pictures.push_back(
        {join_path(join_path(root, fields[0]), fields[1]), place, fields[3] == "1" ? 1 : 0});
  }
}

std::string root_of(const std::string& folder, const std::string& subset) {
  const std::string below = join_path(folder, subset);
  return is_directory(join_path(below, "metadata")) ? below : folder;
}

}  // namespace

void PathfinderOptions::describe(ConfigDescription<PathfinderOptions>& d) {
  describe_pixels(d);
  d.field("subset", &PathfinderOptions::subset,
          "folder of the released data: curv_baseline, curv_contour_length_9 or "
          "curv_contour_length_14 (the published task)");
  d.field("seed", &PathfinderOptions::seed, "the order that the splits are cut from").at_least(0);
}

bool is_pathfinder(const std::string& folder, const PathfinderOptions& options) {
  const std::string root = root_of(folder, options.subset);
  return is_directory(join_path(root, "metadata")) && is_directory(join_path(root, "imgs"));
}

ClassificationDataset read_pathfinder(const std::string& folder, const PathfinderOptions& options) {
  const std::string root = root_of(folder, options.subset), metadata = join_path(root, "metadata");
  require(is_directory(metadata), Cause{ErrorCode::not_found, "", folder}, folder,
          exists(folder) ? concat(" has no metadata/, nor has ", options.subset, "/ in it")
                         : std::string(" does not exist"),
          "; pathfinder needs a folder with metadata/ and imgs/");
  std::vector<Picture> pictures;
  for (const std::string& name : file_system().list(metadata))
    if (!name.starts_with('.')) read_metadata(root, join_path(metadata, name), pictures);
  const auto listed = static_cast<int64_t>(pictures.size());
  std::string first_empty;
  const auto is_empty = [&first_empty](const Picture& picture) {
    const auto status = file_system().status(picture.path);
    require(status.has_value(), Cause{ErrorCode::not_found, "", picture.line}, picture.line, ": ",
            picture.path, " does not exist");
    if (status->bytes == 0 && first_empty.empty()) first_empty = picture.path;
    return status->bytes == 0;
  };
  const size_t left_out = std::erase_if(pictures, is_empty);
  const auto count = static_cast<int64_t>(pictures.size());
  constexpr int64_t kTenths = 10;
  require(count >= kTenths, Cause{ErrorCode::malformed, "", metadata}, metadata, ": lists ", listed,
          " pictures, ", left_out, " of them empty; at least 10 are needed for three splits");

  ClassificationDataset data;
  data.layout = concat("Pathfinder pictures (", file_name(root), ")");
  data.vocabulary_size = options.vocabulary();
  data.classes = 2;
  data.class_names = {"different paths", "one path"};
  if (left_out > 0)
    data.notes.push_back(concat(left_out, " of ", listed,
                                " pictures are files of no bytes and are left out, such as ",
                                first_empty));
  const int64_t ends[] = {count * 8 / kTenths, count * 9 / kTenths, count};
  int64_t at = 0, width = 0, height = 0;
  WorkProgress progress;
  for (const Split name : kSplits) {
    ClassificationSplit split;
    options.set_up(split);
    for (; at < ends[static_cast<size_t>(name)]; ++at) {
      interruption_point();
      const int64_t index = permuted_index(static_cast<uint64_t>(options.seed), 0, at, count);
      const Picture& picture = pictures[static_cast<size_t>(index)];
      const Image image = decode_image(read_file(picture.path, kMaxImageBytes), picture.path);
      if (at == 0) {
        width = image.width;
        height = image.height;
      }
      require(image.width == width && image.height == height,
              Cause{ErrorCode::conflict, "", picture.path}, picture.path, ": has ", image.width,
              " x ", image.height, " pixels, but another has ", width, " x ", height,
              "; all pictures must have one size");
      options.add(grey_values(image), picture.label, picture.path, split);
      progress.show("reading pictures", static_cast<double>(at), static_cast<double>(count));
    }
    data.set(name, std::move(split));
  }
  return data;
}

DataKind pathfinder_kind() {
  return {.name = "pathfinder",
          .help = "pictures of dashed paths, a token a pixel: metadata/ and imgs/",
          .options = KindOptions(PathfinderOptions()),
          .gives = LabelledData{.load =
                                    [](const DataConfig& config) {
                                      return read_pathfinder(
                                          config.path, config.options.as<PathfinderOptions>());
                                    }},
          .likeness =
              [](const std::string& path) {
                return is_pathfinder(path) ? Likeness::folders : Likeness::none;
              },
          .source_keys = {"subset", "seed"}};
}

}  // namespace linnet
