// Linformer: parameters, mixer, literal definition, registry entry.
#include "attention/linformer/linformer.h"

#include <numbers>

#include "attention/common/slot_support.h"
#include "attention/define.h"
#include "attention/linformer/one_kv_head.h"
#include "attention/linformer/position_table.h"
#include "autograd/arithmetic.h"
#include "autograd/embedding.h"
#include "core/cuda/backend.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"survey",
     "the survey's code: one E for keys, values and all layers",
     {{"slots", "128"}, {"sharing", "layerwise"}}},
    {"leapformer",
     "LeaPformer's Long Range Arena runs (Skyformer's code): one per head, never trained",
     {{"slots", "128"}, {"sharing", "key_value_per_head"}, {"freeze", "true"}}},
    {"lavo",
     "LAVO's Long Range Arena baseline: the same code",
     {{"slots", "128"}, {"sharing", "key_value_per_head"}, {"freeze", "true"}}},
    {"abc", "ABC's language models, causal: shared by keys, values and heads", {{"slots", "64"}}},
    {"abc_mlm", "ABC's masked language models, noncausal", {{"slots", "128"}}},
    {"linearized_llm",
     "inside GPT-2 and T5 by You et al. 2024, who do not say how: causal as ABC, our reading",
     {{"slots", "64"}}},
    {"lucidrains",
     "lucidrains/linformer: keys and values apart",
     {{"slots", "256"}, {"sharing", "headwise"}, {"init", "uniform"}}},
    {"fairseq",
     "fairseq's example: a quarter of the length, keys and values apart",
     {{"slots", "0"}, {"sharing", "headwise"}, {"init", "xavier"}}}};

// Values that do not depend on the layer, for a projection that all layers share without training.
Initializer same_in_every_layer(const Initializer& initial, const std::string& name) {
  return [initial, name](const Tensor& values, const RandomKey& key) {
    initial(values, RandomKey{key.seed, key.step, 0}.at("linformer").at(name));
  };
}

class LinformerMixer : public AttentionMixer {
 public:
  LinformerMixer(const LinformerParams& params, const MixerOptions& options,
                 const MixerScope& scope)
      : AttentionMixer(options, scope, {.k = !params.one_kv_head, .v = !params.one_kv_head}),
        params_(params),
        length_(params.length(options)),
        slots_(params.rows(options)) {
    const std::string name = params.key_name(options.form);
    keys_ = projection(name, scope);
    if (params.separate_values()) values_ = projection("F", scope);
    if (params.one_kv_head) kv_head_.emplace(options, scope.own);
  }

  MixResult mix(const MixInput& given, const MixerContext& context,
                const MixerState& state) const override {
    const bool encoded = options().form == Form::cross && !state.empty();
    const MixInput input = kv_head_ && !encoded ? kv_head_->with_keys(given, context) : given;
    const SlotMixing mixing =
        given_slot_mixing(params_, false, options(), context, draw_key(context));
    const auto controls = [&](const Variable& weight) {
      const Tensor positions = key_positions(input, context);
      Variable rows = embedding(positions, position_table(weight, options().heads));
      // A device's kernels of a model in bf16 take weights in bf16.
      const Tensor& tokens = input.k.value();
      if (tokens.device().kind == DeviceKind::cuda) rows = as_dtype(rows, tokens.dtype());
      return reshape(rows, {positions.size(0), positions.size(1), options().heads, slots_});
    };
    SlotControls of_values;
    if (values_.defined()) of_values = [&] { return controls(values_); };
    return slot_mix(
        mixing, options(), input, context, state, [&] { return controls(keys_); }, of_values);
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    MixerCost cost = slot_mix_cost(options(), slots_, shape);
    const int64_t weights = (params_.separate_values() ? 2 : 1) *
                            (params_.per_head() ? options().heads : 1) * slots_ * length_;
    const DType dtype = params_.freeze ? sum_dtype(shape.dtype) : shape.dtype;
    cost.bytes += static_cast<double>(weights) * size_of(dtype);
    if (kv_head_) {
      const MixerCost head = kv_head_->cost(shape);
      cost.projections += head.projections;
      cost.bytes += head.bytes;
    }
    return cost;
  }

  int64_t length_limit() const override { return options().form == Form::cross ? 0 : length_; }

 private:
  Variable projection(const std::string& name, const MixerScope& scope) const {
    const Shape shape{params_.per_head() ? options().heads : 1, slots_, length_};
    const double bound = 1 / std::sqrt(static_cast<double>(slots_));
    Initializer initial = params_.init == "normal" ? init_normal(0.02)
                          : params_.init == "uniform"
                              ? init_uniform(bound)
                              : init_xavier(1 / std::numbers::sqrt2, length_, slots_);
    const bool tied = params_.sharing == "layerwise";
    if (!params_.freeze) {
      return tied ? scope.tied.shared(name, shape, initial)
                  : scope.own.parameter(name, shape, initial);
    }
    if (tied) initial = same_in_every_layer(initial, name);
    return scope.own.buffer(name, shape, initial);
  }

