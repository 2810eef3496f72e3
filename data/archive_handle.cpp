#include "data/archive_handle.h"

#include <archive.h>
#include <archive_entry.h>
#include <locale.h>

#include <cstdio>
#include <utility>

#include "core/error.h"

namespace linnet {

Utf8Names::Utf8Names() : own_(newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr)) {
  if (own_ != nullptr) outer_ = uselocale(static_cast<locale_t>(own_));
}

Utf8Names::~Utf8Names() {
  if (own_ == nullptr) return;
  uselocale(static_cast<locale_t>(outer_));
  freelocale(static_cast<locale_t>(own_));
}

// What libarchive calls. An exception of the input is kept, for it must not pass through C.
struct ArchiveCallbacks {
  static la_ssize_t read(archive*, void* data, const void** bytes) noexcept {
    auto& self = *static_cast<ArchiveHandle*>(data);
    try {
      const size_t count = self.input_.read(self.buffer_);
      self.position_ += count;
      *bytes = self.buffer_.data();
      return static_cast<la_ssize_t>(count);
    } catch (...) {
      self.failure_ = std::current_exception();
      return -1;
    }
  }

  static la_int64_t seek(archive*, void* data, la_int64_t offset, int whence) noexcept {
    auto& self = *static_cast<ArchiveHandle*>(data);
    const auto total = static_cast<la_int64_t>(self.input_.bytes);
    la_int64_t from = 0;
    if (whence == SEEK_CUR) from = static_cast<la_int64_t>(self.position_);
    if (whence == SEEK_END) from = total;
    // Offsets of a damaged file may lie anywhere.
    if (offset < -from || offset > total - from) return ARCHIVE_FATAL;
    try {
      self.input_.seek(static_cast<uint64_t>(from + offset));
      self.position_ = static_cast<uint64_t>(from + offset);
      return from + offset;
    } catch (...) {
      self.failure_ = std::current_exception();
      return ARCHIVE_FATAL;
    }
  }
};

ArchiveHandle::ArchiveHandle(std::string path, ArchiveFormat format, ArchiveInput input)
    : path_(std::move(path)),
      format_(format),
      input_(std::move(input)),
      buffer_(size_t{1} << 17),
      handle_(archive_read_new()) {
  require(handle_ != nullptr, "out of memory for reading ", path_);
  try {
    if (format == ArchiveFormat::tar) {
      check(archive_read_support_format_tar(handle_), "reading");
      // Reads on behind the end of the archive: whatever compressed it is checked to its last byte.
      check(archive_read_set_format_option(handle_, "tar", "read_concatenated_archives", "1"),
            "reading");
    } else if (format == ArchiveFormat::zip) {
      check(archive_read_support_format_zip_seekable(handle_), "reading");
    } else {
      check(archive_read_support_filter_xz(handle_), "reading");
      check(archive_read_support_format_raw(handle_), "reading");
      check(archive_read_support_format_empty(handle_), "reading");
    }
    check(archive_read_set_callback_data(handle_, this), "reading");
    check(archive_read_set_read_callback(handle_, &ArchiveCallbacks::read), "reading");
    if (input_.seek)
      check(archive_read_set_seek_callback(handle_, &ArchiveCallbacks::seek), "reading");
    check(archive_read_open1(handle_), "opening");
  } catch (...) {
    archive_read_free(handle_);
    throw;
  }
}

ArchiveHandle::~ArchiveHandle() {
  archive_read_free(handle_);
}

void ArchiveHandle::check(long long result, const char* doing) {
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  if (result >= ARCHIVE_OK) return;
  const char* reason = archive_error_string(handle_);
  constexpr const char* kNames[] = {"tar", "zip", "xz"};
  throw Error(Cause{ErrorCode::malformed, "", path_},
              concat(path_, ": this ", kNames[static_cast<size_t>(format_)],
                     " file is damaged or truncated (", doing, " it failed: ",
                     reason == nullptr ? "no reason given" : reason, "); get it again"));
}

archive_entry* ArchiveHandle::next() {
  archive_entry* entry = nullptr;
  const int result = archive_read_next_header(handle_, &entry);
  if (result == ARCHIVE_EOF) {
    check(ARCHIVE_OK, "reading");
    return nullptr;
  }
  check(result, "reading the next member of");
  return entry;
}

size_t ArchiveHandle::read(std::span<char> into) {
  size_t done = 0;
  while (done < into.size()) {
    const la_ssize_t count = archive_read_data(handle_, into.data() + done, into.size() - done);
    check(count, "reading a member of");
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  return done;
}

}  // namespace linnet
