// Carried tokens and their mask: together where that is one launch, else one after the other.
#include "attention/primitives/block_attention/carry.h"

#include <algorithm>
#include <cstring>

#include "attention/primitives/block_attention/cuda/carry.h"
#include "attention/primitives/common/binding.h"
#include "core/cuda/backend.h"
#include "core/error.h"

namespace linnet {
namespace {

int64_t tokens_of(const Variable& x) {
  return x.defined() ? x.size(1) : 0;
}

// Whether all of it is one launch. Shapes that do not fit together are left to carry_tokens, which
// says so.
bool is_one_launch(const CarriedTokens& past, const std::vector<Variable>& current,
                   const Tensor& key_mask, const Tensor& segments) {
  const Variable& first = current.front();
  if (!on_cuda(first.value()) || segments.defined() || current.size() > 2) return false;
  if (size_of(first.dtype()) < 2) return false;
  if (needs_grad(current) || needs_grad(past.tokens)) return false;
  const int64_t B = first.size(0), P = tokens_of(past.tokens.front()), T = first.size(1);
  for (size_t i = 0; i < current.size(); ++i) {
    const Variable &before = past.tokens[i], &now = current[i];
    const Shape& shape = now.shape();
    if (shape.rank() < 2 || shape[0] != B || shape[1] != T || tokens_of(before) != P) return false;
    if (!before.defined()) continue;
    if (before.shape() != shape.with(1, P) || before.dtype() != now.dtype()) return false;
  }
  const auto fits = [B](const Tensor& mask, int64_t tokens, DType dtype) {
    return !mask.defined() || (mask.shape() == Shape({B, tokens}) && mask.dtype() == dtype);
  };
  const Tensor past_mask = past.mask.defined() ? past.mask.value() : Tensor();
  return fits(past_mask, P, DType::i64) && fits(key_mask, T, DType::u8);
}

}  // namespace

void copy_tokens(const Tensor& from, int64_t from_token, const Tensor& to, int64_t to_token,
                 int64_t tokens) {
  if (tokens == 0 || to.elements() == 0) return;
  if constexpr (kCuda) {
    if (on_cuda(to)) return cuda::copy_tokens(from, from_token, to, to_token, tokens);
  }
  const int64_t B = to.size(0);
  const int64_t width = static_cast<int64_t>(to.bytes()) / (B * to.size(1));
  for (int64_t b = 0; b < B; ++b) {
    std::memcpy(static_cast<char*>(to.raw()) + (b * to.size(1) + to_token) * width,
                static_cast<const char*>(from.raw()) + (b * from.size(1) + from_token) * width,
                static_cast<size_t>(tokens * width));
  }
}

Tensor joined_tokens(const Tensor& past, const Tensor& current, int64_t keep) {
  // Room for so many steps at most: all tokens are copied once in as many.
  constexpr int64_t kRoom = 256;
  const int64_t T = current.size(1), P = past.defined() ? past.size(1) : 0;
  const int64_t n = keep < 0 ? P + T : std::min(keep, P + T);
  const int64_t from_current = std::min(n, T), from_past = n - from_current;
  const Shape shape = current.shape().with(1, n);
  const bool in_place = current.size(0) == 1 && !on_cuda(current) && past.defined();
  const int64_t width = T == 0 ? 0 : current.elements() / (current.size(0) * T);
  Tensor out;
  if (in_place && from_current == T) out = past.continued((P - from_past) * width, shape);
  if (!out.defined()) {
    out = in_place ? Tensor::with_room(shape, std::min(n, kRoom) * width, current.dtype())
                   : Tensor::empty(shape, current.dtype(), current.device());
    if (past.defined()) copy_tokens(past, P - from_past, out, 0, from_past);
  }
  copy_tokens(current, T - from_current, out, from_past, from_current);
  return out;
}

CarriedTokens carry_with_mask(const CarriedTokens& past, const std::vector<Variable>& current,
                              const Tensor& key_mask, const Tensor& segments, int64_t keep) {
  require(!current.empty() && past.tokens.size() == current.size(),
          "carry_with_mask: expected a past of each of ", current.size(), " sequences, got ",
          past.tokens.size());
  const int64_t B = current.front().size(0), T = current.front().size(1);
  const int64_t P = tokens_of(past.tokens.front()), n = keep < 0 ? P + T : std::min(keep, P + T);
  const Device device = current.front().value().device();
  CarriedTokens after;
  if constexpr (kCuda) {
    if (is_one_launch(past, current, key_mask, segments)) {
      std::vector<cuda::CarriedSequence> sequences;
      for (size_t i = 0; i < current.size(); ++i) {
        const Tensor out = Tensor::empty(current[i].shape().with(1, n), current[i].dtype(), device);
        const Tensor before = past.tokens[i].defined() ? past.tokens[i].value() : Tensor();
        sequences.push_back({before, current[i].value(), out});
        after.tokens.emplace_back(out);
      }
      const Tensor mask = Tensor::empty({B, n}, DType::i64, device);
      cuda::carry_with_mask(sequences, past.mask.defined() ? past.mask.value() : Tensor(), key_mask,
                            mask);
      after.mask = Variable(mask);
      return after;
    }
  }
  for (size_t i = 0; i < current.size(); ++i) {
    after.tokens.push_back(carry_tokens(past.tokens[i], current[i], keep));
  }
  if (!segments.defined() && !on_cuda(current.front().value())) {
    // As states hold it: nothing is converted.
    const auto or_all = [B](const Tensor& mask, int64_t tokens) {
      return mask.defined() ? mask.to(DType::i64) : Tensor::full({B, tokens}, 1, DType::i64);
    };
    binding::check_shape(key_mask, {B, T}, "carry_with_mask", "key_mask");
    const Tensor before = past.mask.defined() ? past.mask.value() : Tensor();
    binding::check_shape(before, {B, P}, "carry_with_mask", "past mask");
    after.mask =
        Variable(joined_tokens(P > 0 ? or_all(before, P) : Tensor(), or_all(key_mask, T), keep));
    return after;
  }
  const Tensor past_mask = past.mask.defined() ? past.mask.value().to(DType::u8) : Tensor();
  after.mask =
      Variable(carry_mask(past_mask, key_mask, segments, B, P, T, keep, device).to(DType::i64));
  return after;
}

}  // namespace linnet