  // Positions of the written tokens, i32 [B,S]; on a device positions beyond N give NaN.
  Tensor key_positions(const MixInput& input, const MixerContext& context) const {
    const Tensor positions = written_positions(options(), input, context);
    if (options().form == Form::cross && !context.key_positions.defined()) {
      require_within(input.k.size(1) - 1);
    }
    if constexpr (kCuda) {
      if (on_cuda(positions)) return positions;
    }
    for (int64_t i = 0; i < positions.elements(); ++i) require_within(positions.data<int32_t>()[i]);
    return positions;
  }
  void require_within(int64_t position) const {
    require_usage(position < length_, "linformer: position ", position, " lies beyond the length ",
                  length_, " that its projections were made for; raise max_length (or the ",
                  "training context)");
  }

  LinformerParams params_;
  int64_t length_, slots_;
  Variable keys_, values_;
  std::optional<OneKvHead> kv_head_;
};

// Keys or values of one head, for every head: rows of s.x or s.source by that weight, keys of
// s.x rotated.
template <typename Number>
std::vector<Number> one_head_for_all(const ReferenceSequence<Number>& s, const std::string& name) {
  const std::vector<Number>& read = s.form == Form::cross ? s.source : s.x;
  const std::vector<Number>& weight = s.parameter("kv_head." + name + ".weight");
  const auto bias = s.parameters.find("kv_head." + name + ".bias");
  std::vector<Number> all;
  for (int64_t j = 0; j < s.S; ++j) {
    std::vector<Number> head;
    for (int64_t c = 0; c < s.K; ++c) {
      const Number sum = dot_product(&weight[static_cast<size_t>(c * s.E)],
                                     &read[static_cast<size_t>(j * s.E)], s.E);
      const auto at = static_cast<size_t>(c);
      head.push_back(s.stored(sum + (bias == s.parameters.end() ? Number{0} : bias->second[at])));
    }
    const int64_t width = name == "k" && s.form != Form::cross ? s.options.rotary_width : 0;
    for (int64_t c = 0; c < width; c += 2) {
      const Number angle =
          static_cast<Number>(s.positions[static_cast<size_t>(j)]) *
          std::pow(Number{10000}, -static_cast<Number>(c) / static_cast<Number>(width));
      const auto at = static_cast<size_t>(c);
      const Number left = head[at], right = head[at + 1];
      head[at] = s.stored(left * std::cos(angle) - right * std::sin(angle));
      head[at + 1] = s.stored(left * std::sin(angle) + right * std::cos(angle));
    }
    for (int64_t h = 0; h < s.H; ++h) all.insert(all.end(), head.begin(), head.end());
  }
  return all;
}

template <typename Number>
std::vector<Number> definition(const LinformerParams& params,
                               const ReferenceSequence<Number>& given) {
  ReferenceSequence<Number> s = given;
  if (params.one_kv_head) {
    s.k = one_head_for_all(given, "k");
    s.v = one_head_for_all(given, "v");
  }
  SlotDefinition d = slot_definition_of(params, s);
  d.slots = params.rows(s.options);
  d.divisor = SlotDefinition::Divisor::none;
  const int64_t N = params.length(s.options);
  const auto of = [&](const std::string& name) {
    const std::vector<Number>& weight = s.parameter(name);
    return [&, N](int64_t j, int64_t h, int64_t l) {
      const int64_t row = (params.per_head() ? h * d.slots : 0) + l;
      const int64_t position = s.form == Form::cross ? j : s.positions[static_cast<size_t>(j)];
      return weight[static_cast<size_t>(row * N + position)];
    };
  };
  const std::string keys = params.key_name(s.form);
  return slot_definition(s, d, of(keys), of(params.separate_values() ? "F" : keys));
}

