// LAVO: parameters and mixer.
#include "attention/lavo/lavo.h"

#include <cmath>

#include "attention/common/mixer_support.h"
#include "attention/common/orthonormal.h"
#include "attention/common/tree_support.h"
#include "attention/define.h"
#include "attention/lavo/lavo_reference.h"
#include "attention/lavo/limiting_cases.h"
#include "attention/lavo/local_weight.h"
#include "attention/lavo/one_pass.h"
#include "attention/primitives/orthogonal_memory/orthogonal_memory.h"
#include "attention/primitives/orthogonal_memory/tree.h"
#include "autograd/arithmetic.h"
#include "core/cuda/backend.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"lavo", "language modelling: rank 64, window 16 (the best baseline's)", {}},
    {"lavo_lra", "Long Range Arena, heads of 32", {{"rank", "32"}, {"window", "256"}}},
    {"lavo_forecast", "time series", {{"rank", "16"}}},
    {"without_epe",
     "no embedded position encoding: an ablation, and the noncausal runs (summarisation)",
     {{"epe", "off"}}},
    {"without_epe_cd",
     "ablation: raw tokens of the whole context are compressed; the window's half stays",
     {{"epe", "off"}, {"code_input", "x"}, {"global_scope", "all"}}}};

Initializer init_orthonormal(int64_t bases, int64_t rank, int64_t width) {
  return [=](const Tensor& values, const RandomKey& key) {
    std::vector<double> all;
    for (int64_t i = 0; i < bases; ++i) {
      const auto rows = orthonormal_rows(rank, width, key.at(std::to_string(i)));
      all.insert(all.end(), rows.begin(), rows.end());
    }
    values.copy_from(Tensor::from(all, values.shape()));
  };
}

// The cross form reads the source itself, unless its keys or values are compressed.
Projections projections_of(const LavoParams& params, Form form) {
  Projections projections;
  if (form == Form::cross) {
    projections.k = params.code_of(form) == "k";
    projections.v = params.code_of(form) == "v";
  }
  return projections;
}

