// A stop signal at a chosen moment of a run.
#pragma once

#include <string>

#include "core/files.h"
#include "core/interrupt.h"

namespace linnet::test {

// Asks the run to stop when a line of metrics.jsonl holds `text`.
class StopAtLine final : public FileSystem {
 public:
  StopAtLine(std::string text, int signal) : text_(std::move(text)), signal_(signal) {
    replace_file_system(this);
  }
  ~StopAtLine() override { replace_file_system(nullptr); }
  size_t write_some(int descriptor, std::string_view bytes, const std::string& path) override {
    const size_t written = FileSystem::write_some(descriptor, bytes, path);
    if (path.ends_with("metrics.jsonl") && bytes.find(text_) != std::string_view::npos) {
      request_stop(signal_);
    }
    return written;
  }

 private:
  std::string text_;
  int signal_;
};

}  // namespace linnet::test
