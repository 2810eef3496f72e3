// File operations over POSIX, and what is composed of them.
#include "core/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <system_error>

#include "core/free_memory.h"

namespace linnet {
namespace {

// Largest single read or write: Linux transfers at most 0x7ffff000 bytes at once.
constexpr size_t kMaxTransfer = size_t{1} << 30;

FileSystem& real_file_system() {
  static FileSystem instance;
  return instance;
}

std::atomic<FileSystem*> replaced{nullptr};

void check(bool ok, std::string_view operation, const std::string& path) {
  if (!ok) throw_file_error(operation, path, errno);
}

// Reading a device may never end, opening a pipe may wait forever.
void require_readable(mode_t kind, OpenMode mode, const std::string& path) {
  if (S_ISREG(kind) || (S_ISFIFO(kind) && mode == OpenMode::read_or_pipe)) return;
  const char* found = S_ISDIR(kind)    ? "a directory"
                      : S_ISFIFO(kind) ? "a pipe"
                      : S_ISSOCK(kind) ? "a socket"
                                       : "a device";
  throw Error(
      Cause{ErrorCode::wrong_type, "", path},
      concat("cannot read ", path, ": a regular file was expected, and it is ", found,
             S_ISDIR(kind) ? "; name a file in it" : "; write its contents to a file first"));
}

std::optional<FileStatus> to_status(int result, const struct stat& found, const std::string& path) {
  if (result != 0) {
    // A name that is too long, or a link that leads to itself, is no file's.
    for (const int absent : {ENOENT, ENOTDIR, ENAMETOOLONG, ELOOP}) {
      if (errno == absent) return std::nullopt;
    }
    throw_file_error("look at", path, errno);
  }
  FileStatus status;
  status.bytes = static_cast<uint64_t>(found.st_size);
  status.directory = S_ISDIR(found.st_mode);
  status.regular = S_ISREG(found.st_mode);
  status.link = S_ISLNK(found.st_mode);
  return status;
}

}  // namespace

void throw_file_error(std::string_view operation, const std::string& path, int error_number) {
  const bool missing = error_number == ENOENT || error_number == ENOTDIR;
  throw Error(
      Cause{missing ? ErrorCode::not_found : ErrorCode::system, "", path},
      concat("cannot ", operation, " ", path, ": ", std::generic_category().message(error_number)));
}

FileSystem& file_system() {
  FileSystem* replacement = replaced;
  return replacement != nullptr ? *replacement : real_file_system();
}

void replace_file_system(FileSystem* replacement) {
  replaced = replacement;
}

int FileSystem::open(const std::string& path, OpenMode mode) {
  const bool reads = mode == OpenMode::read || mode == OpenMode::read_or_pipe;
  struct stat found {};
  if (reads && ::stat(path.c_str(), &found) == 0) require_readable(found.st_mode, mode, path);
  int flags = O_RDONLY;
  if (mode == OpenMode::write) flags = O_WRONLY | O_CREAT | O_TRUNC;
  if (mode == OpenMode::append) flags = O_WRONLY | O_CREAT | O_APPEND;
  int descriptor = -1;
  do {
    // Of a pipe, the other end is not waited for: one that nobody writes to is an empty one, and
    // one that nobody reads is not opened for writing (ENXIO).
    descriptor = ::open(path.c_str(), flags | O_NONBLOCK | O_CLOEXEC, 0666);
  } while (descriptor < 0 && errno == EINTR);
  check(descriptor >= 0, reads ? "open" : "open for writing", path);
  // From here on, reading and writing wait.
  ::fcntl(descriptor, F_SETFL, flags & O_APPEND);
  return descriptor;
}

size_t FileSystem::read_some(int descriptor, std::span<char> into, const std::string& path) {
  ssize_t count = 0;
  do {
    count = ::read(descriptor, into.data(), std::min(into.size(), kMaxTransfer));
  } while (count < 0 && errno == EINTR);
  check(count >= 0, "read", path);
  return static_cast<size_t>(count);
}

size_t FileSystem::write_some(int descriptor, std::string_view bytes, const std::string& path) {
  ssize_t count = 0;
  do {
    count = ::write(descriptor, bytes.data(), std::min(bytes.size(), kMaxTransfer));
  } while (count < 0 && errno == EINTR);
  check(count >= 0, "write", path);
  return static_cast<size_t>(count);
}

uint64_t FileSystem::bytes_of(int descriptor, const std::string& path) {
  struct stat found {};
  check(::fstat(descriptor, &found) == 0, "look at", path);
  return static_cast<uint64_t>(found.st_size);
}

const char* FileSystem::map(int descriptor, uint64_t bytes, const std::string& path) {
  void* mapped = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, descriptor, 0);
  check(mapped != MAP_FAILED, "map", path);
  return static_cast<const char*>(mapped);
}

