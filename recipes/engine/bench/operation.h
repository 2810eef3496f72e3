// Shared by benchmarks of single operations: their sizes, and how one of them is measured.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "attention/growth.h"
#include "autograd/variable.h"
#include "core/progress.h"
#include "layers/token_mixer.h"
#include "recipes/engine/bench/timing.h"

namespace linnet {

// One operation alone at one length. A mechanism goes without its projections, unless it lacks the
// usual four: then it is timed with those that it has.
struct OperationBench {
  std::string mechanism;  // or what else is measured, by name
  Form form = Form::causal;
  int64_t batch = 0, length = 0, heads = 0, width = 0;
  double multiply_adds = 0;  // of one forward pass, as declared
  RunTime forward = {}, forward_backward = {};
  size_t peak_bytes = 0;
  StatedGrowth growth = {};  // of a mechanism by its traits, for this form and these parameters
  // Two operations a multiply-add.
  double forward_gflop_per_s() const { return 2e-6 * multiply_adds / forward.median; }
};

struct OperationOptions {
  std::vector<int64_t> lengths{4096};
  int64_t batch = 1, heads = 4, head_width = 64;
  int64_t runs = 5;
  // Each run begins with empty caches of the calling thread: short sequences too come from memory
  // then, as long ones do, and growth is that of the work. On a CPU.
  bool cold = false;
  DType dtype = DType::f32;  // of activations and parameters; or bf16
  Device device;
  OnPart before_point = {};  // told of each point before it is measured
};

// Called for each point as it is measured; may be empty.
using OnPoint = std::function<void(const OperationBench&)>;

// Throws UsageError for sizes below 1, a length named twice, and `cold` on a GPU.
void require_sizes(const OperationOptions& options);

// Throws UsageError for one of `what`, the values of `option`, that is named twice: twice in one
// table would also count twice in the growth.
template <typename T>
void require_different(const char* option, const char* what, const std::vector<T>& values) {
  for (auto at = values.begin(); at != values.end(); ++at) {
    require_usage(std::find(values.begin(), at, *at) == at, Cause{ErrorCode::repeated, option},
                  "bench: ", what, " ", *at, " is named twice");
  }
}

// Sets times and memory: of `run`, which alternates between inputs, and of its backward pass from
// `seed`. At most options.runs are timed; a run that takes more than 8 seconds is not repeated.
void measure(OperationBench& result, const OperationOptions& options,
             const std::function<Variable()>& run, const Tensor& seed);

}  // namespace linnet
