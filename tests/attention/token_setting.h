// Rows of documents, masks and cached tokens, for sums over groups and for convolutions.
#pragma once

#include "attention/primitives/block_attention/block_attention.h"
#include "tests/tensor_helpers.h"

namespace linnet::test {

// Where tokens belong; all on the host.
struct TokenSetting {
  int64_t B = 2, T = 23, P = 0;
  bool documents = false, masked = false;
  int32_t start = 0;  // position of the first token of each row

  BlockAttentionContext context() const {
    BlockAttentionContext context;
    context.options.causal = true;
    std::vector<int32_t> segments, positions;
    for (int64_t b = 0; b < B; ++b) {
      for (int64_t t = 0; t < T; ++t) {
        const int64_t first = !documents ? 0 : t < 9 + b ? 0 : t < 10 + b ? 9 + b : 10 + b;
        segments.push_back(static_cast<int32_t>(first));
        positions.push_back(static_cast<int32_t>(t - first) + (first == 0 ? start : 0));
      }
    }
    if (documents) context.segments = ids(segments, {B, T});
    context.positions = ids(positions, {B, T});
    if (!masked) return context;
    context.key_mask = context.query_mask = mask(T, 4);
    if (P > 0) context.past_mask = mask(P, 3);
    return context;
  }
  Tensor mask(int64_t tokens, size_t period) const {
    std::vector<uint8_t> valid(static_cast<size_t>(B * tokens), 1);
    for (size_t i = 1; i < valid.size(); i += period) valid[i] = 0;
    return Tensor::from(valid, {B, tokens});
  }
  std::string label() const {
    return concat("P ", P, ", start ", start, documents ? ", documents" : "",
                  masked ? ", masked" : "");
  }
};

// Every kind of row, for groups or windows of about 5.
inline std::vector<TokenSetting> token_settings() {
  std::vector<TokenSetting> all;
  for (const bool loaded : {false, true}) {
    all.push_back({2, 23, 0, loaded, loaded, 0});
    all.push_back({2, 23, 4, loaded, loaded, 8});   // three of the cached four are of the group
    all.push_back({2, 23, 4, loaded, loaded, 10});  // a group begins with the call
    all.push_back({2, 2, 4, false, loaded, 6});     // no group ends in the call
    all.push_back({1, 1, 4, false, loaded, 9});     // one token, which ends a group
    all.push_back({1, 1, 4, false, loaded, 2});     // fewer tokens before it than the cache holds
  }
  return all;
}

// NaN behind a mask [B,T]; x [B,T,...] is changed.
inline Tensor poisoned(const Tensor& x, const Tensor& mask) {
  const Tensor copy = x.clone();
  if (!mask.defined()) return copy;
  const int64_t width = x.elements() / mask.elements();
  for (int64_t i = 0; i < x.elements(); ++i) {
    if (mask.data<uint8_t>()[i / width] == 0) copy.data<double>()[i] = std::nan("");
  }
  return copy;
}

// The context on a device.
inline BlockAttentionContext on_device(BlockAttentionContext context, Device device) {
  for (Tensor* x : {&context.query_mask, &context.key_mask, &context.past_mask, &context.segments,
                    &context.positions}) {
    if (x->defined()) *x = x->to(device);
  }
  return context;
}

}  // namespace linnet::test
