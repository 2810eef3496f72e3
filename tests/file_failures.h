// For tests: a scratch directory, and a file system whose n-th call fails.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "core/files.h"

namespace linnet::test {

// A fresh directory that disappears with everything in it.
class ScratchDirectory {
 public:
  ScratchDirectory() {
    const char* base = std::getenv("TMPDIR");
    std::string pattern = join_path(base != nullptr ? base : "/tmp", "linnet-test-XXXXXX");
    if (::mkdtemp(pattern.data()) == nullptr) throw_file_error("make", pattern, errno);
    path_ = pattern;
  }
  ~ScratchDirectory() { remove_all(path_); }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return join_path(path_, name); }

 private:
  std::string path_;
};

enum class Failure { no_space, input_output, short_write };

// While it lives, the `fail_at`-th call (from 0) that changes or syncs files fails: with ENOSPC or
// EIO, or, for short_write, half of one write reaches the disk and the next write fails with
// ENOSPC. Calls are counted in any case; with fail_at < 0 nothing fails. After the failure every
// call works again unless `persistent` (a disk that stays full). Nothing is really forced to the
// disk: tests end processes at most, and thousands of syncs would take minutes.
class FailingFileSystem final : public FileSystem {
 public:
  FailingFileSystem(int64_t fail_at, Failure failure, bool persistent = false)
      : fail_at_(fail_at), failure_(failure), persistent_(persistent) {
    replace_file_system(this);
  }
  ~FailingFileSystem() override { replace_file_system(nullptr); }
  int64_t calls() const { return calls_; }
  bool failed() const { return failed_; }

  int open(const std::string& path, OpenMode mode) override {
    if (mode == OpenMode::write || mode == OpenMode::append) count("open", path);
    return FileSystem::open(path, mode);
  }
  size_t write_some(int descriptor, std::string_view bytes, const std::string& path) override {
    if (failure_ == Failure::short_write && calls_ == fail_at_) {
      ++calls_;
      ++fail_at_;
      if (bytes.size() > 1)
        return FileSystem::write_some(descriptor, bytes.substr(0, bytes.size() / 2), path);
    }
    count("write", path);
    return FileSystem::write_some(descriptor, bytes, path);
  }
  void sync(int descriptor, const std::string& path) override {
    count("sync", path);
    (void)descriptor;
  }
  void close(int descriptor, const std::string& path) override {
    FileSystem::close(descriptor, path);
    count("close", path);
  }
  void sync_directory(const std::string& path) override { count("sync the directory", path); }
  void rename(const std::string& from, const std::string& to) override {
    count("rename", to);
    FileSystem::rename(from, to);
  }
  void remove(const std::string& path) override {
    count("remove", path);
    FileSystem::remove(path);
  }
  void remove_directory(const std::string& path) override {
    count("remove", path);
    FileSystem::remove_directory(path);
  }
  void create_directory(const std::string& path) override {
    count("make the directory", path);
    FileSystem::create_directory(path);
  }
  void truncate(const std::string& path, uint64_t bytes) override {
    count("truncate", path);
    FileSystem::truncate(path, bytes);
  }

 private:
  void count(const char* operation, const std::string& path) {
    const int64_t call = calls_++;
    if (call == fail_at_ || (failed_ && persistent_)) {
      failed_ = true;
      throw_file_error(operation, path, failure_ == Failure::input_output ? EIO : ENOSPC);
    }
  }

  int64_t fail_at_;
  Failure failure_;
  bool persistent_;
  int64_t calls_ = 0;
  bool failed_ = false;
};

}  // namespace linnet::test
