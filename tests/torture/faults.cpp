// For tools/torture: loaded before the C library (LD_PRELOAD), it counts the file calls of the
// program below one folder, writes each to a log before it happens, and makes the n-th one fail or
// ends the process there. The program itself is the one that users have.
//
//   LINNET_TORTURE_FOLDER      calls on paths below it count
//   LINNET_TORTURE_LOG         a line "N OPERATION PATH" for each, "failed-" before
//                              the operation that is made to fail
//   LINNET_TORTURE_AT          n, from 0; without it nothing fails
//   LINNET_TORTURE_ACTION      ENOSPC, EIO; short: half of a read or write, after a write ENOSPC;
//                              torn: half of a write, then SIGKILL; or the number of a signal
//   LINNET_TORTURE_PERSISTENT  1: every later call that needs space or changes files fails as well
//
// Calls of the C library into itself (stdio, opendir) are not seen: core/files.cpp makes its own.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

namespace {

enum class Action { none, no_space, input_output, short_count, torn, signal };

struct Plan {
  std::string folder;
  int log = -1;
  long at = -1;
  Action action = Action::none;
  int signal = 0;
  bool persistent = false;

  std::mutex mutex;
  long calls = 0;
  bool failed = false;
  bool full_after_short = false;
  std::array<std::string, 1024> paths;  // of open descriptors below the folder

