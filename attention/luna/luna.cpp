// Luna: parameters, mixer, literal definition, registry entry.
#include "attention/luna/luna.h"

#include <cmath>
#include <numbers>

#include "attention/define.h"
#include "attention/mixer_support.h"
#include "autograd/arithmetic.h"
#include "autograd/embedding.h"
#include "autograd/linear.h"
#include "autograd/norms.h"
#include "autograd/pooling.h"

namespace linnet {
namespace {

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
        stream_(scope.tied.prefix() + ".luna_memory") {
    const int64_t width = options.width;
    require_usage(width > 0 && options.heads > 0 && width % options.heads == 0, "luna: width ",
                  width, " must be a positive multiple of heads ", options.heads);
    require_usage(options.rotary_width == 0,
                  "luna compares tokens with a memory that has no place ",
                  "in the text; use positions: sinusoidal, learned or none instead of rotary");
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
    norm_gain_ = scope.own.parameter("memory_norm.gain", {width}, init_constant(1));
    norm_bias_ = scope.own.parameter("memory_norm.bias", {width}, init_constant(0));
    memory_ = scope.tied.shared("luna_memory", {params.slots, width},
                                init_normal(1 / std::sqrt(static_cast<double>(width))));
  }

  MixerResult forward(const Variable& x, const MixerContext& context,
                      const MixerState&) const override {
    require(options_.form == Form::noncausal, "luna: this attention was built for the cross form");
    require_usage(!context.segments.defined(),
                  "luna has one memory for each row; do not pack documents into rows");
    const Packed packed = pack(x, context.key_mask, context);
    MixerResult result = unpack(x, packed, context);
    result.streams[stream_] = packed.memory;
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
    result.streams[stream_] = packed.memory;
    result.state = {{"packed", packed.read}, {"valid", mask_to_state(packed.valid)}};
    return result;
  }

  MixerCost cost(const MixerShape& shape) const override {
    const bool cross = options_.form == Form::cross;
    const auto rows = static_cast<double>(shape.batch), width = static_cast<double>(options_.width);
    const auto slots = static_cast<double>(params_.slots);
    const auto queries = static_cast<double>(shape.queries);
    const double keys = cross ? static_cast<double>(shape.keys) : queries;
    const auto element = static_cast<double>(size_of(shape.dtype));
    MixerCost cost;
    cost.projections = rows * width * width * (2 * queries + keys + 2 * slots);
    cost.mixing = rows * slots * 2 * width * (queries + keys);
    const double parameters = 5 * width * (width + (options_.bias ? 1 : 0)) + (2 + slots) * width;
    cost.bytes = element * (rows * width * (2 * queries + (cross ? keys : 0)) + parameters);
    if (cross) cost.bytes += rows * slots * (element * width + sizeof(int64_t));
    return cost;
  }

 private:
  struct Packed {
    Variable read;    // Y_P [B,l,E], what the tokens wrote
    Tensor valid;     // u8 [B,l]: 0 in rows without a valid token
    Variable memory;  // for the next layer
  };

  Variable heads(const Variable& x) const {
    return reshape(x, {x.size(0), x.size(1), options_.heads, options_.head_width()});
  }
  static Variable merged(const Variable& y, int64_t width) {
    return reshape(y, {y.size(0), y.size(1), width});
  }

  // P of this layer, [B,l,E].
  Variable memory(const Variable& x, const MixerContext& context) const {
    const auto found = context.streams.find(stream_);
    if (found != context.streams.end()) return found->second;
    const Tensor ids = counted_positions(x.size(0), params_.slots, 0, x.value().device());
    const Variable rows = embedding(ids, memory_);
    return params_.slot_positions ? add_sinusoidal(rows, ids) : rows;
  }

  BlockAttentionContext reading(const char* site, const MixerContext& context) const {
    BlockAttentionContext block;
    block.cross = true;
    block.place = context.place;
    block.options.scale = params_.scale.value_or(default_scale(options_));
    set_dropout(block, params_.dropout, options_, context, context.random.at(site_).at(site));
    return block;
  }

