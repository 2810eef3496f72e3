#include "attention/primitives/depthwise_conv/tree.h"

#include <algorithm>

#include "attention/primitives/block_attention/pattern.h"
#include "attention/primitives/common/binding.h"
#include "attention/primitives/common/chunked.h"
#include "attention/primitives/depthwise_conv/cpu.h"

namespace linnet {
namespace {

using namespace binding;
using block_attention_detail::KeyRange;
using block_attention_detail::Segment;
using block_attention_detail::visible_keys;

constexpr const char* kName = "depthwise convolution of a tree";

}  // namespace

Variable depthwise_conv_tree(const Variable& x, const Variable& past, const Variable& taps,
                             const BlockAttentionContext& context, const TreeNodes& nodes) {
  const DType dtype = computing_type(x);
  const Tensor rows = converted(x, dtype, kName), before = converted(past, dtype, kName),
               filters = converted(taps, dtype, kName);
  check_sequence(rows, kName);
  const int64_t count = nodes.size(), H = rows.size(2), V = rows.size(3), reach = taps.size(-1);
  check_shape(rows, {count, 1, H, V}, kName, "nodes");
  check_shape(filters, {H, reach}, kName, "taps");
  const int64_t P = before.defined() ? before.size(1) : 0;
  check_shape(before, {1, P, H, V}, kName, "past");
  check_shape(context.past_mask, {1, P}, kName, "past_mask");
  const uint8_t* mask = pointer<uint8_t>(context.past_mask);
  const int64_t start = context.positions.defined() ? context.positions.data<int32_t>()[0]
                                                    : context.place.time_offset;
  const Segment segment{0, 0, nodes.deepest + 1, 0, nodes.deepest + 1, P, start, 0, 0};
  const BlockAttentionOptions band = conv_band(reach, reach - 1);
  const Tensor y = Tensor::zeros({count, 1, H, V}, dtype);
  dispatch(dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto work = static_cast<double>(count * H * V * reach);
    chunked::run_tasks(count, work, [&](int64_t node) {
      const std::vector<int64_t> path = nodes.path(node);
      const KeyRange seen = visible_keys(segment, band, nodes.depth(node));
      for (int64_t u = seen.begin; u < seen.end; ++u) {
        if (u < P && !is_valid(mask, 0, u, P)) continue;
        const T* from = u < P ? before.data<T>() + u * H * V
                              : rows.data<T>() + path[static_cast<size_t>(u - P)] * H * V;
        // The token itself is at P + depth, under the last tap.
        const int64_t tap = u - P - nodes.depth(node) + reach - 1;
        for (int64_t h = 0; h < H; ++h) {
          axpy_row(V, filters.data<T>()[h * reach + tap], from + h * V,
                   y.data<T>() + (node * H + h) * V);
        }
      }
    });
  });
  return Variable(y.to(x.dtype()));
}

}  // namespace linnet