class LavoMixer : public AttentionMixer {
 public:
  LavoMixer(const LavoParams& params, const MixerOptions& options, const MixerScope& scope)
      : AttentionMixer(options, scope, projections_of(params, options.form)), params_(params) {
    const bool shared = params.basis == "model";
    const int64_t widest = shared ? options.width : options.head_width();
    require_usage(params.rank <= widest, Cause{ErrorCode::out_of_range, "rank"}, "lavo: rank ",
                  params.rank, " exceeds the ", shared ? "model's" : "heads'", " width ", widest,
                  ": orthonormal rows need rank <= ", widest);
    const Shape shape = shared ? Shape{params.rank, options.width}
                               : Shape{options.heads, params.rank, options.head_width()};
    const Initializer drawn = init_orthonormal(shared ? 1 : options.heads, params.rank, widest);
    basis_ = params.basis_train == "frozen" ? scope.own.buffer("basis", shape, drawn)
                                            : scope.own.parameter("basis", shape, drawn);
    basis_name_ = scope.own.child("basis").prefix();
    if (params.epe != "off" && options.form != Form::cross) {
      epe_ = scope.own.parameter("epe", {epe_rows(), epe_columns()}, init_constant(0));
    }
  }

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    if (options().form == Form::cross) return mix_cross(input, context, state);
    refuse_key_positions(context, "lavo");
    if (takes_one_pass(input, context, state)) return one_pass(input, context, state);
    MixResult local = window(input, context, state);
    const Variable f = code_of(input, [&] {
      return params_.pre_agg == "separate" ? own_block(input, context, state) : local.y;
    });
    OrthogonalMemoryContext memory = memory_context(context);
    memory.code_mask = context.key_mask;
    memory.segments = context.segments;
    memory.positions = context.positions;
    const OrthogonalMemoryResult global =
        orthogonal_memory(input.q, f, basis(input.q.dtype()), carried(state, input.q), memory);
    if (options().form == Form::causal) keep(global.carry, local.state);
    return {combine(local.y, global), std::move(local.state)};
  }

  TreeMix mix_tree(const MixInput& input, std::span<const MixerNode> nodes,
                   const MixerState& state) const override {
    if (on_cuda(input.q.value())) return AttentionMixer::mix_tree(input, nodes, state);
    const MixerContext& first = nodes[0].context;
    TreeMix local = tree_attend(input, nodes, state, window_pattern());
    const Variable f = code_of(input, [&] {
      return params_.pre_agg == "separate" ? tree_attend(input, nodes, state, own_block_pattern()).y
                                           : local.y;
    });
    OrthogonalMemoryContext memory = memory_context(first);
    memory.positions = first.positions;
    OrthogonalMemoryResult global = orthogonal_memory_tree(
        input.q, f, basis(input.q.dtype()), carried(state, input.q), memory, tree_of(nodes));
    const Variable y = combine(local.y, global);
    TreeMix codes{{}, [carry = std::move(global.carry)](std::span<const int64_t> path) {
                    const int64_t last = path.back();
                    const auto row = [&](const Tensor& x) {
                      return x.rows(last, last + 1).clone();
                    };
                    MixerState after;
                    keep({Variable(row(carry.completed.value())),
                          Variable(row(carry.partial.value())), row(carry.counts)},
                         after);
                    return after;
                  }};
    return with_states(y, {std::move(local), std::move(codes)});
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    const Form form = options().form;
    const int64_t basis = params_.rank * options().width;
    MixerCost cost;
    if (form != Form::cross) {
      cost = block_attention_cost(options(), window_pattern(), params_.window - 1, shape);
      if (params_.pre_agg == "separate") {
        cost.mixing += block_attention_cost(options(), own_block_pattern(), 0, shape).mixing;
      }
    }
    // Each query is multiplied with the basis twice; codes are summed first, once for every memory.
    const int64_t memories = form != Form::causal ? 1
                             : params_.global_scope == "all"
                                 ? shape.keys
                                 : (shape.keys - 1) / params_.window + 1;
    cost.mixing += static_cast<double>(shape.batch * (2 * shape.queries + memories) * basis);
    const int64_t epe = epe_.defined() ? epe_rows() * epe_columns() : 0;
    const bool frozen = params_.basis_train == "frozen";
    cost.bytes += static_cast<double>(epe) * size_of(shape.dtype);
    cost.bytes +=
        static_cast<double>(basis) * size_of(frozen ? sum_dtype(shape.dtype) : shape.dtype);
    if (form == Form::noncausal) return cost;
    const int64_t sums = 2 * params_.rank * (params_.basis == "model" ? 1 : options().heads);
    cost.bytes += static_cast<double>(shape.batch * sums) * size_of(sum_dtype(shape.dtype)) +
                  static_cast<double>(shape.batch * 2) * size_of(DType::i64);
    return cost;
  }

  // basis_train qr: every basis becomes the orthonormal basis of the same leading spans.
  void after_update(const ParameterSet& parameters) const override {
    if (params_.basis_train != "qr") return;
    const Tensor weight = parameters.weight_of(parameters.find(basis_name_));
    const Shape& shape = weight.shape();
    const int64_t width = shape[shape.rank() - 1];
    std::vector<double> rows = weight.to(DType::f64).to_vector<double>();
    for (size_t begin = 0; begin < rows.size();
         begin += static_cast<size_t>(params_.rank * width)) {
      orthonormalise_rows(&rows[begin], params_.rank, width, basis_name_);
    }
    weight.copy_from(Tensor::from(rows, shape));
  }

 private:
  int64_t epe_rows() const { return params_.epe == "head" ? options().heads : 1; }
  int64_t epe_columns() const { return 2 * params_.reach(options().form) + 1; }

  MixResult mix_cross(const MixInput& input, const MixerContext& context,
                      const MixerState& state) const {
    OrthogonalMemoryContext memory = memory_context(context);
    memory.cross = true;
    Variable codes(Tensor::empty({input.q.size(0), 0, options().heads, options().head_width()},
                                 input.q.dtype(), input.q.value().device()));
    if (state.empty()) {
      const std::string code = params_.code_of(Form::cross);
      codes = code == "k" ? input.k : code == "v" ? input.v : heads_of(input.source);
      memory.code_mask = context.source_mask;
    }
    const OrthogonalMemoryResult global =
        orthogonal_memory(input.q, codes, basis(input.q.dtype()), carried(state, input.q), memory);
    if (!state.empty()) return {global.y, state};
    MixerState encoded;
    keep(global.carry, encoded);
    return {global.y, std::move(encoded)};
  }

  // The causal form as the paper has it, trained or read from the start.
  bool takes_one_pass(const MixInput& input, const MixerContext& context,
                      const MixerState& state) const {
    return options().form == Form::causal && state.empty() &&
           params_.code_of(Form::causal) == "f_local" && params_.pre_agg == "reuse" &&
           params_.global_scope == "completed" &&
           lavo_pass_fits(pass_inputs(input), pass_context(context));
  }
  MixResult one_pass(const MixInput& input, const MixerContext& context,
                     const MixerState& state) const {
    const LavoPassResult result = lavo_pass(pass_inputs(input), pass_context(context));
    MixerState after = carry_keys(input, context, state, params_.window - 1);
    keep(result.carry, after);
    return {result.y, std::move(after)};
  }
  LavoPassVariables pass_inputs(const MixInput& input) const {
    return {input.q, input.k, input.v, basis(input.q.dtype()), epe_};
  }
  LavoPassContext pass_context(const MixerContext& context) const {
    return {{params_.window, scale(), params_.empty_memory == "local_only", dropout(context),
             draw_key(context), memory_key(context)},
            context.segments,
            context.positions,
            context.place,
            context.key_mask};
  }

  // What is compressed; `outputs` makes those of the window.
  template <typename Outputs>
  Variable code_of(const MixInput& input, const Outputs& outputs) const {
    const std::string code = params_.code_of(options().form);
    return code == "k"   ? input.k
           : code == "v" ? input.v
           : code == "x" ? heads_of(input.x)
                         : outputs();
  }

  // Softmax attention in the window, with the embedded position encoding.
  MixResult window(const MixInput& input, const MixerContext& context,
                   const MixerState& state) const {
    BlockAttentionContext block = block_context(options(), context);
    block.options = window_pattern();
    set_dropout(block, params_.dropout, options(), context, draw_key(context));
    return attend(input, context, state, std::move(block));
  }

  // The outputs that `pre_agg: separate` compresses: a token's own block never reaches a later
  // window.
  Variable own_block(const MixInput& input, const MixerContext& context,
                     const MixerState& state) const {
    BlockAttentionContext block = block_context(options(), context);
    block.options = own_block_pattern();
    return attend(input, context, state, std::move(block)).y;
  }

  MixResult attend(const MixInput& input, const MixerContext& context, const MixerState& state,
                   BlockAttentionContext block) const {
    block.bias_origin = params_.reach(options().form);
    if (options().form == Form::causal) {
      return causal_with_cache(input, context, state, block, params_.window - 1, epe_);
    }
    return {block_attention({input.q, input.k, input.v, {}, {}, epe_}, block), {}};
  }

  // attend() of the nodes of a tree that follows a text.
  TreeMix tree_attend(const MixInput& input, std::span<const MixerNode> nodes,
                      const MixerState& state, const BlockAttentionOptions& pattern) const {
    BlockAttentionContext block = block_context(options(), nodes[0].context);
    block.options = pattern;
    block.bias_origin = params_.reach(Form::causal);
    return tree_with_cache(input, nodes, state, block, params_.window - 1, epe_);
  }

  BlockAttentionOptions window_pattern() const {
    const Form form = options().form;
    BlockAttentionOptions pattern = own_block_pattern();
    if (!params_.blocks(form)) pattern.pattern = BlockPattern::band;
    pattern.left = params_.left(form);
    pattern.right = params_.right(form);
    return pattern;
  }
  BlockAttentionOptions own_block_pattern() const {
    BlockAttentionOptions pattern;
    pattern.pattern = BlockPattern::blocks;
    pattern.causal = options().form == Form::causal;
    pattern.block = params_.window;
    pattern.scale = scale();
    return pattern;
  }

  OrthogonalMemoryContext memory_context(const MixerContext& context) const {
    OrthogonalMemoryContext memory;
    memory.options.scope = options().form != Form::causal  ? MemoryScope::whole
                           : params_.global_scope == "all" ? MemoryScope::prefix
                                                           : MemoryScope::completed_windows;
    memory.options.window = params_.window;
    memory.options.scale = scale();
    memory.query_mask = context.key_mask;
    memory.place = context.place;
    memory.options.dropout = dropout(context);
    memory.options.dropout_key = memory_key(context);
    return memory;
  }
  double dropout(const MixerContext& context) const {
    return context.training ? params_.dropout.value_or(options().dropout) : 0;
  }
  RandomKey memory_key(const MixerContext& context) const { return draw_key(context).at("memory"); }

  // The mean of both parts; with `local_only`, the window alone where the memory is empty.
  Variable combine(const Variable& local, const OrthogonalMemoryResult& global) const {
    if (params_.empty_memory == "zeros") return weighted_sum(local, 0.5, global.y, 0.5);
    const Variable weight(local_weight(global.memory_tokens, local.value()));
    return weighted_sum(multiply(local, weight), 1, global.y, 0.5);
  }

  static OrthogonalMemoryCarry carried(const MixerState& state, const Variable& q) {
    if (state.empty()) return {};
    const DType dtype = sum_dtype(q.dtype());
    return {as_dtype(state.at("completed"), dtype), as_dtype(state.at("partial"), dtype),
            state.at("counts").value()};
  }
  static void keep(const OrthogonalMemoryCarry& carry, MixerState& state) {
    state["completed"] = carry.completed;
    state["partial"] = carry.partial;
    state["counts"] = Variable(carry.counts);
  }

  Variable heads_of(const Variable& x) const {
    require_usage(
        x.defined(),
        "lavo: code_input: x reads the layer's input, which a run of the core alone lacks; "
        "give inputs/x");
    return reshape(x, {x.size(0), x.size(1), options().heads, options().head_width()});
  }
  // A frozen basis is kept in fp32.
  Variable basis(DType dtype) const { return as_dtype(basis_, dtype); }
  double scale() const { return params_.scale.value_or(default_scale(options())); }

  LavoParams params_;
  Variable basis_, epe_;
  std::string basis_name_;
};

}  // namespace

