// Carried tokens and their masks.
#include "attention/primitives/cuda/carry.h"

#include "attention/primitives/cuda/token_spans.h"
#include "core/cuda/for_each.h"

namespace linnet::cuda {
namespace {

// Elements of one size, whatever they are.
template <typename Element>
void copy_elements(const Tensor& from, int64_t from_token, const Tensor& to, int64_t to_token,
                   int64_t tokens) {
  const int64_t B = to.size(0);
  const int64_t width = to.elements() / (B * to.size(1)), run = tokens * width;
  const int64_t from_stride = from.size(1) * width, to_stride = to.size(1) * width;
  const auto* source = static_cast<const Element*>(from.raw()) + from_token * width;
  auto* target = static_cast<Element*>(to.raw()) + to_token * width;
  for_each("carry_tokens", B * run, [=] __device__(int64_t i) {
    target[i / run * to_stride + i % run] = source[i / run * from_stride + i % run];
  });
}

}  // namespace

void copy_tokens(const Tensor& from, int64_t from_token, const Tensor& to, int64_t to_token,
                 int64_t tokens) {
  if (tokens == 0 || to.elements() == 0) return;
  switch (size_of(to.dtype())) {
    case 1:
      return copy_elements<uint8_t>(from, from_token, to, to_token, tokens);
    case 2:
      return copy_elements<uint16_t>(from, from_token, to, to_token, tokens);
    case 4:
      return copy_elements<uint32_t>(from, from_token, to, to_token, tokens);
    default:
      return copy_elements<uint64_t>(from, from_token, to, to_token, tokens);
  }
}

void carry_mask(const Tensor& past_mask, const Tensor& key_mask, const Tensor& segments, int64_t P,
                int64_t T, const Tensor& out) {
  if (out.elements() == 0) return;
  const int64_t n = out.size(1);
  const Tensor spans = segments.defined() && T > 0 ? token_spans(segments) : Tensor();
  const int32_t* begins = pointer_or_null<int32_t>(spans);
  const uint8_t* past = pointer_or_null<uint8_t>(past_mask);
  const uint8_t* current = pointer_or_null<uint8_t>(key_mask);
  uint8_t* to = pointer<uint8_t>(out);
  for_each("carry_mask", out.elements(), [=] __device__(int64_t i) {
    const int64_t b = i / n, t = T - n + i % n;
    const int64_t last_span = begins != nullptr ? begins[b * T + T - 1] : 0;
    if (t < 0) {
      to[i] = last_span == 0 && (past == nullptr || past[b * P + P + t] != 0) ? 1 : 0;
    } else {
      to[i] = t >= last_span && (current == nullptr || current[b * T + t] != 0) ? 1 : 0;
    }
  });
}

}  // namespace linnet::cuda
