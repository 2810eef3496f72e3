// Archives for tests, in memory; folders of many files, in memory too.
#pragma once

#include <archive.h>
#include <archive_entry.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/files.h"
#include "data/archive_handle.h"

namespace linnet::test {

struct Member {
  std::string name, contents{};
  unsigned kind = AE_IFREG;
  std::string hard_link{};  // to this member
};

enum class Packing { tar, tar_gz, tar_xz, zip, encrypted_zip };

// The bytes of an archive of the members, in their order.
inline std::string pack(Packing packing, const std::vector<Member>& members) {
  const Utf8Names utf8;
  size_t room = 1 << 16, used = 0;
  for (const Member& member : members) room += 8192 + 2 * member.contents.size();
  std::string bytes(room, '\0');  // outlives what writes to it
  const std::unique_ptr<archive, decltype(&archive_write_free)> out(archive_write_new(),
                                                                    &archive_write_free);
  const auto check = [&](long long result) {
    require(result >= ARCHIVE_OK, "cannot pack: ", archive_error_string(out.get()));
  };
  if (packing == Packing::zip || packing == Packing::encrypted_zip) {
    check(archive_write_set_format_zip(out.get()));
    if (packing == Packing::encrypted_zip) {
      check(archive_write_set_options(out.get(), "zip:encryption=zipcrypt"));
      check(archive_write_set_passphrase(out.get(), "secret"));
    }
  } else {
    check(archive_write_set_format_pax_restricted(out.get()));
  }
  if (packing == Packing::tar_gz) check(archive_write_add_filter_gzip(out.get()));
  if (packing == Packing::tar_xz) check(archive_write_add_filter_xz(out.get()));
  check(archive_write_set_bytes_per_block(out.get(), 512));
  check(archive_write_set_bytes_in_last_block(out.get(), 1));
  check(archive_write_open_memory(out.get(), bytes.data(), bytes.size(), &used));
  for (const Member& member : members) {
    const std::unique_ptr<archive_entry, decltype(&archive_entry_free)> entry(archive_entry_new(),
                                                                              &archive_entry_free);
    archive_entry_set_pathname(entry.get(), member.name.c_str());
    archive_entry_set_filetype(entry.get(), member.kind);
    archive_entry_set_perm(entry.get(), 0644);
    archive_entry_set_size(entry.get(), static_cast<la_int64_t>(member.contents.size()));
    if (member.kind == AE_IFLNK) archive_entry_set_symlink(entry.get(), "elsewhere");
    if (!member.hard_link.empty())
      archive_entry_set_hardlink(entry.get(), member.hard_link.c_str());
    check(archive_write_header(out.get(), entry.get()));
    check(archive_write_data(out.get(), member.contents.data(), member.contents.size()));
  }
  check(archive_write_close(out.get()));
  bytes.resize(used);
  return bytes;
}

// While it lives, new scratch directories lie in memory where it has a gigabyte for files: tens of
// thousands of small ones keep a disk busy for a minute.
class FilesInMemory {
 public:
  FilesInMemory() {
    constexpr const char* kFolder = "/dev/shm";
    if (const char* value = std::getenv("TMPDIR")) before_ = value;
    if (exists(kFolder) && file_system().free_bytes(kFolder) > uint64_t{1} << 30)
      setenv("TMPDIR", kFolder, 1);
  }
  ~FilesInMemory() { before_ ? setenv("TMPDIR", before_->c_str(), 1) : unsetenv("TMPDIR"); }
  FilesInMemory(const FilesInMemory&) = delete;
  FilesInMemory& operator=(const FilesInMemory&) = delete;

 private:
  std::optional<std::string> before_;
};

}  // namespace linnet::test
