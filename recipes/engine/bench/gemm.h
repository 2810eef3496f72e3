// Times matrix products on the CPU: with one thread and with as many as linnet takes by itself.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"

namespace linnet {

// c [rows, columns] = a [rows, depth] b^T, b [columns, depth], as a linear layer has it.
struct GemmSize {
  int64_t rows = 0, columns = 0, depth = 0;
  int64_t multiply_adds() const { return rows * columns * depth; }
  std::string name() const;  // "64x768x192"
};

// Of text as name() writes it. Throws UsageError for other text, and for a product of more than
// 2^40 multiply-adds.
GemmSize gemm_size_from_name(std::string_view name);

struct GemmBenchOptions {
  std::vector<GemmSize> sizes;
  DType dtype = DType::f32;  // of all three; or bf16
  bool step = false;         // as in a step of generation
  int64_t runs = 20;         // at most, of each number of threads
};

struct GemmBench {
  GemmSize size;
  int threads = 1;  // that linnet takes, of those that it has
  // The least of the runs, which alternate.
  double one_thread_ms = 0, ms = 0;
  double ratio() const { return ms / one_thread_ms; }
  double gflop_per_s() const { return 2e-6 * static_cast<double>(size.multiply_adds()) / ms; }
};

// Each size, told as it is known; small products are repeated in a run, so that they find their
// matrices in the caches. Throws UsageError where a step has more rows than its products take.
std::vector<GemmBench> bench_gemm(const GemmBenchOptions& options,
                                  const std::function<void(const GemmBench&)>& on_result = {});

}  // namespace linnet
