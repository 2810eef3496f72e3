#include "core/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/error.h"

namespace linnet {
namespace {

[[noreturn]] void throw_system_error(const char* what) {
  const int reason = errno;
  throw Error({ErrorCode::system, "", ""},
              concat("cannot ", what, ": ", std::generic_category().message(reason)));
}

// Between fork and exec nothing may be allocated.
[[noreturn]] void become(char* const* argv, char* const* variables, int lines, int error_lines,
                         pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(1);  // it was gone before
  ::signal(SIGPIPE, SIG_DFL);
  ::signal(SIGXFSZ, SIG_DFL);
  if (::dup2(lines, STDOUT_FILENO) >= 0 && ::dup2(error_lines, STDERR_FILENO) >= 0) {
    ::execve("/proc/self/exe", argv, variables);
  }
  ::_exit(127);
}

// As exec wants them; the texts must outlive the result.
std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (std::string& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

// This process's environment with other variables.
std::vector<std::string> environment_with(const std::vector<std::string>& variables) {
  std::vector<std::string> all = variables;
  for (char** one = environ; *one != nullptr; ++one) {
    const std::string_view text = *one;
    const std::string_view name = text.substr(0, text.find('=') + 1);
    const bool replaced = std::any_of(variables.begin(), variables.end(), [&](const auto& other) {
      return std::string_view(other).starts_with(name);
    });
    if (!replaced) all.emplace_back(text);
  }
  return all;
}

// Returns the end to write to; the end to read from is `reads`, and does not wait.
int open_pipe(int& reads) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_system_error("make a pipe");
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  reads = ends[0];
  return ends[1];
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& arguments,
                           const ChildSettings& settings) {
  std::vector<std::string> texts = arguments;
  texts.insert(texts.begin(), "linnet");
  std::vector<std::string> variables = environment_with(settings.variables);
  const std::vector<char*> argv = pointers(texts), environment = pointers(variables);
  const int out = open_pipe(lines_.descriptor);
  int err = out;
  try {
    if (settings.separate_errors) err = open_pipe(error_lines_.descriptor);
  } catch (const Error&) {
    ::close(out);
    close_streams();
    throw;
  }
  ::signal(SIGCHLD, SIG_DFL);  // where it is ignored, exit codes are lost
  const pid_t parent = ::getpid();
  process_ = ::fork();
  if (process_ == 0) become(argv.data(), environment.data(), out, err, parent);
  const int reason = errno;
  ::close(out);
  if (err != out) ::close(err);
  if (process_ < 0) {
    close_streams();
    errno = reason;
    throw_system_error("start a process");
  }
}

ChildProcess::~ChildProcess() {
  close_streams();
  if (!running_) return;
  signal(SIGKILL);
  while (::waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void ChildProcess::close_streams() {
  for (Stream* stream : {&lines_, &error_lines_}) {
    if (stream->descriptor >= 0) ::close(stream->descriptor);
    stream->descriptor = -1;
  }
}

void ChildProcess::signal(int number) const {
  if (running_) ::kill(process_, number);
}

// What there is, without waiting.
void ChildProcess::Stream::read_all() {
  if (descriptor < 0) return;
  char bytes[4096];
  while (true) {
    const ssize_t count = ::read(descriptor, bytes, sizeof(bytes));
    if (count > 0) {
      pending.append(bytes, static_cast<size_t>(count));
    } else if (count == 0 || errno != EINTR) {
      return;
    }
  }
}

std::vector<std::string> ChildProcess::Stream::take_lines(bool all) {
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t end; (end = pending.find('\n', begin)) != std::string::npos; begin = end + 1) {
    lines.push_back(pending.substr(begin, end - begin));
  }
  pending.erase(0, begin);
  if (all && !pending.empty()) lines.push_back(std::exchange(pending, ""));
  return lines;
}

std::vector<std::string> ChildProcess::read_lines() {
  if (running_) {
    int status = 0;
    // Its end first: what it wrote before is in the pipes then.
    const bool ended = ::waitpid(process_, &status, WNOHANG) == process_;
    lines_.read_all();
    error_lines_.read_all();
    if (ended) {
      running_ = false;
      exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      close_streams();
    }
  }
  return lines_.take_lines(!running_);
}

}  // namespace linnet
