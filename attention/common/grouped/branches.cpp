// Branches of grouped attention on primitives, and their literal definitions.
#include "attention/common/grouped/branches.h"

#include "attention/common/feature_map_mechanism.h"
#include "attention/common/token_slices.h"
#include "autograd/norms.h"
#include "core/cuda/backend.h"
#include "core/cuda/runtime.h"
#include "layers/cache_places.h"

namespace linnet {
namespace {

// Below this length a vector counts as zero.
constexpr double kMinLength = 1e-12;

// x / max(|x|, kMinLength), component by component.
template <typename Number>
std::vector<Number> unit_definition(const Number* x, int64_t K) {
  const Number length = std::max(std::sqrt(dot_product(x, x, K)), static_cast<Number>(kMinLength));
  std::vector<Number> unit(x, x + K);
  for (Number& a : unit) a /= length;
  return unit;
}

template <typename Number>
Number unit_product(const Number* q, const Number* k, int64_t K) {
  const std::vector<Number> a = unit_definition(q, K), b = unit_definition(k, K);
  return dot_product(a.data(), b.data(), K);
}

}  // namespace

Variable unit_vectors(const Variable& x) {
  // ScaleNorm divides by max(|x| / sqrt(K), epsilon).
  const double width = std::sqrt(static_cast<double>(x.size(-1)));
  return norm(x, {}, {}, {NormKind::scale, kMinLength / width});
}

GroupBranch::GroupBranch(GroupKernel kernel, int64_t group, const MixerOptions& options)
    : kernel_(kernel), group_(group), options_(options) {}

AttentionMixer::MixResult GroupBranch::mix(const MixInput& input, const MixerContext& context,
                                           const MixerState& state,
                                           const std::string& prefix) const {
  BlockAttentionContext block = block_context(options_, context);
  block.options = pattern();
  MixInput used = input;
  used.q = keys(input.q);
  used.k = keys(input.k);
  if (options_.form != Form::causal) {
    return {block_attention({used.q, used.k, used.v, {}, {}, {}}, block), {}};
  }
  MixerState own;
  for (const char* name : {"k", "v", "valid"}) {
    const auto found = state.find(prefix + name);
    if (found != state.end()) own[name] = found->second;
  }
  if (const int64_t places = requested_places(state); places > 0) {
    request_places(own, places, input.q.value().device());
  }
  AttentionMixer::MixResult result = causal_with_cache(used, context, own, block, group_ - 1);
  MixerState named;
  for (auto& [name, value] : result.state) named[prefix + name] = std::move(value);
  return {result.y, std::move(named)};
}

TreeMix GroupBranch::tree(const MixInput& input, std::span<const MixerNode> nodes,
                          const MixerState& state) const {
  BlockAttentionContext block = block_context(options_, nodes[0].context);
  block.options = pattern();
  MixInput used = input;
  used.q = keys(input.q);
  used.k = keys(input.k);
  return tree_with_cache(used, nodes, state, block, group_ - 1);
}

MixerCost GroupBranch::cost(const MixerShape& shape) const {
  return block_attention_cost(options_, pattern(), group_ - 1, shape);
}

Variable GroupBranch::mix_paired(const MixInput& input, const MixerContext& context) const {
  BlockAttentionContext block;
  block.cross = true;
  block.options.weights = pattern().weights;
  block.options.scale = pattern().scale;
  const Variable q = keys(input.q);
  if constexpr (kCuda) {
    // A captured step of generation is one for every group.
    if (!context.training) cuda::refuse_capture("the group of a query of grouped attention");
  }
  const int64_t first = context.place.time_offset, T = q.size(1), S = input.k.size(1);
  std::vector<Variable> parts;
  int64_t begin = 0;
  do {  // once for no tokens, too
    const int64_t group = (first + begin) / group_;
    const int64_t end = std::min(T, (group + 1) * group_ - first);
    const int64_t from = std::min(S, group * group_), to = std::min(S, (group + 1) * group_);
    const Variable queries = tokens_of(q, begin, end);
    if (from < to) {
      block.query_mask = tokens_of(context.key_mask, begin, end);
      block.key_mask = tokens_of(context.source_mask, from, to);
      parts.push_back(block_attention(
          {queries, tokens_of(input.k, from, to), tokens_of(input.v, from, to), {}, {}, {}},
          block));
    } else {
      const Shape shape{q.size(0), end - begin, q.size(2), input.v.size(3)};
      parts.emplace_back(Tensor::zeros(shape, q.dtype(), q.value().device()));
    }
    begin = end;
  } while (begin < T);
  return join_tokens(parts);
}

MixerCost GroupBranch::paired_cost(const MixerShape& shape) const {
  // Of the last group that both sequences have, either may be incomplete.
  const int64_t whole = std::min(shape.queries, shape.keys) / group_;
  const auto rest = [&](int64_t tokens) { return std::min(group_, tokens - whole * group_); };
  const int64_t pairs = whole * group_ * group_ + rest(shape.queries) * rest(shape.keys);
  const auto keys = static_cast<double>(shape.batch * shape.keys * 2 * options_.width);
  return {.mixing = static_cast<double>(shape.batch * pairs * 2 * options_.width),
          .bytes = keys * static_cast<double>(size_of(shape.dtype))};
}

BlockAttentionOptions GroupBranch::pattern() const {
  BlockAttentionOptions pattern;
  pattern.pattern = BlockPattern::blocks;
  pattern.causal = options_.form == Form::causal;
  pattern.block = group_;
  pattern.weights =
      kernel_ == GroupKernel::softmax ? BlockWeights::softmax : BlockWeights::relu_squared;
  const auto K = static_cast<double>(options_.head_width());
  pattern.scale = kernel_ == GroupKernel::softmax ? 1 / std::sqrt(K)
                  : kernel_ == GroupKernel::flash ? 1 / static_cast<double>(group_)
                                                  : 1 / K;
  return pattern;
}

AttentionMixer::MixResult GroupMemoryBranch::mix(const MixInput& input, const MixerContext& context,
                                                 const MixerState& state) const {
  const MixInput used = units(input);
  if (options_.form != Form::causal) {
    LinearAttentionOptions linear;
    linear.feature_map = FeatureMap::identity;
    linear.normalizer = Normalizer::none;
    linear.query_scale = prefix().scale;
    return feature_map_mix(linear, options_, used, {}, context, state);
  }
  AttentionMixer::MixResult result;
  result.y = prefix_of_groups(used.q, used.k, used.v, prefix(), context, state, result.state);
  return result;
}

TreeMix GroupMemoryBranch::tree(const MixInput& input, std::span<const MixerNode> nodes,
                                const MixerState& state) const {
  return tree_of_groups(units(input), nodes, state, prefix());
}

MixInput GroupMemoryBranch::units(const MixInput& input) {
  MixInput units = input;
  units.q = unit_vectors(input.q);
  if (input.k.defined()) units.k = unit_vectors(input.k);
  return units;
}

GroupPrefixOptions GroupMemoryBranch::prefix() const {
  return {group_, false, mean_, 1 / static_cast<double>(options_.head_width())};
}

MixerCost GroupMemoryBranch::cost(const MixerShape& shape) const {
  const int64_t K = options_.head_width();
  if (options_.form != Form::causal) return feature_map_cost(options_, K, shape);
  const auto rows = static_cast<double>(shape.batch * options_.heads);
  MixerCost cost;
  cost.mixing = rows * 2 * static_cast<double>(shape.queries * K * K);
  cost.bytes = prefix_bytes(rows, K, K, shape.dtype);
  return cost;
}

template <typename Number>
void add_group_definition(const ReferenceSequence<Number>& s, GroupKernel kernel, int64_t group,
                          std::vector<Number>& y) {
  if (kernel == GroupKernel::softmax) {
    const auto inside = softmax_attention_reference(
        s, static_cast<Number>(1 / std::sqrt(static_cast<double>(s.K))),
        [&](int64_t i, int64_t j) { return i / group == j / group; },
        [](int64_t, int64_t, int64_t) { return Number{0}; });
    for (size_t i = 0; i < y.size(); ++i) y[i] += inside[i];
    return;
  }
  for (int64_t i = 0; i < s.T; ++i) {
    for (int64_t h = 0; h < s.H; ++h) {
      for (int64_t j = 0; j < s.S; ++j) {
        if (!s.sees(i, j) || i / group != j / group) continue;
        const Number product =
            kernel == GroupKernel::flash
                ? dot_product(s.query(i, h), s.key(j, h), s.K) / static_cast<Number>(group)
                : unit_product(s.query(i, h), s.key(j, h), s.K);
        const Number positive = std::max(product, Number{0});
        for (int64_t c = 0; c < s.V; ++c) {
          y[static_cast<size_t>((i * s.H + h) * s.V + c)] += positive * positive * s.value(j, h)[c];
        }
      }
    }
  }
}

template <typename Number>
void add_group_memory_definition(const ReferenceSequence<Number>& s, int64_t group, Number factor,
                                 std::vector<Number>& y, bool mean) {
  for (int64_t i = 0; i < s.T; ++i) {
    for (int64_t h = 0; h < s.H; ++h) {
      for (int64_t j = 0; j < s.S; ++j) {
        if (!s.sees(i, j) || (s.form == Form::causal && j / group >= i / group)) continue;
        Number weight = factor * unit_product(s.query(i, h), s.key(j, h), s.K);
        const int64_t earlier = i / group;
        if (mean && s.form == Form::causal) weight /= static_cast<Number>(earlier);
        for (int64_t c = 0; c < s.V; ++c) {
          y[static_cast<size_t>((i * s.H + h) * s.V + c)] += weight * s.value(j, h)[c];
        }
      }
    }
  }
}

#define LINNET_INSTANTIATE(Number)                                                             \
  template void add_group_definition(const ReferenceSequence<Number>&, GroupKernel, int64_t,   \
                                     std::vector<Number>&);                                    \
  template void add_group_memory_definition(const ReferenceSequence<Number>&, int64_t, Number, \
                                            std::vector<Number>&, bool)
LINNET_INSTANTIATE(float);
LINNET_INSTANTIATE(double);
#undef LINNET_INSTANTIATE

}  // namespace linnet
