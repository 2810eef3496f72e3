// Sparse transformer, fixed pattern: parameters, mixer, literal definition, registry entry.
#include "attention/sparse_fixed/sparse_fixed.h"

#include <numeric>

#include "attention/common/mixer_support.h"
#include "attention/define.h"
#include "attention/primitives/listed_attention/listed_attention.h"
#include "attention/sparse_fixed/fixed_lists.h"
#include "core/cuda/backend.h"
#include "layers/cache_places.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"survey",
     "the survey's code: no 1/sqrt(K), and columns in the query's own block count twice",
     {{"scale", "1"}, {"dup_own_block", "true"}}},
    {"original",
     "Child et al. 2019, causal: the last columns of each block",
     {{"layout", "original"}, {"block", "128"}, {"columns", "8"}}}};

// Queries of a causal block that share a list, at most; with fewer than half as many, each has its
// own.
constexpr int64_t kCausalGroup = 16;

// Whether rows begin inside their documents. Positions on a device, which would need a
// synchronization, are taken to begin with the time of the call.
bool begins_inside(const MixerContext& context) {
  if (context.place.time_offset > 0) return true;
  const Tensor& positions = context.positions;
  if (!positions.defined() || on_cuda(positions) || positions.elements() == 0) return false;
  const int64_t rows = positions.size(0), tokens = positions.size(1);
  for (int64_t b = 0; b < rows; ++b) {
    if (positions.data<int32_t>()[b * tokens] > 0) return true;
  }
  return false;
}

class SparseFixedMixer : public AttentionMixer {
 public:
  SparseFixedMixer(const SparseFixedParams& params, const MixerOptions& options,
                   const MixerScope& scope)
      : AttentionMixer(options, scope), params_(params) {
    const SparseFixedParams::Sizes sizes = params.sizes(options);
    columns_ = {sizes.block, sizes.columns, params.layout == "survey", params.column_sets};
  }

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    refuse_key_positions(context, "sparse_fixed");
    const BlockAttentionContext block = [&] {
      BlockAttentionContext at = block_context(options(), context);
      set_dropout(at, params_.dropout, options(), context, draw_key(context));
      return at;
    }();
    ListedAttentionContext at;
    at.options.scale = params_.scale.value_or(default_scale(options()));
    at.options.dropout = block.options.dropout;
    at.options.dropout_key = block.options.dropout_key;
    at.query_mask = at.key_mask = context.key_mask;
    at.place = context.place;
    const int64_t T = input.q.size(1), heads = columns_.sets > 1 ? options().heads : 1;
    const Device device = input.q.value().device();
    const bool causal = options().form == Form::causal;
    Variable k = input.k, v = input.v, bias;
    MixResult result;
    int64_t past = 0;
    if (causal) {
      MixerState placed;
      const MixerState& cache = with_requested_places(state, context.place.time_offset, T, placed);
      result.state = carry_keys(input, context, cache, tokens_to_keep(state));
      k = as_dtype(result.state.at("k"), input.k.dtype());
      v = as_dtype(result.state.at("v"), input.v.dtype());
      past = k.size(1) - T;
      at.key_mask = requested_places(state) > 0
                        ? mask_from_state(result.state, "valid")
                        : carry_mask(mask_from_state(state, "valid"), context.key_mask, {},
                                     k.size(0), past, T, kKeepAll, device);
      keep_request(state, result.state);
    }
    // Causal blocks are split, so that lists are little longer than the keys that a query sees.
    const int64_t group = causal ? std::gcd(columns_.block, kCausalGroup) : columns_.block;
    if (context.segments.defined() || past > 0 || (causal && group < kCausalGroup / 2) ||
        (causal && begins_inside(context))) {
      const DocumentLists lists{columns_, past, T, causal, params_.dup_own_block};
      at.index = index_of(lists, heads, context.positions, device);
    } else {
      const BlockwiseLists lists{columns_, T, params_.dup_own_block, causal, group};
      at.options.group = group;
      at.index = index_of(lists, heads, device);
      if (causal) bias = Variable(bias_of(lists, heads, device));
    }
    result.y = listed_attention({input.q, k, v, bias}, at).y;
    return result;
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    const bool causal = options().form == Form::causal;
    double pairs = 0;  // of all heads
    for (int64_t set = 0; set < std::min(columns_.sets, options().heads); ++set) {
      const int64_t heads = (options().heads - set + columns_.sets - 1) / columns_.sets;
      for (int64_t i = 0; i < shape.queries; ++i) {
        const int64_t keys = causal ? i + 1 : shape.queries;
        pairs += static_cast<double>(heads * seen(columns_.of_head(set), i, keys));
      }
    }
    MixerCost cost;
    cost.mixing =
        static_cast<double>(shape.batch) * pairs * 2 * static_cast<double>(options().head_width());
    if (causal) cost.bytes = kv_cache_bytes(options(), kKeepAll, shape);
    return cost;
  }

 private:
  // Columns among the first n tokens.
  static int64_t columns_before(const Columns& columns, int64_t n) {
    const int64_t inside = n % columns.block, last = columns.end() - columns.count;
    int64_t partial = std::clamp<int64_t>(inside - last, 0, columns.count);
    if (columns.with_first && columns.count > 0) {
      partial = (inside > 0 ? 1 : 0) + std::max<int64_t>(0, inside - (last + 1));
    }
    return n / columns.block * columns.count + partial;
  }
  // Keys of query i among the first `keys` tokens.
  int64_t seen(const Columns& columns, int64_t i, int64_t keys) const {
    const int64_t begin = i - i % columns.block, end = std::min(begin + columns.block, keys);
    const int64_t both = columns_before(columns, end) - columns_before(columns, begin);
    return end - begin + columns_before(columns, keys) - (params_.dup_own_block ? 0 : both);
  }

  SparseFixedParams params_;
  Columns columns_;
};

