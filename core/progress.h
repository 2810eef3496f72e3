// Progress of long work: a line redrawn in place on a terminal, elsewhere a plain line now and
// then.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace linnet {

// "3:20" or "2:03:20".
std::string format_duration(double seconds);

// Where progress appears, and the clock that it goes by.
struct ProgressOutput {
  bool terminal = false;
  std::function<double()> seconds;  // a clock that never goes back
  std::function<void(const std::string&)>
      redraw;                                     // on a terminal: replaces the line; "": erases it
  std::function<void(const std::string&)> print;  // elsewhere: one more line
  double silent_s = 0.5, redraw_every_s = 0.2;    // on a terminal: before the first line, the next
};
// stderr and the log, by the machine's clock. LINNET_PROGRESS_SECONDS=0 in the environment shows
// every line on a terminal (other numbers: both times), whatever the machine's speed.
ProgressOutput standard_progress_output();

// Work that may take long. It says nothing while it is young: short work shows nothing. Then on a
// terminal the line is redrawn a few times per second and erased at the end; elsewhere a plain line
// comes every 30 seconds.
class WorkProgress {
 public:
  explicit WorkProgress(ProgressOutput output = standard_progress_output());
  ~WorkProgress() { erase(); }
  WorkProgress(const WorkProgress&) = delete;
  WorkProgress& operator=(const WorkProgress&) = delete;

  // Whether show() would show anything: for callers whose text is costly.
  bool due() const;
  // `done` of `total` (any unit; total 0: not known) are done. Where due: "text, 35 %, ETA 0:12".
  void show(const std::string& text, double done, double total);
  // On a terminal, before other output there: erases the line until show() is called again.
  void erase();
  // Since the work began.
  double seconds() const { return output_.seconds() - start_; }

 private:
  ProgressOutput output_;
  double start_;
  std::optional<double> last_shown_;
  bool drawn_ = false;
};

// Told of each part of a work before it begins: what it is, how many are done, of how many.
using OnPart = std::function<void(const std::string& what, int64_t done, int64_t total)>;
// Shows them; refers to `progress`.
OnPart shown_by(WorkProgress& progress);

}  // namespace linnet