void LavoParams::describe(ConfigDescription<LavoParams>& d) {
  describe_preset(d, kPresets);
  d.field("rank", &LavoParams::rank, "rows r of the basis; at most the width of a head")
      .range(1, 4096);
  d.field("window", &LavoParams::window, "tokens w of the local window, the token itself included")
      .range(1, 65536)
      .unit("tokens");
  d.choice("basis", &LavoParams::basis, {"head", "model"},
           "one basis per head, or one over the whole width whose code all heads share");
  d.choice("basis_train", &LavoParams::basis_train, {"free", "frozen", "qr"},
           "train the basis; keep a drawn orthonormal one that is no parameter; or train it and "
           "orthonormalise it after every update");
  d.choice("code_input", &LavoParams::code_input, {"auto", "f_local", "x", "v", "k"},
           "input of the compression; auto: the window's output (cross: the source)");
  d.choice("pre_agg", &LavoParams::pre_agg, {"reuse", "separate"},
           "f_local: compress the window's output, or attention inside the own block of w tokens");
  d.choice("global_scope", &LavoParams::global_scope, {"completed", "all"},
           "causal memory holds the windows before the token's own, or all tokens up to it");
  d.choice("empty_memory", &LavoParams::empty_memory, {"zeros", "local_only"},
           "before the first completed window: half of the window's output, or all of it");
  d.choice("epe", &LavoParams::epe, {"head", "shared", "off"},
           "embedded position encoding: per head, one vector for all heads, or none");
  d.choice("nc_window", &LavoParams::nc_window, {"centred", "block", "two_sided"},
           "noncausal window: w tokens around, the own block of w, or w on each side");
  describe_scale(d, "factor of both products with q; null: 1/sqrt(K)");
  describe_dropout(d);
}