// Multiplicity of key j for query i of a head.
int64_t multiplicity(const SparseFixedParams& params, const SparseFixedParams::Sizes& sizes,
                     int64_t h, int64_t i, int64_t j) {
  const int64_t inside = j % sizes.block;
  const bool first = params.layout == "survey" && sizes.columns > 0;
  const int64_t last = sizes.block - h % params.column_sets * sizes.columns;
  const int64_t count = first ? sizes.columns - 1 : sizes.columns;
  const bool column = (first && inside == 0) || (inside < last && inside >= last - count);
  if (i / sizes.block == j / sizes.block) return column && params.dup_own_block ? 2 : 1;
  return column ? 1 : 0;
}

template <typename Number>
std::vector<Number> definition(const SparseFixedParams& params,
                               const ReferenceSequence<Number>& s) {
  const auto scale =
      static_cast<Number>(params.scale.value_or(1 / std::sqrt(static_cast<double>(s.K))));
  const SparseFixedParams::Sizes sizes = params.sizes(s.options);
  // log 0 leaves a key out.
  return softmax_attention_reference(
      s, scale, [](int64_t, int64_t) { return true; },
      [&](int64_t h, int64_t i, int64_t j) {
        return std::log(static_cast<Number>(multiplicity(params, sizes, h, i, j)));
      });
}

}  // namespace

void SparseFixedParams::describe(ConfigDescription<SparseFixedParams>& d) {
  describe_preset(d, kPresets);
  d.field("block", &SparseFixedParams::block,
          "tokens b of a block; null: K, or 2 K where no column fits")
      .range(1, 1 << 20)
      .unit("tokens");
  d.field("columns", &SparseFixedParams::columns,
          "global columns g of every block; null: as many as give 2 K keys per query at the "
          "model's length")
      .range(0, 1 << 20);
  d.choice("layout", &SparseFixedParams::layout, {"survey", "original"},
           "columns are the first token of a block and its last g - 1, or its last g");
  d.field("column_sets", &SparseFixedParams::column_sets,
          "layout original: heads alternate between n sets: the last g tokens of a block, the g "
          "before them, ...")
      .range(1, 1 << 10);
  d.field("dup_own_block", &SparseFixedParams::dup_own_block,
          "columns in the query's own block count twice, as in the survey's code");
  describe_scale(d, "factor of q . k; null: 1/sqrt(K)");
  describe_dropout(d);
}

