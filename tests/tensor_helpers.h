// What tests of tensors share: random contents, comparison with bounds that NaN cannot pass, and
// comparison bit for bit.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "core/random.h"
#include "core/tensor.h"
#include "core/threads.h"

namespace linnet::test {

// Standard normal draws times `scale`, the same for the same name and shape whatever the dtype.
inline Tensor random_tensor(const Shape& shape, std::string_view name, DType dtype = DType::f64,
                            double scale = 1) {
  const Tensor result = Tensor::zeros(shape, DType::f64);
  const RandomKey key = RandomKey{1, 0, 0}.at(name);
  for (int64_t i = 0; i < result.elements(); ++i) {
    result.data<double>()[i] = scale * key.normal(static_cast<uint64_t>(i));
  }
  return result.to(dtype);
}

inline Tensor ids(const std::vector<int32_t>& values, const Shape& shape) {
  return Tensor::from(values, shape);
}

// Whether shapes agree and |actual - expected| <= absolute + relative * |expected| everywhere.
inline testing::AssertionResult close(const Tensor& actual, const Tensor& expected, double absolute,
                                      double relative = 0) {
  if (!(actual.shape() == expected.shape())) {
    return testing::AssertionFailure()
           << "shape " << actual.shape() << " instead of " << expected.shape();
  }
  const std::vector<double> a = actual.to_vector<double>();
  const std::vector<double> e = expected.to_vector<double>();
  for (size_t i = 0; i < a.size(); ++i) {
    const double bound = absolute + relative * std::abs(e[i]);
    if (!(std::abs(a[i] - e[i]) <= bound)) {
      return testing::AssertionFailure() << "element " << i << " of " << a.size() << ": " << a[i]
                                         << " instead of " << e[i] << ", allowed " << bound;
    }
  }
  return testing::AssertionSuccess();
}

// Whether dtypes, shapes and all bits agree.
inline testing::AssertionResult same_bits(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || !(a.shape() == b.shape())) {
    return testing::AssertionFailure() << name_of(a.dtype()) << " " << a.shape() << " against "
                                       << name_of(b.dtype()) << " " << b.shape();
  }
  const size_t step = size_of(a.dtype());
  for (size_t at = 0; at < a.bytes(); at += step) {
    if (std::memcmp(static_cast<char*>(a.raw()) + at, static_cast<char*>(b.raw()) + at, step) !=
        0) {
      return testing::AssertionFailure() << "element " << at / step << " differs";
    }
  }
  return testing::AssertionSuccess();
}

// The message of the exception of type E that body throws, "" when it throws none.
template <typename E, typename Body>
std::string message_of(const Body& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

// Uses another number of threads until the end of the scope.
class Threads {
 public:
  explicit Threads(int count) : before_(thread_count()) { set_thread_count(count); }
  ~Threads() { set_thread_count(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

}  // namespace linnet::test