std::vector<LimitingCase> limiting_cases() {
  const auto is_projection = [](const std::string& name) { return name == "E" || name == "F"; };
  return {{"E = F = I over the whole length gives softmax attention",
           "{slots: 160, sharing: headwise}",
           {Form::noncausal, Form::cross},
           [is_projection](const std::string& name, std::vector<double>& values) {
             if (!is_projection(name)) return;
             for (size_t i = 0; i < values.size(); ++i) values[i] = i % 161 == 0 ? 1 : 0;
           },
           softmax_of_tokens},
          {"E = I gives causal softmax attention",
           "{slots: 160}",
           {Form::causal},
           [is_projection](const std::string& name, std::vector<double>& values) {
             if (!is_projection(name)) return;
             for (size_t i = 0; i < values.size(); ++i) values[i] = i % 161 == 0 ? 1 : 0;
           },
           softmax_of_tokens},
          {"one row of 1/n gives the mean of the values",
           "{slots: 1, max_length: 50}",
           {Form::noncausal},
           [is_projection](const std::string& name, std::vector<double>& values) {
             if (is_projection(name)) std::fill(values.begin(), values.end(), 0.02);
           },
           mean_of_values},
          {"with one head of keys and values, E = F = I gives softmax attention to that head",
           "{slots: 160, sharing: headwise, one_kv_head: true}",
           {Form::noncausal, Form::cross},
           [is_projection](const std::string& name, std::vector<double>& values) {
             if (!is_projection(name)) return;
             for (size_t i = 0; i < values.size(); ++i) values[i] = i % 161 == 0 ? 1 : 0;
           },
           [](const ReferenceSequence<double>& given) {
             ReferenceSequence<double> s = given;
             s.k = one_head_for_all(given, "k");
             s.v = one_head_for_all(given, "v");
             return softmax_of_tokens(s);
           }}};
}

}  // namespace

void LinformerParams::describe(ConfigDescription<LinformerParams>& d) {
  describe_preset(d, kPresets);
  d.field("slots", &LinformerParams::slots, "rows of the projections; 0: a quarter of the length N")
      .range(0, 65536);
  d.field("max_length", &LinformerParams::max_length,
          "length N of the projections (cross: of the source); 0: the training "
          "context. Longer inputs are refused")
      .range(0, 1 << 24)
      .unit("tokens");
  d.choice("sharing", &LinformerParams::sharing,
           {"none", "headwise", "key_value", "key_value_per_head", "layerwise"},
           "sharing of projections: none (E and F per head), all heads (E and F), keys and "
           "values of all heads (E), keys and values of a head, or all of these and all layers; "
           "causal attention needs keys and values to share it");
  d.field("one_kv_head", &LinformerParams::one_kv_head,
          "one head of keys and values, which all heads of queries read");
  d.field("freeze", &LinformerParams::freeze, "keep the drawn projections, which are no parameter");
  d.choice("init", &LinformerParams::init, {"normal", "xavier", "uniform"},
           "deviation 0.02; uniform with gain 1/sqrt(2); or uniform in +-1/sqrt(slots)");
  describe_slot_read(d, "rows that are zero at every token seen");
}

MixerTraits LinformerParams::traits(MixerTraits traits) const {
  if (separate_values()) traits.causal = traits.decode_state = traits.constant_state = false;
  return traits;
}

int64_t LinformerParams::length(const MixerOptions& options) const {
  const int64_t length = max_length > 0 ? max_length : options.max_length;
  require_usage(length > 0, "linformer: its projections need a length; set max_length");
  return length;
}

int64_t LinformerParams::rows(const MixerOptions& options) const {
  return slots > 0 ? slots : std::max<int64_t>(length(options) / 4, 1);
}

std::string LinformerParams::key_name(Form form) const {
  if (sharing != "layerwise") return "E";
  return form == Form::cross ? "E_cross" : "E_self";
}

Mechanism linformer_mechanism() {
  Mechanism facts;
  facts.name = "linformer";
  facts.title = "Linformer: keys and values projected along time";
  facts.equation =
      "K~ = E k, V~ = F v with E, F [slots, N]; y_i = sum_l softmax_l(scale q_i . K~_l) V~_l\n"
      "(causal, E = F: the sums of i run over j <= i)";
  facts.complexity = "time 4 B H T N K for N slots, memory of decoding B H N (K + V + 1)";
  facts.sources =
      "Wang et al. 2020, Linformer; Peng et al. 2022, ABC (causal, cross); Skyformer's and "
      "fairseq's code";
  facts.traits.noncausal = facts.traits.causal = facts.traits.cross = true;
  facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.growth = "T N";
  facts.presets = kPresets;
  facts.cost_cases = {"{slots: 256}"};
  facts.check_head_width = 10;
  // The suite runs the first with rotary positions too.
  facts.variants = {"{slots: 4, one_kv_head: true}", "{slots: 3}",
                    "{slots: 7, sharing: none, scale: 1, init: xavier}",
                    "{slots: 0, sharing: layerwise, mask_empty: false, init: uniform}",
                    "{slots: 5, sharing: key_value_per_head, freeze: true, max_length: 140}"};
  facts.limits = limiting_cases();
  return define_mechanism<LinformerParams, LinformerMixer>(
      std::move(facts), [](const LinformerParams& params, const auto& sequence) {
        return definition(params, sequence);
      });
}

}  // namespace linnet
