// Files in memory, so that what reads paths runs at the speed of memory.
#pragma once

#include <cerrno>
#include <map>
#include <set>

#include "core/files.h"

namespace linnet::fuzz {

// While it lives, it is the file system: empty at the start, never full, gone with the object.
// Folders of files are there without being made.
class MemoryFiles final : public FileSystem {
 public:
  MemoryFiles() { replace_file_system(this); }
  ~MemoryFiles() override { replace_file_system(nullptr); }
  MemoryFiles(const MemoryFiles&) = delete;
  MemoryFiles& operator=(const MemoryFiles&) = delete;

  // The contents of a file, which is made if it is not there.
  std::string& operator[](const std::string& path) { return files_[path]; }

  int open(const std::string& path, OpenMode mode) override {
    if (mode == OpenMode::write)
      files_[path].clear();
    else if (mode != OpenMode::append)
      contents(path, "open");
    const size_t position = mode == OpenMode::append ? files_[path].size() : 0;
    open_[next_] = position;
    return next_++;
  }
  size_t read_some(int descriptor, std::span<char> into, const std::string& path) override {
    size_t& position = open_.at(descriptor);
    const std::string& bytes = contents(path, "read");
    const size_t count = bytes.copy(into.data(), into.size(), std::min(position, bytes.size()));
    position += count;
    return count;
  }
  size_t write_some(int descriptor, std::string_view text, const std::string& path) override {
    size_t& position = open_.at(descriptor);
    std::string& bytes = contents(path, "write");
    bytes.resize(std::max(bytes.size(), position + text.size()));
    text.copy(bytes.data() + position, text.size());
    position += text.size();
    return text.size();
  }
  uint64_t bytes_of(int, const std::string& path) override { return contents(path, "see").size(); }
  const char* map(int, uint64_t, const std::string& path) override {
    return contents(path, "map").data();
  }
  void unmap(std::string_view) override {}
  void release(std::string_view, std::string_view) override {}
  void seek(int descriptor, uint64_t offset, const std::string&) override {
    open_.at(descriptor) = offset;
  }
  void sync(int, const std::string&) override {}
  void close(int descriptor, const std::string&) override { open_.erase(descriptor); }
  void sync_directory(const std::string&) override {}
  void rename(const std::string& from, const std::string& to) override {
    std::string bytes = std::move(contents(from, "rename"));
    files_.erase(from);
    files_[to] = std::move(bytes);
  }
  void remove(const std::string& path) override {
    contents(path, "remove");
    files_.erase(path);
  }
  void remove_directory(const std::string& path) override { folders_.erase(path); }
  void create_directory(const std::string& path) override { folders_.insert(path); }
  void truncate(const std::string& path, uint64_t bytes) override {
    contents(path, "truncate").resize(bytes);
  }
  std::vector<std::string> list(const std::string& path) override {
    std::set<std::string> names;
    for (const auto& [name, bytes] : files_) add_member(path, name, names);
    for (const std::string& name : folders_) add_member(path, name, names);
    return {names.begin(), names.end()};
  }
  std::optional<FileStatus> status(const std::string& path) override {
    FileStatus status;
    if (const auto found = files_.find(path); found != files_.end()) {
      status.bytes = found->second.size();
      status.regular = true;
      return status;
    }
    status.directory = folders_.contains(path) || !list(path).empty();
    return status.directory ? std::optional(status) : std::nullopt;
  }
  std::optional<FileStatus> status_of_link(const std::string& path) override {
    return status(path);
  }
  uint64_t free_bytes(const std::string&) override { return uint64_t{1} << 40; }

 private:
  std::string& contents(const std::string& path, std::string_view operation) {
    const auto found = files_.find(path);
    if (found == files_.end()) throw_file_error(operation, path, ENOENT);
    return found->second;
  }
  static void add_member(const std::string& folder, std::string_view path,
                         std::set<std::string>& names) {
    const std::string prefix = folder + '/';
    if (!path.starts_with(prefix)) return;
    path.remove_prefix(prefix.size());
    names.emplace(path.substr(0, path.find('/')));
  }

  std::map<std::string, std::string> files_;
  std::set<std::string> folders_;
  std::map<int, size_t> open_;  // descriptor -> position
  int next_ = 0;
};

}  // namespace linnet::fuzz
