#include "attention/flash/cuda/token_shift.h"

#include "core/cuda/for_each.h"

namespace linnet::cuda {
namespace {

template <typename T>
void forward(const Tensor& x, const Tensor& past, const TokenShift& rule, const Tensor& y) {
  const T* from = pointer<T>(x);
  const T* before = past.defined() ? pointer<T>(past) : nullptr;
  T* to = pointer<T>(y);
  for_each("shift_tokens", y.elements(), [=] __device__(int64_t i) {
    const int64_t source = rule.source(i);
    store(to + i, source >= 0                   ? load(from + source)
                  : source == TokenShift::kPast ? load(before + rule.past(i))
                                                : 0.0f);
  });
}

template <typename T>
void backward(const Tensor& dy, const TokenShift& rule, const Tensor& dx) {
  const T* from = pointer<T>(dy);
  T* to = pointer<T>(dx);
  for_each("shift_tokens_backward", dx.elements(), [=] __device__(int64_t i) {
    const int64_t reader = rule.reader(i);
    store(to + i, reader >= 0 ? load(from + reader) : 0.0f);
  });
}

template <typename T>
void past_backward(const Tensor& dy, const TokenShift& rule, const Tensor& dpast) {
  const T* from = pointer<T>(dy);
  T* to = pointer<T>(dpast);
  for_each("shift_past_backward", dpast.elements(), [=] __device__(int64_t i) {
    const int64_t reader = rule.past_reader(i);
    store(to + i, reader >= 0 ? load(from + reader) : 0.0f);
  });
}

}  // namespace

void shift_tokens(const Tensor& x, const Tensor& past, const TokenShift& rule, const Tensor& y) {
  dispatch(y.dtype(), [&](auto zero) { forward<decltype(zero)>(x, past, rule, y); });
}

void shift_tokens_backward(const Tensor& dy, const TokenShift& rule, const Tensor& dx) {
  dispatch(dx.dtype(), [&](auto zero) { backward<decltype(zero)>(dy, rule, dx); });
}

void shift_past_backward(const Tensor& dy, const TokenShift& rule, const Tensor& dpast) {
  dispatch(dpast.dtype(), [&](auto zero) { past_backward<decltype(zero)>(dy, rule, dpast); });
}

}  // namespace linnet::cuda
