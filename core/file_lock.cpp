#include "core/file_lock.h"

#include <sys/file.h>

#include <cerrno>

#include "core/files.h"

namespace linnet {

LockResult try_lock_file(int descriptor, const std::string& path) {
  int result = 0;
  do {
    result = ::flock(descriptor, LOCK_EX | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return LockResult::taken;
  const int reason = errno;
  if (reason == EWOULDBLOCK) return LockResult::held;
  if (reason != ENOLCK && reason != EOPNOTSUPP && reason != ENOSYS && reason != EINVAL) {
    throw_file_error("lock", path, reason);
  }
  return LockResult::unsupported;
}

}  // namespace linnet
