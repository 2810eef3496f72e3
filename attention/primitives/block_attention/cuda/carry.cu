// Carried tokens and their masks.
#include "attention/primitives/block_attention/cuda/carry.h"

#include "attention/primitives/common/cuda/token_spans.h"
#include "core/cuda/copy_element.h"
#include "core/cuda/for_each.h"

namespace linnet::cuda {
namespace {

// One of the sequences carried together: `words` of a token, of 4 bytes or 2.
struct Carried {
  const void *past, *current;
  void* to;
  int64_t words;
  bool wide;

  // Word j of a token, which is number `token` where it comes from and `place` where it goes.
  __device__ void move(int64_t token, int64_t place, int64_t j, bool from_past) const {
    const void* from = current;
    if (from_past) from = past;
    copy_element(wide ? 4 : 2, from, token * words + j, to, place * words + j);
  }
};

Carried carried_of(const CarriedSequence& sequence) {
  const Tensor &past = sequence.past, &current = sequence.current, &to = sequence.to;
  const auto bytes = static_cast<int64_t>(to.bytes()) / (to.size(0) * to.size(1));
  uintptr_t odd = reinterpret_cast<uintptr_t>(current.raw()) | static_cast<uintptr_t>(bytes);
  if (past.defined()) odd |= reinterpret_cast<uintptr_t>(past.raw());
  const bool wide = odd % 4 == 0;
  return {past.defined() ? past.raw() : nullptr, current.raw(), to.raw(), bytes / (wide ? 4 : 2),
          wide};
}

}  // namespace

void carry_with_mask(const std::vector<CarriedSequence>& sequences, const Tensor& past_mask,
                     const Tensor& key_mask, const Tensor& mask) {
  if (mask.elements() == 0) return;
  const Carried first = carried_of(sequences.front());
  Carried second{};
  if (sequences.size() > 1) second = carried_of(sequences.back());
  const Tensor& before = sequences.front().past;
  const int64_t P = before.defined() ? before.size(1) : 0;
  const int64_t T = sequences.front().current.size(1), n = mask.size(1);
  const int64_t items = 1 + first.words + second.words;  // of a token: its mask, its words
  const auto* past = pointer_or_null<const int64_t>(past_mask);
  const auto* current = pointer_or_null<const uint8_t>(key_mask);
  auto* to = pointer<int64_t>(mask);
  for_each("carry_with_mask", mask.elements() * items, [=] __device__(int64_t i) {
    const int64_t place = i / items, item = i % items, b = place / n, t = T - n + place % n;
    const int64_t row = t < 0 ? b * P + P + t : b * T + t;
    if (item == 0) {
      to[place] = t < 0 ? (past == nullptr || past[row] != 0 ? 1 : 0)
                        : (current == nullptr || current[row] != 0 ? 1 : 0);
    } else if (item <= first.words) {
      first.move(row, place, item - 1, t < 0);
    } else {
      second.move(row, place, item - 1 - first.words, t < 0);
    }
  });
}

void copy_tokens(const Tensor& from, int64_t from_token, const Tensor& to, int64_t to_token,
                 int64_t tokens) {
  if (tokens == 0 || to.elements() == 0) return;
  const int64_t B = to.size(0), width = to.elements() / (B * to.size(1)), run = tokens * width;
  const int64_t from_stride = from.size(1) * width, to_stride = to.size(1) * width;
  const int64_t first = from_token * width, to_first = to_token * width;
  const size_t size = size_of(to.dtype());
  const void* source = from.raw();
  void* target = to.raw();
  for_each("carry_tokens", B * run, [=] __device__(int64_t i) {
    copy_element(size, source, first + i / run * from_stride + i % run, target,
                 to_first + i / run * to_stride + i % run);
  });
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
