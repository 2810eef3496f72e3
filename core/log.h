// Log lines to stderr and, where set, to a file; one line that is redrawn in place on terminals.
#pragma once

#include <string>
#include <string_view>

#include "core/error.h"

namespace linnet {

enum class LogLevel { debug, info, warning, error };

// Writes one line: "text", "warning: text" or "error: text" to stderr, with the UTC time and the
// level to the log file. Control characters are spelt out, and warnings and errors shortened
// (core/echo.h). Safe from any thread; never throws.
void log(LogLevel level, std::string_view text) noexcept;

template <typename... Parts>
void log_info(const Parts&... parts) {
  log(LogLevel::info, concat(parts...));
}
template <typename... Parts>
void log_warning(const Parts&... parts) {
  log(LogLevel::warning, concat(parts...));
}
template <typename... Parts>
void log_error(const Parts&... parts) {
  log(LogLevel::error, concat(parts...));
}

// Lines below this level are dropped; info at the start.
void set_log_level(LogLevel level);

// Appends all further lines to a file as well; an empty path ends that. Throws Error when the file
// cannot be opened. If writing fails later, one warning goes to stderr and the file is given up.
void set_log_file(const std::string& path);

// Whether stderr is a terminal: elsewhere show_progress does nothing.
bool progress_is_visible();
// Redraws the progress line in place, cut to the terminal's width; log lines appear above it.
void show_progress(std::string_view text);
// Takes the progress line off the screen.
void erase_progress();
// Leaves the progress line on the screen and goes to the next one.
void end_progress();

}  // namespace linnet
