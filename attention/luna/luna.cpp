// Luna: parameters, mixer, registry entry.
#include "attention/luna/luna.h"

#include <numbers>

#include "attention/common/mixer_support.h"
#include "attention/common/product_division.h"
#include "attention/common/segment_scan.h"
#include "attention/define.h"
#include "attention/luna/causal_writes.h"
#include "attention/luna/luna_definition.h"
#include "attention/primitives/slot_attention/slot_attention.h"
#include "autograd/arithmetic.h"
#include "autograd/embedding.h"
#include "autograd/linear.h"
#include "autograd/norms.h"
#include "autograd/pooling.h"

namespace linnet {
namespace {

using namespace luna_definition;

const std::vector<Preset> kPresets = {
    {"lra", "Long Range Arena: a memory of 16 vectors", {{"slots", "16"}}},
    {"large", "the longest memory that the paper runs", {{"slots", "256"}}}};

// One of Luna's maps [E,E] with its bias.
struct Projection {
  Variable weight, bias;
  Variable operator()(const Variable& x) const { return linear(x, weight, bias); }
};

class LunaMixer : public TokenMixer {
 public:
  LunaMixer(const LunaParams& params, const MixerOptions& options, const MixerScope& scope)
      : params_(params),
        options_(options),
        site_(scope.own.prefix()),
        stream_(scope.tied.prefix() + ".luna_memory"),
        packed_stream_(scope.tied.prefix() + ".luna_packed") {
    const int64_t width = options.width;
    require_usage(width > 0 && options.heads > 0 && width % options.heads == 0, "luna: width ",
                  width, " must be a positive multiple of heads ", options.heads);
    require_usage(options.rotary_width == 0,
                  "luna compares tokens with a memory that has no place ",
                  "in the text; use positions: sinusoidal, learned or none instead of rotary");
    require_usage(width % pack_heads() == 0, "luna: width ", width,
                  " must be a multiple of pack_heads ", pack_heads());
    const auto projection = [&](const std::string& name, double gain) {
      Projection made;
      made.weight = scope.own.parameter(name + ".weight", {width, width},
                                        projection_init(options.init, gain, width, width));
      if (options.bias) made.bias = scope.own.parameter(name + ".bias", {width}, init_constant(0));
      return made;
    };
    const double gain = 1 / std::numbers::sqrt2;
    query_ = projection("query", gain);
    pack_query_ = projection("pack_query", gain);
    pack_context_ = projection("pack_context", gain);
    context_ = projection("context", gain);
    out_ = projection("out", 1);
    if (options.form != Form::causal) {
      norm_gain_ = scope.own.parameter("memory_norm.gain", {width}, init_constant(1));
      norm_bias_ = scope.own.parameter("memory_norm.bias", {width}, init_constant(0));
    }
    memory_ = scope.tied.shared("luna_memory", {params.slots, width},
                                init_normal(1 / std::sqrt(static_cast<double>(width))));
  }

  MixerResult forward(const Variable& x, const MixerContext& context,
                      const MixerState& state) const override {
    require(options_.form != Form::cross, "luna: this attention was built for the cross form");
    if (options_.form == Form::causal) return causal(x, context, state);
    require_usage(!context.segments.defined(),
                  "luna has one memory for each row; do not pack documents into rows (the causal "
                  "form can)");
    const Packed packed = pack(x, context.key_mask, context);
    MixerResult result = unpack(x, packed, context);
    pass_on(packed, context, result);
    return result;
  }

  MixerResult forward_cross(const Variable& x, const Variable& source, const MixerContext& context,
                            const MixerState& state) const override {
    require(options_.form == Form::cross, "luna: this attention was not built for the cross form");
    if (!state.empty()) {
      const Packed packed{
          as_dtype(state.at("packed"), x.dtype()), mask_from_state(state, "valid"), {}};
      MixerResult result = unpack(x, packed, context);
      result.state = state;
      return result;
    }
    const Packed packed = pack(source, context.source_mask, context);
    MixerResult result = unpack(x, packed, context);
    pass_on(packed, context, result);
    result.state = {{"packed", packed.read}, {"valid", mask_to_state(packed.valid)}};
    return result;
  }

