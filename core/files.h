// The one seam for file operations: every file that linnet reads or writes goes through here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace linnet {

// What file_system().status tells about a path.
struct FileStatus {
  uint64_t bytes = 0;
  bool directory = false;
  bool regular = false;
  bool link = false;  // status_of_link alone
};

// Read an existing regular file, or also a pipe; create or empty a file; create a file or write at
// its end.
enum class OpenMode { read, read_or_pipe, write, append };

// The system calls that linnet uses on files. One global instance (file_system) is replaceable, so
// that a test can make the n-th call fail. Every function throws Error with the operation, the path
// and the reason of the system. Byte strings are std::string and std::string_view throughout.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // A descriptor that the caller must close; class File does so. Reading refuses folders, devices,
  // sockets and pipes (wrong_type) without opening them; a pipe that may be read and that nobody
  // writes to is empty. Writing to a pipe that nobody reads is an error.
  virtual int open(const std::string& path, OpenMode mode);
  // Reads at most `into.size()` bytes at the current position; 0 at the end of the file.
  virtual size_t read_some(int descriptor, std::span<char> into, const std::string& path);
  // Writes at most `bytes.size()` bytes and returns how many: a caller must go on with the rest.
  virtual size_t write_some(int descriptor, std::string_view bytes, const std::string& path);
  // Bytes of an open file.
  virtual uint64_t bytes_of(int descriptor, const std::string& path);
  // The first `bytes` (> 0) of an open file as memory, until unmap(); class MappedFile does so.
  virtual const char* map(int descriptor, uint64_t bytes, const std::string& path);
  virtual void unmap(std::string_view mapped);
  // Takes a part of what is mapped out of the process's memory.
  virtual void release(std::string_view part, std::string_view mapped);
  // Moves the position to `offset` bytes from the start.
  virtual void seek(int descriptor, uint64_t offset, const std::string& path);
  // Forces contents to the disk.
  virtual void sync(int descriptor, const std::string& path);
  virtual void close(int descriptor, const std::string& path);
  // Forces the names in a directory to the disk.
  virtual void sync_directory(const std::string& path);
  // Atomic within a file system; replaces a file, refuses a non-empty directory.
  virtual void rename(const std::string& from, const std::string& to);
  // Removes one file.
  virtual void remove(const std::string& path);
  // Removes an empty directory.
  virtual void remove_directory(const std::string& path);
  // Makes one directory; its parent must exist. Nothing happens if it exists already.
  virtual void create_directory(const std::string& path);
  // Cuts a file to its first `bytes` bytes.
  virtual void truncate(const std::string& path, uint64_t bytes);
  // Names in a directory, without "." and "..", sorted.
  virtual std::vector<std::string> list(const std::string& path);
  // Empty when nothing has that name; follows symbolic links.
  virtual std::optional<FileStatus> status(const std::string& path);
  // The same without following a symbolic link at the end of the path.
  virtual std::optional<FileStatus> status_of_link(const std::string& path);
  // Bytes that a user without privileges may still write on the file system of `path`.
  virtual uint64_t free_bytes(const std::string& path);
};

// The instance in use, and its replacement (nullptr: back to the real one). The caller keeps
// ownership and must put the old one back before destroying it. Not for use while other threads
// touch files.
FileSystem& file_system();
void replace_file_system(FileSystem* replacement);

// Throws Error("cannot <operation> <path>: <reason of error_number>").
[[noreturn]] void throw_file_error(std::string_view operation, const std::string& path,
                                   int error_number);

// An open file that closes itself. Write errors can surface at close: call close() and let it throw
// where the data matter; the destructor cannot report them.
class File {
 public:
  File(std::string path, OpenMode mode);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  // Fills `into` from the current position; returns fewer bytes only at the end of the file.
  size_t read(std::span<char> into);
  // Writes everything, however many calls the system needs.
  void write(std::string_view bytes);
  void seek(uint64_t offset);
  void sync();
  void close();
  uint64_t bytes() const;
  const std::string& path() const { return path_; }
  int descriptor() const { return descriptor_; }

 private:
  std::string path_;
  int descriptor_ = -1;
};

inline constexpr uint64_t kNoLimit = UINT64_MAX;

// The whole regular file; throws Error for anything else, and when it is larger than `limit_bytes`.
std::string read_file(const std::string& path, uint64_t limit_bytes = kNoLimit);
// The same, or all that comes out of a pipe: for /dev/stdin and <(...) of a shell.
std::string read_file_or_pipe(const std::string& path, uint64_t limit_bytes);
// Creates or overwrites `path`, without the guarantees of write_file_atomically.
void write_file(const std::string& path, std::string_view bytes);
// All of an AtomicFile (core/atomic_file.h): afterwards the path holds either its old contents or
// all of `bytes`, even through a power loss.
void write_file_atomically(const std::string& path, std::string_view bytes);
bool exists(const std::string& path);
bool is_directory(const std::string& path);
// Size in bytes; throws Error when there is no such file.
uint64_t file_bytes(const std::string& path);
// Makes a directory and its missing parents.
void create_directories(const std::string& path);
// Removes a file, or a directory with everything in it; symbolic links are removed, not followed.
// Nothing happens if the path does not exist.
void remove_all(const std::string& path);

// "a/b" from "a" and "b"; `name` itself when it is absolute or `folder` is empty.
std::string join_path(std::string_view folder, std::string_view name);
// "a/b" of "a/b/c.txt", "." of "c.txt", "/" of "/c.txt".
std::string parent_path(std::string_view path);
// "c.txt" of "a/b/c.txt"; a trailing slash is ignored.
std::string file_name(std::string_view path);

}  // namespace linnet
