#include "core/progress.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "core/log.h"

namespace linnet {
namespace {

constexpr double kPrintEvery_s = 30;

}  // namespace

std::string format_duration(double seconds) {
  const int64_t total = std::llround(std::min(seconds, 1e9));
  char text[40];
  if (total >= 3600)
    std::snprintf(text, sizeof(text), "%lld:%02d:%02d", static_cast<long long>(total / 3600),
                  static_cast<int>(total / 60 % 60), static_cast<int>(total % 60));
  else
    std::snprintf(text, sizeof(text), "%d:%02d", static_cast<int>(total / 60),
                  static_cast<int>(total % 60));
  return text;
}

ProgressOutput standard_progress_output() {
  const auto seconds = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  };
  const auto redraw = [](const std::string& line) {
    line.empty() ? erase_progress() : show_progress(line);
  };
  ProgressOutput output{progress_is_visible(), seconds, redraw,
                        [](const std::string& line) { log_info(line); }};
  if (const char* text = std::getenv("LINNET_PROGRESS_SECONDS")) {
    output.silent_s = output.redraw_every_s = std::strtod(text, nullptr);
  }
  return output;
}

WorkProgress::WorkProgress(ProgressOutput output)
    : output_(std::move(output)), start_(output_.seconds()) {}

bool WorkProgress::due() const {
  const double first = output_.terminal ? output_.silent_s : kPrintEvery_s;
  const double every = output_.terminal ? output_.redraw_every_s : kPrintEvery_s;
  const double now = output_.seconds();
  return last_shown_ ? now - *last_shown_ >= every : now - start_ >= first;
}

void WorkProgress::show(const std::string& text, double done, double total) {
  if (!due()) return;
  std::string line = text;
  if (total > 0) {
    const double share = std::clamp(done / total, 0.0, 1.0);
    line += concat(", ", std::floor(100 * share), " %");
    if (share > 0) line += ", ETA " + format_duration(seconds() * (1 - share) / share);
  }
  last_shown_ = output_.seconds();
  drawn_ = output_.terminal;
  (output_.terminal ? output_.redraw : output_.print)(line);
}

void WorkProgress::erase() {
  if (drawn_) output_.redraw("");
  drawn_ = false;
}

OnPart shown_by(WorkProgress& progress) {
  return [&progress](const std::string& what, int64_t done, int64_t total) {
    progress.show(concat(what, " (", done + 1, " of ", total, ")"), static_cast<double>(done),
                  static_cast<double>(total));
  };
}

}  // namespace linnet
