// The scan that group_prefix and its gradients are made of; internal to it.
//
// X = sum of w_t left_t right_t^T over the tokens that a token sees, out_t = w_t X^T probe_t, with
// the weight w_t on one of the two. Forward, X grows along time and is seen from the next group on;
// backward, it grows against time and is seen from the group before.
#pragma once

#include <cstdint>

namespace linnet {

struct GroupScan {
  int64_t B = 0, T = 0, H = 0;
  int64_t L = 0, R = 0;  // widths of left and probe, of right and out
  int64_t group = 1;
  bool reverse = false, whole = false, mean = false;
  bool weighs_left = false;  // w_t multiplies the added term; else the one read
  double scale = 1;
  const uint8_t* mask = nullptr;  // [B,T]
  const int32_t* segments = nullptr;
  const int32_t* positions = nullptr;

  constexpr bool valid(int64_t token) const { return mask == nullptr || mask[token] != 0; }
  // Whether token t of row b begins a document, but for the first of the row.
  constexpr bool begins_document(int64_t b, int64_t t) const {
    return t > 0 && segments != nullptr && segments[b * T + t] != segments[b * T + t - 1];
  }
  constexpr int64_t position(int64_t token) const {
    return positions == nullptr ? token % T : positions[token];
  }
  constexpr bool begins_group(int64_t b, int64_t t) const {
    return position(b * T + t) % group == 0;
  }
  // Tokens [t, end) of a document.
  constexpr int64_t document_end(int64_t b, int64_t t) const {
    int64_t end = t + 1;
    while (end < T && !begins_document(b, end)) ++end;
    return end;
  }
  constexpr double weight(int64_t token) const {
    if (!mean || whole) return scale;
    const int64_t earlier = position(token) / group;
    return scale / static_cast<double>(earlier > 1 ? earlier : 1);
  }
};

}  // namespace linnet