  Packed pack(const Variable& x, const Tensor& mask, const MixerContext& context) const {
    const Variable p = memory(x, context);
    const Variable written = heads(pack_context_(x));
    BlockAttentionContext block = reading("pack", context);
    block.key_mask = mask;
    const Variable y =
        block_attention({heads(pack_query_(p)), written, written, {}, {}, {}}, block);
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
  std::string site_, stream_;
  Projection query_, pack_query_, pack_context_, context_, out_;
  Variable norm_gain_, norm_bias_, memory_;
};

// x [n,E] by a projection of that name.
template <typename Number>
std::vector<Number> projected(const ReferenceSequence<Number>& s, const std::vector<Number>& x,
                              const std::string& name) {
  const std::vector<Number>& weight = s.parameter(name + ".weight");
  const auto bias = s.parameters.find(name + ".bias");
  std::vector<Number> y(x.size());
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t token = i / static_cast<size_t>(s.E), o = i % static_cast<size_t>(s.E);
    y[i] = s.stored(dot_product(&x[token * static_cast<size_t>(s.E)],
                                &weight[o * static_cast<size_t>(s.E)], s.E) +
                    (bias == s.parameters.end() ? Number{0} : bias->second[o]));
  }
  return y;
}

// Soft-max attention of all heads of queries [n,E] over [m,E], keys and values in one.
template <typename Number>
std::vector<Number> read(const ReferenceSequence<Number>& s, const std::vector<Number>& queries,
                         const std::vector<Number>& memory, const std::vector<uint8_t>& valid,
                         Number scale) {
  const auto width = static_cast<size_t>(s.E);
  std::vector<Number> y(queries.size(), 0);
  for (size_t i = 0; i < queries.size() / width; ++i) {
    for (size_t h = 0; h < width; h += static_cast<size_t>(s.K)) {
      std::vector<Number> logits;
      for (size_t j = 0; j < valid.size(); ++j) {
        logits.push_back(valid[j] == 0 ? -std::numeric_limits<Number>::infinity()
                                       : scale * dot_product(&queries[i * width + h],
                                                             &memory[j * width + h], s.K));
      }
      const std::vector<Number> weights = softmax_of(std::move(logits));
      for (size_t j = 0; j < valid.size(); ++j) {
        if (valid[j] == 0) continue;
        for (size_t c = h; c < h + static_cast<size_t>(s.K); ++c) {
          y[i * width + c] += weights[j] * memory[j * width + c];
        }
      }
    }
  }
  for (Number& value : y) value = s.stored(value);
  return y;
}

// The memory of a first layer, [l,E].
template <typename Number>
std::vector<Number> first_memory(const LunaParams& params, const ReferenceSequence<Number>& s) {
  std::vector<Number> p = s.parameter("luna_memory");
  for (size_t i = 0; params.slot_positions && i < p.size(); ++i) {
    const auto slot = static_cast<int64_t>(i / static_cast<size_t>(s.E));
    const auto channel = static_cast<int64_t>(i % static_cast<size_t>(s.E));
    const Number angle = static_cast<Number>(slot) *
                         std::pow(Number{10000}, -static_cast<Number>(channel - channel % 2) /
                                                     static_cast<Number>(s.E));
    p[i] = s.stored(p[i] + (channel % 2 == 0 ? std::sin(angle) : std::cos(angle)));
  }
  return p;
}

template <typename Number>
std::vector<Number> definition(const LunaParams& params, const ReferenceSequence<Number>& s) {
  const auto scale =
      static_cast<Number>(params.scale.value_or(1 / std::sqrt(static_cast<double>(s.K))));
  const std::vector<Number> tokens =
      projected(s, s.form == Form::cross ? s.source : s.x, "pack_context");
  const std::vector<Number> packed =
      read(s, projected(s, first_memory(params, s), "pack_query"), tokens, s.key_valid, scale);
  const bool any = std::count(s.key_valid.begin(), s.key_valid.end(), 0) < s.S;
  const std::vector<uint8_t> slots(static_cast<size_t>(params.slots), any ? 1 : 0);
  return read(s, projected(s, s.x, "query"), projected(s, packed, "context"), slots, scale);
}

}  // namespace

void LunaParams::describe(ConfigDescription<LunaParams>& d) {
  describe_preset(d, kPresets);
  d.field("slots", &LunaParams::slots, "vectors l of the side memory").range(1, 4096);
  describe_scale(d, "factor of q . k; null: 1/sqrt(K)");
  describe_dropout(d);
  d.field("slot_positions", &LunaParams::slot_positions,
          "add the sinusoidal encoding of 0, 1, ... to the first layer's memory");
  d.field("norm_epsilon", &LunaParams::norm_epsilon, "floor inside the memory's norm")
      .range(1e-12, 1);
}

Mechanism luna_mechanism() {
  Mechanism facts;
  facts.name = "luna";
  facts.title = "Luna: attention through a side memory that passes from layer to layer";
  facts.equation =
      "Y_P = softmax(scale (P W_pq) (X W_pc)^T) (X W_pc)   a head at a time\n"
      "y   = softmax(scale (X W_q) (Y_P W_c)^T) (Y_P W_c), P of the next layer = norm(P + Y_P)";
  facts.complexity = "time 4 B T l E, memory of the source in cross-attention B l E";
  facts.sources = "Ma et al. 2021, Luna: Linear Unified Nested Attention";
  facts.traits.noncausal = facts.traits.cross = true;
  facts.traits.growth = "T l";
  facts.traits.exempt["packing"] = "a row has one memory: packed documents are refused";
  facts.presets = kPresets;
  facts.cost_cases = {"{slots: 256}"};
  facts.variants = {"{slots: 5, scale: 1, slot_positions: false}"};
  facts.limits = {{"a memory of one vector gives every token the same",
                   "{slots: 1}",
                   {Form::noncausal, Form::cross},
                   {},
                   [](const ReferenceSequence<double>& s) {
                     LunaParams params;
                     params.slots = 1;
                     const auto packed =
                         read(s, projected(s, first_memory(params, s), "pack_query"),
                              projected(s, s.form == Form::cross ? s.source : s.x, "pack_context"),
                              s.key_valid, 1 / std::sqrt(static_cast<double>(s.K)));
                     const std::vector<double> row = projected(s, packed, "context");
                     std::vector<double> y;
                     for (int64_t i = 0; i < s.T; ++i) y.insert(y.end(), row.begin(), row.end());
                     return y;
                   }}};
  return define_mechanism<LunaParams, LunaMixer>(
      std::move(facts),
      [](const LunaParams& params, const auto& sequence) { return definition(params, sequence); });
}

}  // namespace linnet