  MixerCost cost(const MixerShape& shape) const override {
    const bool cross = options_.form == Form::cross, causal = options_.form == Form::causal;
    const auto rows = static_cast<double>(shape.batch), width = static_cast<double>(options_.width);
    const auto slots = static_cast<double>(params_.slots);
    const auto queries = static_cast<double>(shape.queries);
    const double keys = cross ? static_cast<double>(shape.keys) : queries;
    const auto element = static_cast<double>(size_of(shape.dtype));
    MixerCost cost;
    // Causal: the memory is projected once, and the weights of writes are a product of matrices.
    cost.projections =
        width * width *
        (causal ? rows * 4 * queries + slots : rows * (2 * queries + keys + 2 * slots));
    if (causal) cost.projections += rows * slots * width * queries;
    cost.mixing = rows * slots * 2 * width * (queries + keys);
    const double parameters =
        5 * width * (width + (options_.bias ? 1 : 0)) + ((causal ? 0 : 2) + slots) * width;
    cost.bytes = element * (rows * width * (2 * queries + (cross ? keys : 0)) + parameters);
    if (cross) cost.bytes += rows * slots * (element * width + sizeof(int64_t));
    if (causal) {
      cost.bytes += rows * (slots * width * size_of(sum_dtype(shape.dtype)) + sizeof(int64_t));
    }
    return cost;
  }

 private:
  struct Packed {
    Variable read;    // Y_P [B,l,E], written by the tokens
    Tensor valid;     // u8 [B,l]: 0 in rows without a valid token
    Variable memory;  // for the next layer
  };

  // The memory for the next layer; beside it, where calls are noted, the packed one.
  void pass_on(const Packed& packed, const MixerContext& context, MixerResult& result) const {
    result.streams[stream_] = packed.memory;
    if (context.record != nullptr) result.streams[packed_stream_] = packed.read;
  }

  Variable heads(const Variable& x) const { return cut(x, options_.heads); }
  static Variable cut(const Variable& x, int64_t heads) {
    return reshape(x, {x.size(0), x.size(1), heads, x.size(2) / heads});
  }
  int64_t pack_heads() const { return params_.pack_heads.value_or(options_.heads); }
  static Variable merged(const Variable& y, int64_t width) {
    return reshape(y, {y.size(0), y.size(1), width});
  }

  // P of the first layer, [rows,l,E].
  Variable first_memory(int64_t rows, Device device) const {
    const Tensor ids = counted_positions(rows, params_.slots, 0, device);
    const Variable memory = embedding(ids, memory_);
    return params_.slot_positions ? add_sinusoidal(memory, ids) : memory;
  }
  // P of this layer, [B,l,E].
  Variable memory(const Variable& x, const MixerContext& context) const {
    const auto found = context.streams.find(stream_);
    if (found != context.streams.end()) return found->second;
    return first_memory(x.size(0), x.value().device());
  }

  double logit_scale() const { return params_.scale.value_or(default_scale(options_)); }
  RandomKey draw_key(const char* step, const MixerContext& context) const {
    return context.random.at(site_).at(step);
  }