void FileSystem::unmap(std::string_view mapped) {
  ::munmap(const_cast<char*>(mapped.data()), mapped.size());
}

void FileSystem::release(std::string_view part, std::string_view mapped) {
  // Around a byte that is looked at, Linux maps what is in its caches, up to so many bytes.
  constexpr uintptr_t kGroup = 1 << 21;
  if (part.empty()) return;
  const auto address = [](const char* at) { return reinterpret_cast<uintptr_t>(at); };
  const uintptr_t all = address(mapped.data()), all_end = all + mapped.size();
  const uintptr_t begin = std::max(all, address(part.data()) / kGroup * kGroup);
  const uintptr_t end =
      std::min(all_end, (address(part.data()) + part.size() + kGroup - 1) / kGroup * kGroup);
  // A hint: where it is refused, nothing but memory is lost.
  ::madvise(const_cast<char*>(mapped.data()) + (begin - all), end - begin, MADV_DONTNEED);
}

void FileSystem::seek(int descriptor, uint64_t offset, const std::string& path) {
  check(::lseek(descriptor, static_cast<off_t>(offset), SEEK_SET) >= 0, "seek in", path);
}

void FileSystem::sync(int descriptor, const std::string& path) {
  check(::fsync(descriptor) == 0, "sync", path);
}

void FileSystem::close(int descriptor, const std::string& path) {
  // After EINTR the descriptor is gone on Linux: closing again could hit another file.
  check(::close(descriptor) == 0 || errno == EINTR, "close", path);
}

void FileSystem::sync_directory(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  check(descriptor >= 0, "open the directory", path);
  const int result = ::fsync(descriptor);
  const int reason = errno;
  ::close(descriptor);
  // Some network file systems cannot sync directories and say so with EINVAL.
  if (result != 0 && reason != EINVAL) throw_file_error("sync the directory", path, reason);
}

void FileSystem::rename(const std::string& from, const std::string& to) {
  check(::rename(from.c_str(), to.c_str()) == 0, concat("rename ", from, " to"), to);
}

void FileSystem::remove(const std::string& path) {
  check(::unlink(path.c_str()) == 0, "remove", path);
}

void FileSystem::remove_directory(const std::string& path) {
  check(::rmdir(path.c_str()) == 0, "remove the directory", path);
}

void FileSystem::create_directory(const std::string& path) {
  if (::mkdir(path.c_str(), 0777) == 0) return;
  const int reason = errno;
  const auto present = reason == EEXIST ? status(path) : std::nullopt;
  if (!present || !present->directory) throw_file_error("make the directory", path, reason);
}

void FileSystem::truncate(const std::string& path, uint64_t bytes) {
  check(::truncate(path.c_str(), static_cast<off_t>(bytes)) == 0, "truncate", path);
}

std::vector<std::string> FileSystem::list(const std::string& path) {
  DIR* directory = ::opendir(path.c_str());
  check(directory != nullptr, "list the directory", path);
  const std::unique_ptr<DIR, int (*)(DIR*)> closer(directory, ::closedir);
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(directory)) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
    errno = 0;
  }
  check(errno == 0, "list the directory", path);
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<FileStatus> FileSystem::status(const std::string& path) {
  struct stat found {};
  return to_status(::stat(path.c_str(), &found), found, path);
}

std::optional<FileStatus> FileSystem::status_of_link(const std::string& path) {
  struct stat found {};
  return to_status(::lstat(path.c_str(), &found), found, path);
}

uint64_t FileSystem::free_bytes(const std::string& path) {
  struct statvfs found {};
  check(::statvfs(path.c_str(), &found) == 0, "ask for the free space of", path);
  return uint64_t{found.f_bavail} * found.f_frsize;
}

