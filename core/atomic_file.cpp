#include "core/atomic_file.h"

#include <unistd.h>

#include <filesystem>
#include <system_error>

namespace linnet {
namespace {

// The regular file that a new one takes the place of.
std::string replaceable(const std::string& path) {
  const auto status = file_system().status(path);
  if (!status) return path;
  require(status->regular, Cause{ErrorCode::wrong_type, "", path}, "cannot write ", path,
          ": it is no regular file; name another");
  if (!file_system().status_of_link(path)->link) return path;
  std::error_code failed;
  const std::filesystem::path target = std::filesystem::canonical(path, failed);
  if (failed) throw_file_error("follow the link", path, failed.value());
  return target.string();
}

}  // namespace

// The process number keeps two writers of one path apart.
AtomicFile::AtomicFile(const std::string& path)
    : path_(replaceable(path)),
      temporary_(concat(path_, ".tmp-", ::getpid())),
      cleanup_([this] { file_system().remove(temporary_); }),
      file_(temporary_, OpenMode::write) {}

AtomicFile::~AtomicFile() {
  if (committed_) return;
  try {
    file_system().remove(temporary_);
  } catch (const Error&) {  // there is a first error to report
  }
}

void AtomicFile::commit() {
  file_.sync();
  file_.close();
  file_system().rename(temporary_, path_);
  committed_ = true;
  file_system().sync_directory(parent_path(path_));
}

void write_file_atomically(const std::string& path, std::string_view bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

}  // namespace linnet