void LavoParams::validate(const ConfigNode& at) const {
  if (pre_agg == "separate" && code_of(Form::causal) != "f_local") {
    throw located_error(at.location_of("pre_agg"),
                        "lavo: pre_agg 'separate' chooses the attention whose ",
                        "output is compressed, but code_input '", code_input,
                        "' compresses no attention output; use code_input f_local or pre_agg "
                        "reuse");
  }
}

MixerTraits LavoParams::traits(MixerTraits traits) const {
  traits.couples_heads = basis == "model";
  // Cross-attention compresses the source, which has no attention output before.
  traits.cross = traits.cross && pre_agg == "reuse";
  return traits;
}

std::string LavoParams::code_of(Form form) const {
  if (code_input != "auto") {
    return form == Form::cross && code_input == "f_local" ? "x" : code_input;
  }
  return form == Form::cross ? "x" : "f_local";
}

int64_t LavoParams::left(Form form) const {
  if (form == Form::causal) return window - 1;
  return nc_window == "two_sided" ? window : window / 2;
}
int64_t LavoParams::right(Form form) const {
  if (form == Form::causal) return 0;
  return nc_window == "two_sided" ? window : window - 1 - window / 2;
}
bool LavoParams::blocks(Form form) const {
  return form == Form::noncausal && nc_window == "block";
}
int64_t LavoParams::reach(Form form) const {
  return form == Form::noncausal && nc_window == "two_sided" ? window : window - 1;
}

