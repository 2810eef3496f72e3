// The lines of a run's metrics.jsonl, read for a report and by a run that is taken up again.
#include "recipes/engine/metrics.h"

#include "recipes/engine/report_data.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/memory_files.h"

namespace linnet::fuzz {

void read_input(std::string_view input) {
  constexpr int64_t kResumedAt = 20;
  MemoryFiles files;
  std::string& lines = files["run/metrics.jsonl"];
  lines = input;
  read_run("run");
  MetricsLog log("run", kResumedAt);
  expect(input.starts_with(lines), "resuming keeps the lines before its step");
  const size_t kept = lines.size();
  TrainMetrics next;
  next.step = kResumedAt + 1;
  log.write(next);
  const int64_t malformed = read_run("run").malformed.count();
  lines.resize(kept);
  expect(read_run("run").malformed.count() == malformed, "a line that was written is read");
}

}  // namespace linnet::fuzz
