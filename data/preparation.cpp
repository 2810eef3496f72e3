#include "data/preparation.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "core/error.h"

namespace linnet {
namespace {

// Of the thread: preparing reports to the innermost one that is alive, through functions that know
// nothing of it.
thread_local Preparation* innermost = nullptr;

// 0 for a file that is missing: reading it says so.
double size_of(const SourceFile& file) {
  std::error_code missing;
  const uintmax_t bytes = std::filesystem::file_size(file.path, missing);
  if (missing) return 0;
  const uint64_t end = std::min<uint64_t>(bytes, file.end);
  return static_cast<double>(end - std::min(end, file.begin));
}

}  // namespace

Preparation::Preparation(std::string doing, const std::vector<SourceFile>& files,
                         ProgressOutput output)
    : doing_(std::move(doing)), outer_(innermost), progress_(std::move(output)) {
  for (const SourceFile& file : files) total_ += size_of(file);
  innermost = this;
}

Preparation::~Preparation() {
  innermost = outer_;
}

void Preparation::begin(const SourceFile& file) {
  before_ += current_;
  name_ = file.name;
  current_ = size_of(file);
  pieces_ = 0;
  report(0);
}

void Preparation::report(size_t bytes) {
  if (!progress_.due()) return;
  const double done = before_ + std::min(pieces_ + static_cast<double>(bytes), current_);
  char numbers[80];
  std::snprintf(numbers, sizeof(numbers), "%.0f of %.0f MB, %.1f MB/s", done / 1e6, total_ / 1e6,
                done / 1e6 / std::max(progress_.seconds(), 1e-9));
  progress_.show(concat(doing_, ": ", name_, ", ", numbers), done, total_);
}

void Preparation::end_piece(size_t bytes) {
  pieces_ += static_cast<double>(bytes);
  report(0);
}

void report_bytes_done(size_t bytes) {
  if (innermost != nullptr) innermost->report(bytes);
}

}  // namespace linnet