Mechanism lavo_mechanism() {
  Mechanism facts;
  facts.name = "lavo";
  facts.title = "Linear attention via orthogonal memory";
  facts.equation =
      "f_i = sum_j softmax_j(s q_i . k_j + P_{j-i}) v_j over a window of w tokens\n"
      "m_i = mean of B f_j over the windows before that of i (noncausal: over all j)\n"
      "g_i = B^T (softmax(s m_i * (B q_i)) * m_i),  y_i = (f_i + g_i) / 2  (cross: y_i = g_i)";
  facts.complexity = "time 2 B H T K (w + 2 r), memory of decoding B H (2 w K + 2 r)";
  facts.sources = "Linear Attention via Orthogonal Memory (LAVO)";
  facts.traits.noncausal = facts.traits.causal = facts.traits.cross = true;
  facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.growth = "T (w + r)";
  facts.presets = kPresets;
  facts.limits = lavo_limiting_cases();
  facts.check_head_width = 64;
  facts.cost_cases = {
      "{rank: 128, window: 256}", "{rank: 128, window: 256, pre_agg: separate, nc_window: block}",
      "{rank: 128, window: 256, global_scope: all, basis: model, nc_window: two_sided}"};
  facts.variants = {
      "{rank: 5, window: 7, epe: shared, empty_memory: local_only, nc_window: two_sided}",
      "{rank: 8, window: 4, global_scope: all, code_input: x, epe: off, nc_window: block}",
      "{rank: 12, window: 1, basis: model, basis_train: frozen, code_input: v, scale: 1}",
      "{rank: 5, window: 6, basis_train: qr, code_input: k}",
      "{rank: 8, window: 4, pre_agg: separate, global_scope: all, nc_window: two_sided}"};
  return define_mechanism<LavoParams, LavoMixer>(
      std::move(facts), [](const LavoParams& params, const auto& sequence) {
        return lavo_reference(params, sequence);
      });
}

}  // namespace linnet