MixerTraits SparseFixedParams::traits(MixerTraits traits) const {
  if (columns.value_or(0) > 0) traits.growth = "T^2 g / b";
  return traits;
}

SparseFixedParams::Sizes SparseFixedParams::sizes(const MixerOptions& options) const {
  const int64_t K = options.head_width(), n = options.max_length;
  Sizes sizes{block.value_or(K), 0};
  if (columns.has_value()) {
    sizes.columns = *columns;
  } else {
    require_usage(n > 0,
                  "sparse_fixed: the number of columns within the budget depends on the length; "
                  "set columns (or the training context)");
    const int64_t others = (n + sizes.block - 1) / sizes.block - 1;
    if (others > 0) {
      sizes.columns = std::clamp<int64_t>((2 * K - sizes.block) / others, 0, sizes.block);
      if (sizes.columns == 0 && !block.has_value()) sizes.block = 2 * K;
    }
  }
  require_usage(sizes.columns <= sizes.block, "sparse_fixed: ", sizes.columns,
                " columns do not fit into a block of ", sizes.block, "; lower columns");
  require_usage(column_sets == 1 || layout == "original",
                "sparse_fixed: heads take columns of their own with layout: original only; set it, "
                "or column_sets: 1");
  require_usage(column_sets * sizes.columns <= sizes.block, "sparse_fixed: ", column_sets,
                " sets of ", sizes.columns, " columns do not fit into a block of ", sizes.block,
                "; lower column_sets");
  return sizes;
}

Mechanism sparse_fixed_mechanism() {
  Mechanism facts;
  facts.name = "sparse_fixed";
  facts.title = "Sparse transformer, fixed pattern: blocks and global columns";
  facts.equation =
      "y_i = sum_j softmax_j(scale q_i . k_j) v_j over the block of b tokens that holds i and g\n"
      "global columns of every block (its first and last tokens); causal: j <= i";
  facts.complexity = "time B H T (b + g T / b) (K + V), memory of decoding 2 B T H K";
  facts.sources =
      "Child et al. 2019, Generating Long Sequences with Sparse Transformers; a survey's code";
  facts.traits.noncausal = facts.traits.causal = true;
  facts.traits.decode_state = true;
  facts.traits.growth = "T b";
  facts.presets = kPresets;
  facts.cost_cases = {"{block: 64, columns: 4}"};
  facts.variants = {"{block: 7, columns: 3}",
                    "{block: 8, columns: 2, layout: original, column_sets: 3, scale: 1}",
                    "{block: 5, columns: 2, dup_own_block: true}"};
  const auto softmax = [](const ReferenceSequence<double>& s) {
    return softmax_attention_reference(
        s, 1 / std::sqrt(static_cast<double>(s.K)), [](int64_t, int64_t) { return true; },
        [](int64_t, int64_t, int64_t) { return 0.0; });
  };
  facts.limits = {{"a block that holds everything gives softmax attention",
                   "{block: 64, columns: 2}",
                   {Form::noncausal, Form::causal},
                   {},
                   softmax},
                  {"so do columns everywhere",
                   "{block: 6, columns: 6}",
                   {Form::noncausal, Form::causal},
                   {},
                   softmax}};
  return define_mechanism<SparseFixedParams, SparseFixedMixer>(
      std::move(facts), [](const SparseFixedParams& params, const auto& sequence) {
        return definition(params, sequence);
      });
}

}  // namespace linnet
