#include "attention/flash/cuda/token_shift.h"

#include "core/cuda/for_each.h"
#include "core/cuda/stored_values.h"

namespace linnet::cuda {

void shift_tokens(const Tensor& x, const Tensor& past, const TokenShift& rule, const Tensor& y) {
  const StoredValues from = stored_values(x);
  const StoredValues before = stored_values(past);
  const StoredResults to = stored_results(y);
  for_each("shift_tokens", y.elements(), [=] __device__(int64_t i) {
    const int64_t source = rule.source(i);
    to.put(i, source >= 0                   ? from.at(source)
              : source == TokenShift::kPast ? before.at(rule.past(i))
                                            : 0.0f);
  });
}

void shift_tokens_backward(const Tensor& dy, const TokenShift& rule, const Tensor& dx) {
  const StoredValues from = stored_values(dy);
  const StoredResults to = stored_results(dx);
  for_each("shift_tokens_backward", dx.elements(), [=] __device__(int64_t i) {
    const int64_t reader = rule.reader(i);
    to.put(i, reader >= 0 ? from.at(reader) : 0.0f);
  });
}

void shift_past_backward(const Tensor& dy, const TokenShift& rule, const Tensor& dpast) {
  const StoredValues from = stored_values(dy);
  const StoredResults to = stored_results(dpast);
  for_each("shift_past_backward", dpast.elements(), [=] __device__(int64_t i) {
    const int64_t reader = rule.past_reader(i);
    to.put(i, reader >= 0 ? from.at(reader) : 0.0f);
  });
}

}  // namespace linnet::cuda