  MixerResult causal(const Variable& x, const MixerContext& context,
                     const MixerState& state) const {
    const int64_t B = x.size(0), T = x.size(1), H = options_.heads, l = params_.slots;
    const DType dtype = sum_dtype(x.dtype());
    const Device device = x.value().device();
    const Variable memory = as_dtype(pack_query_(first_memory(1, device)), dtype);
    Variable writes = causal_writes(as_dtype(heads(pack_context_(x)), dtype),
                                    reshape(memory, {l, H, options_.head_width()}),
                                    context.key_mask, logit_scale());
    if (context.training) {
      const DropoutSpec spec{params_.dropout.value_or(options_.dropout), draw_key("pack", context),
                             context.place};
      writes = reshape(dropout(reshape(writes, {B, T, H * l}), spec), writes.shape());
    }
    // Means over the valid tokens so far. Their number divides queries and results instead of the
    // sums.
    const Variable ones(Tensor::full({B, T, 1}, 1, dtype, device));
    const Variable carried_count =
        state.empty() ? Variable() : Variable(state.at("count").value().to(dtype));
    const RunningSum counts =
        running_sum(ones, carried_count, context.key_mask, context.segments, true);
    const auto mean = [&](const Variable& sums, const Shape& shape) {
      const Shape one{B, T, 1, 1};
      const Variable rows = reshape(sums, {B, T, 1, options_.width});
      return reshape(divide_by_products(rows, reshape(ones, one), reshape(counts.sums, one),
                                        Normalizer::clamp, 1, context.key_mask),
                     shape);
    };
    const Variable written = as_dtype(heads(context_(x)), dtype);
    SlotAttentionContext at;
    at.options.control = SlotControl::given;
    at.options.normalizer = SlotNormalizer::none;
    at.options.scale = logit_scale();
    at.options.mask_empty = false;
    if (context.training) {
      at.options.dropout = params_.dropout.value_or(options_.dropout);
      at.options.dropout_key = draw_key("unpack", context);
      at.place = context.place;
    }
    at.query_mask = at.key_mask = context.key_mask;
    at.segments = context.segments;
    // Keys and values are the same vectors, and so are their sums.
    SlotMemory past;
    if (!state.empty()) {
      past.keys = past.values = as_dtype(state.at("sums"), dtype);
      past.mass = Variable(Tensor::full({B, H, l}, 1, DType::f64, device));  // all in use
    }
    const Variable queries = mean(as_dtype(query_(x), dtype), written.shape());
    const SlotAttentionResult read =
        slot_attention_causal({queries, written, written, writes}, at, past);
    const Variable y = as_dtype(mean(read.o, {B, T, options_.width}), x.dtype());
    return {out_(y),
            y,
            {{"sums", read.state.keys}, {"count", Variable(counts.last.value().to(DType::i64))}}};
  }

  BlockAttentionContext reading(const char* step, const MixerContext& context) const {
    BlockAttentionContext block;
    block.cross = true;
    block.place = context.place;
    block.options.scale = logit_scale();
    set_dropout(block, params_.dropout, options_, context, draw_key(step, context));
    return block;
  }

  Packed pack(const Variable& x, const Tensor& mask, const MixerContext& context) const {
    const Variable p = memory(x, context);
    const Variable written = cut(pack_context_(x), pack_heads());
    BlockAttentionContext block = reading("pack", context);
    const int64_t head_width = options_.width / pack_heads();
    block.options.scale = params_.scale.value_or(1 / std::sqrt(static_cast<double>(head_width)));
    block.key_mask = mask;
    const Variable y =
        block_attention({cut(pack_query_(p), pack_heads()), written, written, {}, {}, {}}, block);
    Packed packed;
    packed.read = merged(y, options_.width);
    packed.valid = any_valid(x, mask);
    packed.memory =
        norm(add(p, packed.read), norm_gain_, norm_bias_, {NormKind::layer, params_.norm_epsilon});
    return packed;
  }

  MixerResult unpack(const Variable& x, const Packed& packed, const MixerContext& context) const {
    const Variable written = heads(context_(packed.read));
    BlockAttentionContext block = reading("unpack", context);
    block.query_mask = context.key_mask;
    block.key_mask = packed.valid;
    const Variable y = merged(
        block_attention({heads(query_(x)), written, written, {}, {}, {}}, block), options_.width);
    return {out_(y), y, {}};
  }

  // u8 [B,l]: whether the row has a valid token.
  Tensor any_valid(const Variable& x, const Tensor& mask) const {
    if (!mask.defined()) {
      return Tensor::full({x.size(0), params_.slots}, 1, DType::u8, x.value().device());
    }
    const NoGrad off;
    const Variable ones(
        Tensor::full({x.size(0), x.size(1), params_.slots}, 1, DType::f32, x.value().device()));
    return mean_pool(ones, mask, false).value().to(DType::u8);
  }

