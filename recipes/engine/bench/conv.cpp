#include "recipes/engine/bench/conv.h"

#include "attention/primitives/depthwise_conv/depthwise_conv.h"

namespace linnet {
namespace {

OperationBench bench_convolution(int64_t taps, const OperationOptions& options, int64_t length) {
  const Device device = options.device;
  const Shape shape{options.batch, length, options.heads, options.head_width};
  const Tensor x = bench_values(shape, 1, options.dtype, device);
  std::vector<Tensor> inputs(static_cast<size_t>(alternating_inputs(x.bytes(), device)), x);
  for (size_t i = 1; i < inputs.size(); ++i) inputs[i] = x.clone();
  const Tensor filters = bench_values({options.heads, taps}, 2, options.dtype, device);
  const Tensor seed = bench_values(shape, 3, options.dtype, device);
  OperationBench result{concat("conv, ", taps, " taps"),
                        Form::causal,
                        options.batch,
                        length,
                        options.heads,
                        options.head_width};
  result.growth.power = 1;
  result.multiply_adds = static_cast<double>(taps) * static_cast<double>(shape.elements());
  size_t turn = 0;
  const auto run = [&] {
    const Variable in(inputs[turn++ % inputs.size()], true);
    return depthwise_conv(in, {}, Variable(filters, true), taps - 1, {});
  };
  measure(result, options, run, seed);
  return result;
}

}  // namespace

std::vector<OperationBench> bench_convolutions(const std::vector<int64_t>& taps,
                                               const OperationOptions& options,
                                               const OnPoint& on_point) {
  require_sizes(options);
  for (const int64_t count : taps) {
    constexpr int64_t kMaxTaps = 1 << 24;
    require_usage(1 <= count && count <= kMaxTaps, Cause{ErrorCode::out_of_range, "--taps"},
                  "bench: --taps must be 1 to ", kMaxTaps, ", got ", count);
  }
  require_different("--taps", "the number of taps", taps);
  std::vector<OperationBench> results;
  for (const int64_t count : taps) {
    for (const int64_t length : options.lengths) {
      if (options.before_point) {
        options.before_point(concat("conv, ", count, " taps, length ", length), std::ssize(results),
                             std::ssize(taps) * std::ssize(options.lengths));
      }
      results.push_back(bench_convolution(count, options, length));
      if (on_point) on_point(results.back());
    }
  }
  return results;
}

}  // namespace linnet
