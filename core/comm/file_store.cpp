// Written past core/files.h: values need modes of their own and must never replace one another.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <thread>

#include "core/comm/communicator.h"
#include "core/comm/store.h"
#include "core/error.h"
#include "core/files.h"

namespace linnet {
namespace {

// A key as a file name: all but letters, digits, '-' and '_' in hexadecimal.
std::string file_of(const std::string& key) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string name;
  for (const char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_';
    if (plain) {
      name += c;
    } else {
      ((name += '%') += kDigits[byte / 16]) += kDigits[byte % 16];
    }
  }
  return name;
}

class FileStore final : public Store {
 public:
  explicit FileStore(std::string folder) : folder_(std::move(folder)) {
    if (::mkdir(folder_.c_str(), 0700) != 0 && errno != EEXIST) {
      throw_file_error("make the store", folder_, errno);
    }
    struct stat found {};
    if (::lstat(folder_.c_str(), &found) != 0) throw_file_error("open the store", folder_, errno);
    require_usage(
        S_ISDIR(found.st_mode) && found.st_uid == ::geteuid() && (found.st_mode & 077) == 0,
        Cause{ErrorCode::conflict, "LINNET_STORE", folder_}, "the store ", folder_,
        " must be a folder that only you may enter (mode 0700): name one that does not exist yet");
  }

  // Where nothing is left in it.
  ~FileStore() override { ::rmdir(folder_.c_str()); }
  FileStore(const FileStore&) = delete;
  FileStore& operator=(const FileStore&) = delete;

  bool add(const std::string& key, const std::string& value) override {
    require(value.size() <= kMaxTextBytes, Cause{ErrorCode::out_of_range, "", folder_},
            "a value of ", value.size(), " bytes is too long for the store: at most ",
            kMaxTextBytes, " bytes");
    const std::string path = join_path(folder_, file_of(key));
    // Readers see the whole value or none.
    const std::string temporary = concat(path, ".tmp-", ::getpid());
    const int descriptor =
        ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (descriptor < 0) throw_file_error("write", temporary, errno);
    const ssize_t written = ::write(descriptor, value.data(), value.size());
    const int reason = written < 0 ? errno : ENOSPC;
    const bool whole = written == static_cast<ssize_t>(value.size());
    ::close(descriptor);
    const bool added = whole && ::link(temporary.c_str(), path.c_str()) == 0;
    const int refusal = whole ? errno : reason;
    ::unlink(temporary.c_str());
    if (!added && refusal != EEXIST) throw_file_error("write", path, refusal);
    return added;
  }

  std::optional<std::string> get(const std::string& key) override {
    const std::string path = join_path(folder_, file_of(key));
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (descriptor < 0) {
      if (errno == ENOENT) return std::nullopt;
      throw_file_error("read", path, errno);
    }
    struct stat found {};
    const bool ours = ::fstat(descriptor, &found) == 0 && S_ISREG(found.st_mode) &&
                      found.st_uid == ::geteuid() &&
                      static_cast<size_t>(found.st_size) <= kMaxTextBytes;
    std::string value(ours ? static_cast<size_t>(found.st_size) : 0, '\0');
    const bool whole = ours && ::read(descriptor, value.data(), value.size()) ==
                                   static_cast<ssize_t>(value.size());
    ::close(descriptor);
    require(whole, Cause{ErrorCode::malformed, "", path}, path,
            " is no value of this store: a file of yours with at most ", kMaxTextBytes,
            " bytes; name a store that does not exist yet");
    return value;
  }

  void remove(const std::string& key) override {
    ::unlink(join_path(folder_, file_of(key)).c_str());
  }

 private:
  std::string folder_;
};

}  // namespace

std::optional<std::string> Store::wait(const std::string& key, Deadline deadline) {
  while (true) {
    if (auto value = get(key)) return value;
    if (std::chrono::steady_clock::now() >= deadline) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

std::unique_ptr<Store> make_file_store(const std::string& folder) {
  return std::make_unique<FileStore>(folder);
}

}  // namespace linnet
