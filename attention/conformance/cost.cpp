// The check of the declared cost against counted operations and bytes.
#include <cmath>
#include <functional>

#include "attention/conformance/internal.h"
#include "attention/growth.h"
#include "attention/primitives/common/tile_gemm.h"
#include "core/gemm.h"
#include "core/threads.h"
#include "core/yaml.h"

namespace linnet::conformance {
namespace {

// Factor that corner tiles and padding may add where a mechanism's cost cases make them small.
constexpr double kMaxExcess = 0.35;
constexpr int64_t kCostLength = 384;
// The likeliest reason for too small a count.
constexpr const char* kUncounted =
    "; an operation of your own reports its products with count_multiply_adds "
    "(attention/primitives/common/tile_gemm.h)";

// Kernels that share a span among threads read it twice: operations are counted on one thread.
class OneThread {
 public:
  OneThread() : before_(thread_count()) { set_thread_count(1); }
  ~OneThread() { set_thread_count(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

struct Counted {
  // Multiply-adds: of products, of batched ones among them, and of kernels.
  double gemm = 0, batched = 0, tiles = 0;
  double bytes = 0;
};

double bytes_of(const Tensor& x) {
  return x.defined() ? static_cast<double>(x.bytes()) : 0;
}

Counted count(const Subject& subject, const Batch& batch) {
  const OneThread one;
  const double gemm = gemm_flop_count(), batched = batched_gemm_flop_count(),
               tiles = tile_multiply_adds();
  const Result result = subject.run(batch);
  Counted counted{(gemm_flop_count() - gemm) / 2, (batched_gemm_flop_count() - batched) / 2,
                  tile_multiply_adds() - tiles, 0};
  const auto element = static_cast<double>(size_of(subject.dtype()));
  counted.bytes = element * static_cast<double>(batch.x.elements()) + bytes_of(result.y);
  if (batch.source.defined()) {
    counted.bytes += element * static_cast<double>(batch.source.elements());
  }
  for (const ParameterSet::Entry& entry : subject.parameters().entries()) {
    counted.bytes += bytes_of(entry.variable.value());
  }
  for (const ParameterSet::Buffer& buffer : subject.parameters().buffers()) {
    counted.bytes += bytes_of(buffer.variable.value());
  }
  for (const auto& state : result.state) counted.bytes += bytes_of(state.second.value());
  return counted;
}

MixerShape shape_of(const Setup& setup, const Batch& batch, DType dtype) {
  return {batch.rows(), batch.length(), setup.cross() ? batch.source.size(1) : 0, dtype};
}

// Bytes and projections agree exactly, the mixing up to the factor of tiles. Returns the ratio of
// executed to declared multiply-adds of the mixing.
double compare(const Setup& setup, const Batch& batch, DType dtype) {
  const Subject subject = setup.subject(dtype);
  const MixerCost declared = subject.cost(shape_of(setup, batch, dtype));
  const Counted counted = count(subject, batch);
  require(declared.bytes == counted.bytes, "declared bytes ", declared.bytes, ", counted ",
          counted.bytes, " at T = ", batch.length(), " in ", name_of(dtype));
  // A mechanism without kernels of its own mixes through the same products as it projects.
  const bool by_gemm = counted.tiles == 0;
  if (by_gemm) {
    require(declared.multiply_adds() == counted.gemm,
            "declared multiply-adds of projections and mixing ", declared.multiply_adds(),
            ", counted ", counted.gemm, kUncounted);
    return 1;
  }
  // Batched products beyond the projections mix, as kernels do.
  const double mixed = counted.gemm - declared.projections;
  require(0 <= mixed && mixed <= counted.batched, "declared multiply-adds of projections ",
          declared.projections, ", counted ", counted.gemm);
  const double executed = counted.tiles + mixed;
  require(declared.mixing > 0 && declared.mixing <= executed, "declared multiply-adds of mixing ",
          declared.mixing, ", but the kernels execute ", executed, kUncounted);
  return executed / declared.mixing;
}

// Exponent of the growth of work from that length to one 16 times as long.
double exponent_from(int64_t length, const std::function<double(int64_t)>& work_at) {
  return std::log2(work_at(16 * length) / work_at(length)) / 4;
}

}  // namespace

std::string check_cost(const Setup& setup) {
  if (!setup.on_cpu()) throw NotApplicable{"operations are counted on the CPU"};
  for (const DType dtype : {DType::f32, DType::bf16}) compare(setup, setup.batch(2, 37), dtype);
  // At short lengths work grows no faster than the traits say; at lengths where the constant part
  // (inverses of landmarks) is negligible, it grows as they say.
  const StatedGrowth stated = stated_growth(setup.traits, setup.form);
  const Subject single = setup.subject(DType::f32);
  const auto mixing_at = [&](int64_t length) {
    return single.cost({1, length, setup.cross() ? length : 0, DType::f32}).mixing;
  };
  const auto stated_at = [&](int64_t length) { return stated.at(static_cast<double>(length)); };
  constexpr int64_t kShort = 2048, kLong = int64_t{1} << 17;
  const double at_once = exponent_from(kShort, mixing_at);
  const double exponent = exponent_from(kLong, mixing_at);
  require(std::abs(exponent - exponent_from(kLong, stated_at)) <= 0.15 &&
              at_once <= exponent_from(kShort, stated_at) + 0.15,
          "trait growth: is ", setup.traits.growth,
          ", but the declared mixing grows with the length to the power ", exponent,
          ", from 2k to 32k tokens ", at_once);
  // The cost cases need no repetition for every parameter set.
  if (setup.parameters.entries().size() > 0 || !setup.options.bias)
    return concat("exact; grows as T^", exponent);
  double largest = 1;
  for (const std::string& text : setup.mechanism.cost_cases) {
    Setup at = setup;
    at.parameters = parse_yaml(text, setup.mechanism.name + " cost cases");
    if (!setup.mechanism.traits_of(at.parameters).has(setup.form)) continue;
    at.options = check_options(setup.form, 128);
    at.options.max_length = kCostLength;
    const Batch batch =
        random_batch(setup.form, 2, kCostLength, kCostLength / 2, at.options.width, 1);
    const double ratio = compare(at, batch, DType::f32);
    require(ratio <= 1 + kMaxExcess, "with ", text, " the kernels execute ", ratio,
            " times the declared multiply-adds, allowed ", 1 + kMaxExcess);
    largest = std::max(largest, ratio);
  }
  return concat("exact; grows as T^", exponent, "; kernels execute ", largest, " times it");
}

}  // namespace linnet::conformance
