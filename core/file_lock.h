// The advisory lock of a file, which the system takes back when its process is gone.
#pragma once

#include <string>

namespace linnet {

enum class LockResult { taken, held, unsupported };  // held: by another open file

// Tries to take the lock (flock) of an open file, without waiting; closing the file gives it up.
// unsupported: the file system has no locks. Throws Error for other failures.
LockResult try_lock_file(int descriptor, const std::string& path);

}  // namespace linnet
