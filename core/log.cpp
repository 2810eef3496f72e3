// Logging through spdlog with two sinks of our own: stderr with a progress line, and a file.
#include "core/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <mutex>
#include <new>
#include <optional>

#include "core/echo.h"
#include "core/files.h"
#include "core/utf8.h"

namespace linnet {
namespace {

constexpr const char* kEraseLine = "\r\x1b[K";

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return spdlog::level::debug;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::warning:
      return spdlog::level::warn;
    case LogLevel::error:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

class ConsoleSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  void show(std::string_view text) {
    const std::lock_guard guard(mutex_);
    struct winsize window {};
    const size_t columns =
        ::ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 1 ? window.ws_col : 80;
    progress_ = utf8_prefix(text, columns - 1);
    draw();
  }
  void erase() {
    const std::lock_guard guard(mutex_);
    if (progress_.empty()) return;
    progress_.clear();
    draw();
  }
  void end() {
    const std::lock_guard guard(mutex_);
    if (!progress_.empty()) std::fputc('\n', stderr);
    progress_.clear();
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    std::string line = progress_.empty() ? "" : kEraseLine;
    if (message.level == spdlog::level::warn) line += "warning: ";
    if (message.level >= spdlog::level::err) line += "error: ";
    line.append(message.payload.data(), message.payload.size());
    line += '\n';
    std::fwrite(line.data(), 1, line.size(), stderr);
    if (!progress_.empty()) draw();
  }
  void flush_() override { std::fflush(stderr); }
  void draw() const {
    const std::string line = kEraseLine + progress_;
    std::fwrite(line.data(), 1, line.size(), stderr);
    std::fflush(stderr);
  }
  std::string progress_;
};

// Writes through core/files.h; gives up after the first failure.
class FileSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  FileSink() {
    formatter_ = std::make_unique<spdlog::pattern_formatter>("%Y-%m-%dT%H:%M:%SZ %-7l %v",
                                                             spdlog::pattern_time_type::utc, "\n");
  }
  void set_path(const std::string& path) {
    const std::lock_guard guard(mutex_);
    file_.reset();
    if (!path.empty()) file_.emplace(path, OpenMode::append);
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (!file_) return;
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    try {
      file_->write(std::string_view(line.data(), line.size()));
    } catch (const Error& error) {
      file_.reset();
      std::fprintf(stderr, "warning: no more log lines go to the file: %s\n", error.what());
    }
  }
  void flush_() override {}
  std::optional<File> file_;
};

struct Log {
  std::shared_ptr<ConsoleSink> console = std::make_shared<ConsoleSink>();
  std::shared_ptr<FileSink> file = std::make_shared<FileSink>();
  spdlog::logger logger{"linnet", {console, file}};
};

// Never destroyed: threads and destructors of static objects may log until the very end.
Log& global_log() {
  static Log* instance = new Log;
  return *instance;
}

}  // namespace

void log(LogLevel level, std::string_view text) noexcept {
  std::string shown;
  try {
    shown = printable(level >= LogLevel::warning ? shortened_message(text) : std::string(text));
  } catch (const std::bad_alloc&) {
    shown.clear();
  }
  // spdlog reports its own failures on stderr and does not throw.
  if (!shown.empty()) text = shown;
  global_log().logger.log(to_spdlog(level), spdlog::string_view_t(text.data(), text.size()));
}

void set_log_level(LogLevel level) {
  global_log().logger.set_level(to_spdlog(level));
}

void set_log_file(const std::string& path) {
  global_log().file->set_path(path);
}

bool progress_is_visible() {
  return ::isatty(STDERR_FILENO) == 1;
}

void show_progress(std::string_view text) {
  if (progress_is_visible()) global_log().console->show(text);
}

void erase_progress() {
  global_log().console->erase();
}

void end_progress() {
  global_log().console->end();
}

}  // namespace linnet
