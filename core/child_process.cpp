#include "core/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "core/error.h"

namespace linnet {
namespace {

[[noreturn]] void throw_system_error(const char* what) {
  const int reason = errno;
  throw Error({ErrorCode::system, "", ""},
              concat("cannot ", what, ": ", std::generic_category().message(reason)));
}

// Between fork and exec nothing may be allocated.
[[noreturn]] void become(char* const* argv, int lines, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(1);  // it was gone before
  ::signal(SIGPIPE, SIG_DFL);
  ::signal(SIGXFSZ, SIG_DFL);
  if (::dup2(lines, STDOUT_FILENO) >= 0 && ::dup2(lines, STDERR_FILENO) >= 0) {
    ::execv("/proc/self/exe", argv);
  }
  ::_exit(127);
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& arguments) {
  std::vector<std::string> texts = arguments;
  texts.insert(texts.begin(), "linnet");
  std::vector<char*> argv;
  for (std::string& text : texts) argv.push_back(text.data());
  argv.push_back(nullptr);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_system_error("make a pipe");
  ::signal(SIGCHLD, SIG_DFL);  // where it is ignored, exit codes are lost
  const pid_t parent = ::getpid();
  process_ = ::fork();
  if (process_ == 0) become(argv.data(), ends[1], parent);
  ::close(ends[1]);
  descriptor_ = ends[0];
  if (process_ < 0) {
    ::close(descriptor_);
    throw_system_error("start a process");
  }
  ::fcntl(descriptor_, F_SETFL, O_NONBLOCK);
}

ChildProcess::~ChildProcess() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!running_) return;
  signal(SIGKILL);
  while (::waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void ChildProcess::signal(int number) const {
  if (running_) ::kill(process_, number);
}

// Whether there may be more.
bool ChildProcess::read_some() {
  char bytes[4096];
  const ssize_t count = ::read(descriptor_, bytes, sizeof(bytes));
  if (count > 0) {
    pending_.append(bytes, static_cast<size_t>(count));
    return true;
  }
  return count < 0 && errno == EINTR;
}

std::vector<std::string> ChildProcess::take_lines(bool all) {
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t end; (end = pending_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    lines.push_back(pending_.substr(begin, end - begin));
  }
  pending_.erase(0, begin);
  if (all && !pending_.empty()) lines.push_back(std::move(pending_));
  return lines;
}

std::vector<std::string> ChildProcess::read_lines() {
  if (!running_) return {};
  int status = 0;
  // Its end first: what it wrote before is in the pipe then.
  const bool ended = ::waitpid(process_, &status, WNOHANG) == process_;
  while (read_some()) {
  }
  if (ended) {
    running_ = false;
    exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    ::close(descriptor_);
    descriptor_ = -1;
  }
  return take_lines(ended);
}

}  // namespace linnet
