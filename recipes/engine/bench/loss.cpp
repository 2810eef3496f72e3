#include "recipes/engine/bench/loss.h"

#include <algorithm>
#include <functional>

#include "core/device.h"
#include "core/random.h"
#include "layers/heads.h"

namespace linnet {
namespace {

std::vector<int32_t> zipf_words(int64_t words, int64_t count) {
  std::vector<double> until;
  double total = 0;
  for (int64_t word = 0; word < words; ++word) {
    until.push_back(total += 1 / static_cast<double>(word + 1));
  }
  const RandomKey key{1, 0, 2};
  std::vector<int32_t> drawn;
  for (int64_t i = 0; i < count; ++i) {
    const double at = total * key.uniform(static_cast<uint64_t>(i));
    const auto found = std::upper_bound(until.begin(), until.end() - 1, at);
    drawn.push_back(static_cast<int32_t>(found - until.begin()));
  }
  return drawn;
}

void bench_loss(const LossBenchOptions& options, const char* head_name, RunTime& time,
                size_t& peak) {
  ModelConfig config;
  config.width = options.width;
  config.tie_embeddings = false;
  config.head = head_name;
  config.cutoffs = options.cutoffs;
  const ModelSizes sizes{options.words, options.tokens};
  const Device device = options.device;
  ParameterSet parameters;
  const Head made = make_head({config, sizes, ParameterScope(parameters), {}, {}});
  const TokenHead& head = *std::get<std::unique_ptr<const TokenHead>>(made);
  parameters.materialize(1, DType::f32, options.dtype, device);
  const Tensor hidden = bench_values({1, options.tokens, options.width}, 1, options.dtype, device);
  const Tensor targets =
      Tensor::from(zipf_words(options.words, options.tokens), {1, options.tokens}, device);
  reset_peak_memory(device);
  const size_t held = allocated_bytes(device);
  time = time_runs(device, options.runs,
                   [&] { backward(head.loss(Variable(hidden, true), targets)); });
  peak = peak_allocated_bytes(device) - held;
}

}  // namespace

LossBench bench_losses(const LossBenchOptions& options) {
  const auto limited = [](const char* option, int64_t value, int64_t most) {
    require_usage(1 <= value && value <= most, Cause{ErrorCode::out_of_range, option},
                  "bench: ", option, " must be 1 to ", most, ", got ", value);
  };
  limited("--words", options.words, 1 << 24);
  limited("--width", options.width, 65536);
  limited("--tokens", options.tokens, 1 << 24);
  const std::vector<int64_t>& cutoffs = options.cutoffs;
  require_usage(!cutoffs.empty() && cutoffs.front() > 0 && cutoffs.back() < options.words &&
                    std::adjacent_find(cutoffs.begin(), cutoffs.end(), std::greater_equal<>()) ==
                        cutoffs.end(),
                Cause{ErrorCode::out_of_range, "--cutoffs"},
                "bench: --cutoffs must rise from 1 to below --words, ", options.words);
  LossBench result;
  bench_loss(options, "table", result.table, result.table_peak);
  bench_loss(options, "adaptive", result.adaptive, result.adaptive_peak);
  return result;
}

}  // namespace linnet
