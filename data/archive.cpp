#include "data/archive.h"

#include <archive.h>
#include <archive_entry.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/files.h"
#include "core/free_memory.h"
#include "core/hash.h"
#include "core/interrupt.h"
#include "core/log.h"
#include "core/progress.h"
#include "data/archive_handle.h"
#include "data/byte_source.h"

namespace linnet {
namespace {

constexpr size_t kTarBlockBytes = 512;
constexpr size_t kCopyBytes = size_t{1} << 18;
// In a complete folder: what was unpacked there.
constexpr const char* kMarker = ".linnet-archive";

template <typename... Parts>
[[noreturn]] void refuse(ErrorCode code, const std::string& path, const Parts&... parts) {
  throw Error(Cause{code, "", path}, concat(path, ": ", parts...));
}

// The checksum of a tar header, in octal, is the sum of its bytes with blanks in its own place.
bool is_tar_header(std::string_view block) {
  constexpr size_t kSumAt = 148, kSumBytes = 8;
  if (block.size() < kTarBlockBytes || block[0] == '\0') return false;
  uint64_t sum = kSumBytes * ' ', stored = 0;
  for (size_t i = 0; i < kTarBlockBytes; ++i)
    if (i < kSumAt || i >= kSumAt + kSumBytes) sum += static_cast<unsigned char>(block[i]);
  size_t at = kSumAt;
  while (at < kSumAt + kSumBytes && block[at] == ' ') ++at;
  const size_t digits = at;
  for (; at < kSumAt + kSumBytes && block[at] >= '0' && block[at] <= '7'; ++at)
    stored = 8 * stored + static_cast<uint64_t>(block[at] - '0');
  return at > digits && stored == sum;
}

std::optional<ArchiveFormat> format_of(const std::string& path) {
  const auto status = file_system().status(path);
  if (!status || !status->regular) return std::nullopt;
  std::string start(4, '\0');
  start.resize(File(path, OpenMode::read).read(start));
  using namespace std::string_view_literals;
  if (start == "PK\3\4"sv || start == "PK\5\6"sv) return ArchiveFormat::zip;
  std::string block(kTarBlockBytes, '\0');
  block.resize(open_bytes(path)->read(block));
  if (is_tar_header(block)) return ArchiveFormat::tar;
  constexpr std::array kEndings = {".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".zip"};
  const bool named_so = std::any_of(kEndings.begin(), kEndings.end(),
                                    [&](const char* ending) { return path.ends_with(ending); });
  if (named_so)
    refuse(ErrorCode::malformed, path,
           "is named like an archive, but its contents are neither a tar nor a zip file; get it "
           "again, or rename it");
  return std::nullopt;
}

// The only file of a folder that holds nothing else, or `path` itself.
std::string only_file(const std::string& path) {
  if (!is_directory(path)) return path;
  const std::vector<std::string> names = file_system().list(path);
  return names.size() == 1 ? join_path(path, names[0]) : path;
}

// The parts of a member's name, without "." and empty ones. Throws where it leaves the folder.
std::vector<std::string> parts_of(const std::string& path, std::string_view name) {
  if (name.starts_with('/'))
    refuse(ErrorCode::malformed, path, "the member '", name,
           "' has an absolute name, which would leave the folder it is unpacked to");
  std::vector<std::string> parts;
  while (!name.empty()) {
    const size_t end = std::min(name.find('/'), name.size());
    const std::string_view part = name.substr(0, end);
    name.remove_prefix(std::min(end + 1, name.size()));
    if (part == "..")
      refuse(ErrorCode::malformed, path, "a member has '..' in its name ('",
             concat(part, "/", name), "'), which would leave the folder it is unpacked to");
    if (!part.empty() && part != ".") parts.emplace_back(part);
  }
  return parts;
}

struct Contents {
  uint64_t files = 0, bytes = 0;
};

// A folder that is made empty, and disappears again unless it was renamed.
class TemporaryTree {
 public:
  explicit TemporaryTree(std::string path) : path_(std::move(path)) {
    remove_all(path_);
    create_directories(path_);
  }
  ~TemporaryTree() {
    if (renamed_) return;
    try {
      remove_all(path_);
    } catch (const Error&) {  // the first error is the one to report
    }
  }
  TemporaryTree(const TemporaryTree&) = delete;
  TemporaryTree& operator=(const TemporaryTree&) = delete;
  const std::string& path() const { return path_; }
  // Held while a file is made or written: a signal's cleanup waits for it.
  std::unique_lock<std::mutex> hold() { return std::unique_lock(mutex_); }
  void rename(const std::string& to) {
    const auto held = hold();
    file_system().rename(path_, to);
    renamed_ = true;
  }

 private:
  std::string path_;
  bool renamed_ = false;
  std::mutex mutex_;
  // The lock is kept: the program ends, and must make no more files until then.
  StopCleanup cleanup_{[this] {
    mutex_.lock();
    if (!renamed_) remove_all(path_);
  }};
};

// Writes the members of one archive below a folder.
class Unpacker {
 public:
  Unpacker(const std::string& path, const ArchiveLimits& limits, TemporaryTree& tree)
      : path_(path), limits_(limits), tree_(tree), archive_bytes_(file_bytes(path)) {}

  Contents unpack(ArchiveFormat format) {
    if (format == ArchiveFormat::tar) {
      const auto source = open_bytes(path_);
      std::string last;  // bytes of the stream that were read last
      const auto read = [&](std::span<char> into) {
        const size_t count = source->read(into);
        last.append(into.data(), count);
        if (last.size() > kTarBlockBytes) last.erase(0, last.size() - kTarBlockBytes);
        taken_ = source->taken_bytes();
        return count;
      };
      unpack_members(format, {read});
      // libarchive takes a file that was cut between two members for a whole one.
      if (last.find_first_not_of('\0') != std::string::npos || last.size() < kTarBlockBytes)
        refuse(ErrorCode::malformed, path_,
               "this tar file is truncated: the empty block at its end is missing; get it again");
    } else {
      File file(path_, OpenMode::read);
      const auto read = [&](std::span<char> into) {
        const size_t count = file.read(into);
        taken_ += count;
        return count;
      };
      unpack_members(format, {read, [&](uint64_t offset) { file.seek(offset); }, archive_bytes_});
    }
    if (contents_.files == 0) refuse(ErrorCode::malformed, path_, "this archive holds no files");
    return contents_;
  }

 private:
  void unpack_members(ArchiveFormat format, ArchiveInput input) {
    const Utf8Names utf8;
    ArchiveHandle handle(path_, format, std::move(input));
    while (archive_entry* entry = handle.next()) {
      interruption_point();
      if (++members_ > limits_.members)
        refuse(ErrorCode::out_of_range, path_, "has more than ", limits_.members, " members");
      unpack_member(handle, entry);
    }
  }

  void unpack_member(ArchiveHandle& handle, archive_entry* entry) {
    const char* raw_name = archive_entry_pathname(entry);
    if (raw_name == nullptr)
      refuse(ErrorCode::malformed, path_, "the name of member ", members_, " is not valid UTF-8");
    const std::string name = raw_name;
    if (name.size() > limits_.name_bytes)
      refuse(ErrorCode::out_of_range, path_, "the name of member ", members_, " has ", name.size(),
             " bytes, more than ", limits_.name_bytes);
    refuse_kind(name, entry);
    const std::vector<std::string> parts = parts_of(path_, name);
    if (archive_entry_filetype(entry) == AE_IFDIR) return make_folders(name, parts, parts.size());
    if (parts.empty()) refuse(ErrorCode::malformed, path_, "member ", members_, " has no name");
    make_folders(name, parts, parts.size() - 1);
    const uint64_t declared =
        archive_entry_size_is_set(entry) != 0
            ? static_cast<uint64_t>(std::max<int64_t>(archive_entry_size(entry), 0))
            : 0;
    require_room(name, declared);
    write_member(handle, name, folder_of(parts, parts.size()));
  }

  void refuse_kind(const std::string& name, archive_entry* entry) const {
    const auto kind = archive_entry_filetype(entry);
    if (archive_entry_is_encrypted(entry) != 0)
      refuse(ErrorCode::malformed, path_, "the member '", name,
             "' is encrypted; unpack the archive yourself and name its folder");
    if (archive_entry_hardlink(entry) != nullptr || kind == AE_IFLNK)
      refuse(ErrorCode::malformed, path_, "the member '", name, "' is a ",
             kind == AE_IFLNK ? "symbolic" : "hard",
             " link; unpack the archive yourself and name its folder");
    if (kind != AE_IFREG && kind != AE_IFDIR)
      refuse(ErrorCode::malformed, path_, "the member '", name,
             "' is a device, a pipe or a socket, not a file");
  }

  std::string folder_of(const std::vector<std::string>& parts, size_t count) const {
    std::string folder = tree_.path();
    for (size_t i = 0; i < count; ++i) folder = join_path(folder, parts[i]);
    return folder;
  }

  void make_folders(const std::string& name, const std::vector<std::string>& parts, size_t count) {
    const std::string whole = folder_of(parts, count);
    if (whole == last_folder_) return;
    for (size_t i = 1; i <= count; ++i) {
      const std::string folder = folder_of(parts, i);
      const auto status = file_system().status_of_link(folder);
      if (status && !status->directory)
        refuse(ErrorCode::repeated, path_, "the member '", name,
               "' lies below a name that is a file's as well");
      const auto held = tree_.hold();
      if (!status) file_system().create_directory(folder);
    }
    last_folder_ = whole;
  }

  // Before `more` bytes are written.
  void require_room(const std::string& name, uint64_t more) const {
    const auto beyond = [&](uint64_t limit) {
      return more > limit || contents_.bytes > limit - more;
    };
    if (beyond(limits_.bytes))
      refuse(ErrorCode::out_of_range, path_, "holds more than the limit of ",
             memory_text(static_cast<double>(limits_.bytes)), " (at the member '", name,
             "'); unpack the archive yourself and name its folder");
    if (beyond(std::max(limits_.free_bytes, limits_.ratio * archive_bytes_)))
      refuse(ErrorCode::out_of_range, path_, "grows to more than ", limits_.ratio,
             " times its size (at the member '", name,
             "'); unpack the archive yourself and name its folder if you trust it");
    const uint64_t free = file_system().free_bytes(tree_.path());
    if (more > free)
      refuse(ErrorCode::system, path_, "the member '", name, "' needs ",
             memory_text(static_cast<double>(more)), ", and the disk of ",
             parent_path(tree_.path()), " has ", memory_text(static_cast<double>(free)),
             " left; set LINNET_CACHE to a folder with more room");
  }

  void write_member(ArchiveHandle& handle, const std::string& name, const std::string& target) {
    if (file_system().status_of_link(target))
      refuse(ErrorCode::repeated, path_, "two members have the name '", name, "'");
    auto held = tree_.hold();
    File file(target, OpenMode::write);
    while (const size_t count = handle.read(buffer_)) {
      held.unlock();
      report();
      interruption_point();
      require_room(name, count);
      held.lock();
      file.write(std::string_view(buffer_.data(), count));
      contents_.bytes += count;
    }
    file.close();
    ++contents_.files;
  }

  void report() {
    if (!progress_.due()) return;
    progress_.show(concat("unpacking ", file_name(path_), ": ", contents_.files, " files"),
                   static_cast<double>(taken_), static_cast<double>(archive_bytes_));
  }

  const std::string& path_;
  const ArchiveLimits& limits_;
  TemporaryTree& tree_;
  uint64_t archive_bytes_, taken_ = 0, members_ = 0;
  std::string last_folder_;
  Contents contents_;
  std::vector<char> buffer_ = std::vector<char>(kCopyBytes);
  WorkProgress progress_;
};

std::string marker_text(const Contents& contents) {
  return concat("files ", contents.files, "\nbytes ", contents.bytes, "\n");
}

void add_contents(const std::string& folder, Contents& contents) {
  for (const std::string& name : file_system().list(folder)) {
    const std::string path = join_path(folder, name);
    const auto status = file_system().status_of_link(path);
    if (!status) continue;
    if (status->directory) {
      add_contents(path, contents);
    } else {
      ++contents.files;
      contents.bytes += status->bytes;
    }
  }
}

// Whether everything that was unpacked is still there.
bool is_complete(const std::string& folder) {
  const std::string marker = join_path(folder, kMarker);
  const auto status = file_system().status(marker);
  if (!status || !status->regular) return false;
  constexpr uint64_t kMaxMarkerBytes = 200;
  if (status->bytes > kMaxMarkerBytes) return false;
  Contents found;
  add_contents(folder, found);
  found.files -= 1;
  found.bytes -= status->bytes;
  return read_file(marker) == marker_text(found);
}

// The folder that holds everything, unless it is a split: "folder/aclImdb".
std::string top_of(const std::string& folder) {
  std::vector<std::string> names = file_system().list(folder);
  std::erase(names, kMarker);
  if (names.size() != 1) return folder;
  constexpr std::array kSplitNames = {"train", "dev", "valid", "validation", "val", "eval", "test"};
  const bool split =
      std::find(kSplitNames.begin(), kSplitNames.end(), names[0]) != kSplitNames.end();
  const std::string top = join_path(folder, names[0]);
  return split || !is_directory(top) ? folder : top;
}

std::string hash_of(const std::string& path) {
  File file(path, OpenMode::read);
  const auto total = static_cast<double>(file_bytes(path));
  double done = 0;
  Hash128 hash;
  std::vector<char> block(size_t{1} << 20);
  WorkProgress progress;
  while (const size_t count = file.read(block)) {
    interruption_point();
    hash.add({block.data(), count});
    done += static_cast<double>(count);
    if (progress.due()) progress.show(concat("reading ", file_name(path)), done, total);
  }
  return hash.hex();
}

// What stands in the way of a complete folder.
void remove_incomplete(const std::string& folder, const std::string& path) {
  if (!exists(folder)) return;
  log_warning(folder, " lost files since it was unpacked; ", path, " is unpacked again");
  const std::string aside = concat(folder, ".old-", ::getpid());
  remove_all(aside);
  try {
    file_system().rename(folder, aside);
  } catch (const Error&) {
    if (exists(folder)) throw;  // else another process was faster
    return;
  }
  remove_all(aside);
}

}  // namespace

std::string unpacked(const std::string& given, const std::string& cache_folder,
                     const ArchiveLimits& limits) {
  const std::string path = only_file(given);
  const auto format = format_of(path);
  if (!format) return given;
  require_usage(!cache_folder.empty(), Cause{ErrorCode::missing_key, "LINNET_CACHE"}, path,
                " is an archive, and there is no folder to unpack it to: set LINNET_CACHE");
  const std::string folder = join_path(cache_folder, concat("archive-", hash_of(path)));
  if (is_complete(folder)) return top_of(folder);
  remove_incomplete(folder, path);
  TemporaryTree tree(concat(folder, ".tmp-", ::getpid()));
  const Contents contents = Unpacker(path, limits, tree).unpack(*format);
  const std::string marker = join_path(tree.path(), kMarker);
  if (file_system().status_of_link(marker))
    refuse(ErrorCode::malformed, path, "has a member '", kMarker, "', a name that linnet uses");
  write_file(marker, marker_text(contents));
  if (!is_complete(tree.path()))
    refuse(ErrorCode::system, path, "what was unpacked to ", tree.path(),
           " is not what was written; does the disk tell names in upper and lower case apart?");
  try {
    tree.rename(folder);
  } catch (const Error&) {
    if (!is_complete(folder)) throw;  // else another process was faster
    return top_of(folder);
  }
  file_system().sync_directory(cache_folder);
  return top_of(folder);
}

}  // namespace linnet
