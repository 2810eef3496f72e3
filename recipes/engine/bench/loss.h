// Times the loss of a language model alone: from hidden vectors and targets to all gradients.
#pragma once

#include <vector>

#include "recipes/engine/bench/timing.h"

namespace linnet {

struct LossBenchOptions {
  int64_t words = 267744, width = 256, tokens = 1024;
  std::vector<int64_t> cutoffs{20000, 60000};  // of the adaptive softmax
  int64_t runs = 5;
  DType dtype = DType::f32;  // of activations and parameters; or bf16
  Device device;
};

struct LossBench {
  RunTime table, adaptive;  // forward and backward
  size_t table_peak = 0, adaptive_peak = 0;
};

// The loss by one table of all words and that by adaptive softmax, whose bands are gathered in the
// time, on targets drawn by Zipf's law: the word of rank r with a weight of 1 / r. Throws
// UsageError for sizes below 1 and cut-offs that do not rise below the words.
LossBench bench_losses(const LossBenchOptions& options);

}  // namespace linnet