File::File(std::string path, OpenMode mode)
    : path_(std::move(path)), descriptor_(file_system().open(path_, mode)) {}

File::~File() {
  if (descriptor_ < 0) return;
  try {
    file_system().close(descriptor_, path_);
  } catch (const Error&) {  // already unwinding, or the caller did not ask to know
  }
}

size_t File::read(std::span<char> into) {
  size_t done = 0;
  while (done < into.size()) {
    const size_t count = file_system().read_some(descriptor_, into.subspan(done), path_);
    if (count == 0) break;
    done += count;
  }
  return done;
}

void File::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t count = file_system().write_some(descriptor_, bytes, path_);
    if (count == 0) throw_file_error("write (the system took no byte)", path_, EIO);
    bytes.remove_prefix(count);
  }
}

void File::seek(uint64_t offset) {
  file_system().seek(descriptor_, offset, path_);
}

void File::sync() {
  file_system().sync(descriptor_, path_);
}

uint64_t File::bytes() const {
  return file_system().bytes_of(descriptor_, path_);
}

void File::close() {
  const int descriptor = descriptor_;
  descriptor_ = -1;
  if (descriptor >= 0) file_system().close(descriptor, path_);
}

namespace {

std::string read_whole(const std::string& path, OpenMode mode, uint64_t limit_bytes) {
  File file(path, mode);
  const uint64_t expected = file_bytes(path);
  require(expected <= limit_bytes, Cause{ErrorCode::out_of_range, "", path}, "cannot read ", path,
          ": it has ", expected, " bytes, more than the limit of ", limit_bytes);
  // A file of holes takes no room on the disk, however large it says that it is.
  require(has_memory(Device{}, static_cast<double>(expected)),
          Cause{ErrorCode::out_of_range, "", path}, "cannot read ", path, ": its ", expected,
          " bytes do not fit into memory");
  std::string bytes(expected, '\0');
  bytes.resize(file.read(bytes));
  // Pipes and files such as those in /proc report size 0, and a file may grow while it is read.
  std::string more(4096, '\0');
  while (const size_t count = file.read(more)) {
    bytes.append(more, 0, count);
    require(bytes.size() <= limit_bytes, Cause{ErrorCode::out_of_range, "", path}, "cannot read ",
            path, ": it has more than the limit of ", limit_bytes, " bytes");
  }
  return bytes;
}

}  // namespace

std::string read_file(const std::string& path, uint64_t limit_bytes) {
  return read_whole(path, OpenMode::read, limit_bytes);
}

std::string read_file_or_pipe(const std::string& path, uint64_t limit_bytes) {
  return read_whole(path, OpenMode::read_or_pipe, limit_bytes);
}

void write_file(const std::string& path, std::string_view bytes) {
  File file(path, OpenMode::write);
  file.write(bytes);
  file.close();
}

bool exists(const std::string& path) {
  return file_system().status(path).has_value();
}

bool is_directory(const std::string& path) {
  const auto status = file_system().status(path);
  return status && status->directory;
}

uint64_t file_bytes(const std::string& path) {
  const auto status = file_system().status(path);
  if (!status) throw_file_error("open", path, ENOENT);
  return status->bytes;
}

void create_directories(const std::string& path) {
  const auto status = file_system().status(path);
  if (status && status->directory) return;
  const std::string parent = parent_path(path);
  if (parent != "." && parent != "/") create_directories(parent);
  file_system().create_directory(path);
}

void remove_all(const std::string& path) {
  const auto status = file_system().status_of_link(path);
  if (!status) return;
  if (!status->directory) {
    file_system().remove(path);
    return;
  }
  for (const std::string& name : file_system().list(path)) remove_all(join_path(path, name));
  file_system().remove_directory(path);
}

std::string join_path(std::string_view folder, std::string_view name) {
  if (folder.empty() || (!name.empty() && name[0] == '/')) return std::string(name);
  return concat(folder, folder.back() == '/' ? "" : "/", name);
}

std::string parent_path(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  const size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) return ".";
  return std::string(path.substr(0, std::max<size_t>(slash, 1)));
}

std::string file_name(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  const size_t slash = path.rfind('/');
  return std::string(slash == std::string_view::npos ? path : path.substr(slash + 1));
}

}  // namespace linnet
