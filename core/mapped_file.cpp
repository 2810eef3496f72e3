#include "core/mapped_file.h"

namespace linnet {

MappedFile::MappedFile(const std::string& path) : file_(path, OpenMode::read) {
  bytes_ = file_.bytes();
  if (bytes_ > 0) begin_ = file_system().map(file_.descriptor(), bytes_, path);
}

MappedFile::~MappedFile() {
  if (bytes_ > 0) file_system().unmap(bytes());
}

void MappedFile::require_whole() const {
  const uint64_t left = file_.bytes();
  require(left >= bytes_, Cause{ErrorCode::malformed, "", path()}, path(), " had ", bytes_,
          " bytes and has ", left, ": another program cut it while it was in use; run again");
}

void MappedFile::release(std::string_view part) const {
  file_system().release(part, bytes());
}

}  // namespace linnet
