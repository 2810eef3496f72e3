// Speed, state and memory of generating tokens, against the length so far.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "core/progress.h"
#include "core/tensor.h"
#include "recipes/engine/model_bench.h"

namespace linnet {

class Transformer;

struct DecodeBenchOptions {
  // Random tokens that are read before the first step, in each row; of an encoder the source.
  int64_t prompt = 1;
  std::vector<int64_t> lengths;  // of prompt and tokens so far, rising: where figures are told
  std::vector<int64_t> batches = {1};  // rows that are continued together
  bool with_state = true;              // else each token takes a pass over the whole text
  Device device;
};

// The end, its half, its quarter and so on, rising, as long as each has 8 new tokens at least.
std::vector<int64_t> doubled_lengths(int64_t prompt, int64_t tokens);

// Throws UsageError where the model has no positions for the last length.
void require_room(const Transformer& model, const DecodeBenchOptions& options);

// Continues random texts greedily and measures each batch at each length; the first step warms up
// and is not counted. `common` has what the results share. Without the state a length is measured
// by passes over random texts of that length. `on_result` is told of each as it is known, `before`
// of what comes next. Throws UsageError where the model has no decode state, or positions for less.
std::vector<ModelBench> bench_decode(const Transformer& model, const ModelBench& common,
                                     const DecodeBenchOptions& options, const OnPart& before = {},
                                     const std::function<void(const ModelBench&)>& on_result = {});

// How many times as long a token takes at the last length as at the first, in results of one model
// and batch.
double growth_of(const std::vector<ModelBench>& results);

}  // namespace linnet
