#include "recipes/engine/bench/gemm.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>

#include "core/gemm.h"
#include "core/row_products.h"
#include "core/threads.h"
#include "recipes/engine/bench/timing.h"

namespace linnet {
namespace {

constexpr int64_t kMaxMultiplyAdds = int64_t{1} << 40;
constexpr double kMaxSeconds = 2;  // of all runs of a size

// Gives parallel loops of this thread so many while it lives.
class Threads {
 public:
  explicit Threads(int count) : before_(thread_count()) { set_thread_count(count); }
  ~Threads() { set_thread_count(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

class Product {
 public:
  Product(const GemmSize& size, const GemmBenchOptions& options)
      : step_(options.step),
        a_(bench_values({size.rows, size.depth}, 1, options.dtype, {})),
        b_(bench_values({size.columns, size.depth}, 2, options.dtype, {})),
        c_(Tensor::zeros({size.rows, size.columns}, options.dtype)) {
    constexpr double kLongEnough = 2e-3;  // seconds of a run
    const Threads one(1);
    seconds(1);
    for (repeats_ = 1; repeats_ < kMaxRepeats; repeats_ *= 2) {
      if (seconds(repeats_) >= kLongEnough) break;
    }
  }

  // Of one product among repeated ones.
  double seconds_with(int threads) const {
    const Threads some(threads);
    return seconds(repeats_) / static_cast<double>(repeats_);
  }

 private:
  static constexpr int64_t kMaxRepeats = int64_t{1} << 20;

  double seconds(int64_t repeats) const {
    return time_once({}, [&] {
      std::optional<SmallStep> step;
      if (step_) step.emplace(1);
      for (int64_t i = 0; i < repeats; ++i) gemm(a_, Transpose::no, b_, Transpose::yes, c_);
    });
  }

  bool step_;
  Tensor a_, b_, c_;
  int64_t repeats_ = 1;
};

GemmBench measure(const GemmSize& size, const GemmBenchOptions& options) {
  const Product product(size, options);
  const int64_t work = gemm_work(size.rows, size.columns, size.depth, options.dtype);
  GemmBench result{size, threads_for(work)};
  result.one_thread_ms = result.ms = std::numeric_limits<double>::infinity();
  const int all = thread_count();
  double spent = 0;
  for (int64_t run = 0; run < options.runs && spent < kMaxSeconds; ++run) {
    const double own = time_once({}, [&] {
      result.one_thread_ms = std::min(result.one_thread_ms, 1e3 * product.seconds_with(1));
      result.ms = std::min(result.ms, 1e3 * product.seconds_with(all));
    });
    spent += own;
  }
  return result;
}

}  // namespace

std::string GemmSize::name() const {
  return concat(rows, "x", columns, "x", depth);
}

GemmSize gemm_size_from_name(std::string_view name) {
  const UsageError wrong(
      {ErrorCode::out_of_range, "--sizes"},
      concat("--sizes: expected ROWSxCOLUMNSxDEPTH with whole numbers from 1 on and at most 2^40 "
             "multiply-adds, as 64x768x192, got '",
             name, "'"));
  int64_t sizes[3];
  const char* at = name.data();
  const char* const end = at + name.size();
  for (int64_t& size : sizes) {
    const auto [next, error] = std::from_chars(at, end, size);
    const bool last = &size == sizes + 2;
    if (error != std::errc{} || size < 1 || (next == end) != last) throw wrong;
    if (!last && *next != 'x') throw wrong;
    at = next + (last ? 0 : 1);
  }
  if (sizes[0] > kMaxMultiplyAdds / sizes[1] || sizes[0] * sizes[1] > kMaxMultiplyAdds / sizes[2]) {
    throw wrong;
  }
  return {sizes[0], sizes[1], sizes[2]};
}

std::vector<GemmBench> bench_gemm(const GemmBenchOptions& options,
                                  const std::function<void(const GemmBench&)>& on_result) {
  for (const GemmSize& size : options.sizes) {
    require_usage(!options.step || size.rows <= kMaxProductRows,
                  Cause{ErrorCode::out_of_range, "--sizes"}, "a step has at most ", kMaxProductRows,
                  " rows, got ", size.name());
  }
  std::vector<GemmBench> results;
  for (const GemmSize& size : options.sizes) {
    results.push_back(measure(size, options));
    if (on_result) on_result(results.back());
  }
  return results;
}

}  // namespace linnet