  LunaParams params_;
  MixerOptions options_;
  std::string site_, stream_, packed_stream_;
  Projection query_, pack_query_, pack_context_, context_, out_;
  Variable norm_gain_, norm_bias_, memory_;
};

std::vector<LimitingCase> limiting_cases() {
  return {{"a memory of one vector gives every token the same",
           "{slots: 1, pack_heads: 4}",
           {Form::noncausal, Form::cross},
           {},
           [](const ReferenceSequence<double>& s) {
             LunaParams params;
             params.slots = 1;
             params.pack_heads = 4;
             const std::vector<double> packed = packed_memory(params, s);
             const std::vector<double> row = projected(s, packed, "context");
             std::vector<double> y;
             for (int64_t i = 0; i < s.T; ++i) y.insert(y.end(), row.begin(), row.end());
             return y;
           }},
          {"memory queries of zeros give the mean of the tokens so far",
           "{slots: 3}",
           {Form::causal},
           [](const std::string& name, std::vector<double>& values) {
             if (name.starts_with("pack_query")) std::fill(values.begin(), values.end(), 0);
           },
           [](const ReferenceSequence<double>& s) {
             const std::vector<double> written = projected(s, s.x, "context");
             std::vector<double> y, sum(static_cast<size_t>(s.E), 0);
             for (int64_t i = 0; i < s.T; ++i) {
               for (int64_t c = 0; c < s.E; ++c) {
                 sum[static_cast<size_t>(c)] += written[static_cast<size_t>(i * s.E + c)];
                 y.push_back(sum[static_cast<size_t>(c)] / static_cast<double>(i + 1));
               }
             }
             return y;
           }}};
}

}  // namespace

void LunaParams::describe(ConfigDescription<LunaParams>& d) {
  describe_preset(d, kPresets);
  d.field("slots", &LunaParams::slots, "vectors l of the side memory").range(1, 4096);
  d.field("pack_heads", &LunaParams::pack_heads,
          "heads with which the memory reads the tokens; null: those of the model (not causal)")
      .range(1, 65536);
  describe_scale(d, "factor of q . k in both steps; null: 1/sqrt(width of their heads)");
  describe_dropout(d);
  d.field("slot_positions", &LunaParams::slot_positions,
          "add the sinusoidal encoding of 0, 1, ... to the first layer's memory");
  d.field("norm_epsilon", &LunaParams::norm_epsilon, "floor inside the memory's norm")
      .range(1e-12, 1);
}

MixerTraits LunaParams::traits(MixerTraits traits) const {
  if (pack_heads) traits.causal = traits.decode_state = traits.constant_state = false;
  return traits;
}

Mechanism luna_mechanism() {
  Mechanism facts;
  facts.name = "luna";
  facts.title = "Luna: attention through a side memory that passes from layer to layer";
  facts.equation =
      "Y_P = softmax(scale (P W_pq) (X W_pc)^T) (X W_pc)   one head at a time\n"
      "y   = softmax(scale (X W_q) (Y_P W_c)^T) (Y_P W_c), P of the next layer = norm(P + Y_P)\n"
      "causal: w_jl = log2(1 + 2^(scale P_l W_pq . x_j W_pc)), Y_t = (1/t) sum_{j<=t} w_j x_j W_c\n"
      "        y_t = softmax(scale (x_t W_q) Y_t^T) Y_t, P the same in every layer";
  facts.complexity =
      "time 4 B T l E (causal: 5 B T l E), memory of the source in cross-attention and of decoding "
      "B l E";
  facts.sources = "Ma et al. 2021, Luna: Linear Unified Nested Attention";
  facts.traits.noncausal = facts.traits.causal = facts.traits.cross = true;
  facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.growth = "T l";
  facts.traits.exempt["packing"] =
      "outside the causal form a row has one memory: packed documents are refused";
  facts.presets = kPresets;
  facts.cost_cases = {"{slots: 256}"};
  facts.variants = {"{slots: 5, scale: 1, slot_positions: false}", "{slots: 6, pack_heads: 4}"};
  facts.limits = limiting_cases();
  return define_mechanism<LunaParams, LunaMixer>(
      std::move(facts),
      [](const LunaParams& params, const auto& sequence) { return definition(params, sequence); });
}

}  // namespace linnet