  Plan() {
    const char* below = std::getenv("LINNET_TORTURE_FOLDER");
    if (below == nullptr) return;
    folder = std::string(below) + "/";
    if (const char* path = std::getenv("LINNET_TORTURE_LOG")) {
      log = static_cast<int>(
          ::syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
    }
    if (const char* number = std::getenv("LINNET_TORTURE_AT")) at = std::atol(number);
    persistent = std::getenv("LINNET_TORTURE_PERSISTENT") != nullptr;
    const char* named = std::getenv("LINNET_TORTURE_ACTION");
    const std::string name = named == nullptr ? "" : named;
    if (name == "ENOSPC") action = Action::no_space;
    if (name == "EIO") action = Action::input_output;
    if (name == "short") action = Action::short_count;
    if (name == "torn") action = Action::torn;
    if (std::atoi(name.c_str()) > 0) {
      action = Action::signal;
      signal = std::atoi(name.c_str());
    }
  }
};

Plan& plan() {
  static Plan* const instance = [] {
    // A child of the program must not inherit a lock that another thread holds.
    ::pthread_atfork([] { plan().mutex.lock(); }, [] { plan().mutex.unlock(); },
                     [] { plan().mutex.unlock(); });
    return new Plan;  // outlives the program's own static objects
  }();
  return *instance;
}

// The C library's own function.
template <typename Function>
Function* real(Function*, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

std::string whole(const char* path) {
  if (path[0] == '/') return path;
  std::array<char, PATH_MAX> current{};
  if (::getcwd(current.data(), current.size()) == nullptr) return path;
  return std::string(current.data()) + "/" + path;
}

bool watched(const std::string& path) {
  const std::string& folder = plan().folder;
  return !folder.empty() && (path + "/").compare(0, folder.size(), folder) == 0;
}

std::string path_of(int descriptor) {
  if (descriptor < 0 || static_cast<size_t>(descriptor) >= plan().paths.size()) return "";
  const std::lock_guard lock(plan().mutex);
  return plan().paths[static_cast<size_t>(descriptor)];
}

void set_path(int descriptor, const std::string& path) {
  if (descriptor < 0 || static_cast<size_t>(descriptor) >= plan().paths.size()) return;
  const std::lock_guard lock(plan().mutex);
  plan().paths[static_cast<size_t>(descriptor)] = path;
}

enum class Kind { reads, writes, makes, removes };  // `makes`: needs space for a name

struct Verdict {
  int error = 0;      // the call fails with it
  bool half = false;  // half of the bytes only
  bool die = false;   // and SIGKILL after them
};

// What becomes of call number `call`; `signal`, where given, is to be sent before it.
Verdict decide(Plan& p, long call, Kind kind, int& signal) {
  const bool needs_space = kind == Kind::writes || kind == Kind::makes;
  if (p.full_after_short && kind == Kind::writes) {
    p.full_after_short = p.persistent;
    return {ENOSPC};
  }
  if (p.failed && p.persistent && needs_space) {
    return {p.action == Action::input_output ? EIO : ENOSPC};
  }
  if (call != p.at) return {};
  p.failed = true;
  switch (p.action) {
    case Action::none:
      return {};
    case Action::no_space:
      return {kind == Kind::reads ? EIO : ENOSPC};
    case Action::input_output:
      return {EIO};
    case Action::short_count:
      if (kind == Kind::removes || kind == Kind::makes) return {EIO};
      p.full_after_short = kind == Kind::writes;
      return {0, true};
    case Action::torn:
      return {0, true, true};
    case Action::signal:
      signal = p.signal;
      return {};
  }
  return {};
}

Verdict judge(const char* operation, const std::string& path, Kind kind) {
  Plan& p = plan();
  const std::lock_guard lock(p.mutex);
  const long call = p.calls++;
  int signal = 0;
  const Verdict verdict = decide(p, call, kind, signal);
  const char* failed = verdict.error != 0 ? "failed-" : "";
  const std::string line = std::to_string(call) + " " + failed + operation + " " + path + "\n";
  if (p.log >= 0) ::syscall(SYS_write, p.log, line.data(), line.size());
  if (signal != 0) ::kill(::getpid(), signal);
  return verdict;
}

// For calls that move no bytes: true when the call is to fail, errno set.
bool refuse(const char* operation, const std::string& path, Kind kind) {
  if (!watched(path)) return false;
  const Verdict verdict = judge(operation, path, kind);
  if (verdict.die) ::kill(::getpid(), SIGKILL);
  // Neither half of a name nor half of a sync exists.
  errno = verdict.half ? EIO : verdict.error;
  return errno != 0;
}

template <typename Call>
ssize_t transfer(const char* operation, int descriptor, Kind kind, size_t bytes, Call call) {
  const std::string path = path_of(descriptor);
  if (path.empty()) return call(bytes);
  const Verdict verdict = judge(operation, path, kind);
  if (verdict.error != 0) {
    errno = verdict.error;
    return -1;
  }
  const ssize_t done = call(verdict.half ? std::max<size_t>(bytes / 2, 1) : bytes);
  if (verdict.die) ::kill(::getpid(), SIGKILL);
  return done;
}

int open_file(const char* path, int flags, mode_t mode) {
  const std::string name = whole(path);
  const Kind kind = (flags & O_CREAT) != 0 ? Kind::makes : Kind::reads;
  if (refuse(kind == Kind::makes ? "create" : "open", name, kind)) return -1;
  const int descriptor = static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
  set_path(descriptor, descriptor >= 0 && watched(name) ? name : "");
  return descriptor;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return open_file(path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return open_file(path, flags, mode);
}

int close(int descriptor) {
  static const auto call = real(&::close, "close");
  const std::string path = path_of(descriptor);
  if (path.empty()) return call(descriptor);
  const bool refused = refuse("close", path, Kind::writes);
  const int reason = errno;
  set_path(descriptor, "");
  const int result = call(descriptor);
  if (!refused) return result;
  errno = reason;
  return -1;
}

ssize_t read(int descriptor, void* into, size_t bytes) {
  static const auto call = real(&::read, "read");
  return transfer("read", descriptor, Kind::reads, bytes,
                  [&](size_t n) { return call(descriptor, into, n); });
}

ssize_t write(int descriptor, const void* from, size_t bytes) {
  static const auto call = real(&::write, "write");
  return transfer("write", descriptor, Kind::writes, bytes,
                  [&](size_t n) { return call(descriptor, from, n); });
}

int fsync(int descriptor) {
  static const auto call = real(&::fsync, "fsync");
  const std::string path = path_of(descriptor);
  if (path.empty()) return call(descriptor);
  return refuse("fsync", path, Kind::writes) ? -1 : call(descriptor);
}

int rename(const char* from, const char* to) noexcept {
  static const auto call = real(&::rename, "rename");
  return refuse("rename", whole(to), Kind::makes) ? -1 : call(from, to);
}

int unlink(const char* path) noexcept {
  static const auto call = real(&::unlink, "unlink");
  return refuse("unlink", whole(path), Kind::removes) ? -1 : call(path);
}

int rmdir(const char* path) noexcept {
  static const auto call = real(&::rmdir, "rmdir");
  return refuse("rmdir", whole(path), Kind::removes) ? -1 : call(path);
}

int mkdir(const char* path, mode_t mode) noexcept {
  static const auto call = real(&::mkdir, "mkdir");
  return refuse("mkdir", whole(path), Kind::makes) ? -1 : call(path, mode);
}

int truncate(const char* path, off_t bytes) noexcept {
  static const auto call = real(&::truncate, "truncate");
  return refuse("truncate", whole(path), Kind::writes) ? -1 : call(path, bytes);
}

}  // extern "C"
