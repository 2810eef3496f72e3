// Shared by benchmarks of single operations: times, and inputs that are fair to a GPU's cache.
#pragma once

#include <functional>
#include <vector>

#include "core/tensor.h"

namespace linnet {

// Seconds from before the call until the device is done.
double time_once(Device device, const std::function<void()>& body);
double median(std::vector<double> values);

// Milliseconds of one run among several.
struct RunTime {
  double median = 0;  // from before the call until the device is done
  // The least. Of one CPU thread it is of the times for which that thread had a processor: what the
  // work itself takes, whatever else the machine does meanwhile. Of several threads, of which the
  // calling one may do next to nothing, and of a GPU it is of the times that `median` is of.
  double least = 0;
};
// Of at most `runs`, after one that warms up (which is nothing beside a run of more than 8 seconds,
// counted as for `least`: that is not repeated). `prepare`, if any, comes before each run and is
// not timed.
RunTime time_runs(Device device, int64_t runs, const std::function<void()>& body,
                  const std::function<void()>& prepare = {});
// Fills the calling thread's caches with memory that nothing else uses.
void empty_caches();

// Normal values that repeat after a million: timing needs no more, and many are slow to draw.
Tensor bench_values(const Shape& shape, uint64_t site, DType dtype, Device device);
// How many inputs of `bytes` runs alternate between, so that a GPU reads them from its memory, not
// from the cache where the run before left them.
int64_t alternating_inputs(size_t bytes, Device device);

// The largest |got - expected|, as a share of the largest |expected|; NaN stays NaN. Floating
// tensors of one shape, on any device.
double worst_error(const Tensor& got, const Tensor& expected);

}  // namespace linnet
