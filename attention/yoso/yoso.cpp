// YOSO: parameters, mixer, literal definition, registry entry.
#include "attention/yoso/yoso.h"

#include <cmath>
#include <numbers>

#include "attention/common/mixer_support.h"
#include "attention/common/random_matrix.h"
#include "attention/define.h"
#include "attention/yoso/collisions.h"
#include "autograd/arithmetic.h"
#include "autograd/norms.h"
#include "layers/cache_places.h"

namespace linnet {
namespace {

// Minimum length that a vector is divided by.
constexpr double kFloor = 1e-12;

const std::vector<Preset> kPresets = {
    {"linearized_llm",
     "the only switch that its code has: 8 bits, in expectation, arccos(0.98 x) with its "
     "derivative",
     {{"bits", "8"}, {"cosine", "0.98"}, {"gradient", "exact"}}},
    {"huggingface",
     "the defaults of the Transformers library: 9 bits, 64 hashes where they are sampled",
     {{"bits", "9"}, {"hashes", "64"}}}};

// sqrt(C) x / |x| over the last dimension.
Variable direction(const Variable& x) {
  const double root = std::sqrt(static_cast<double>(x.shape()[-1]));
  return norm(x, {}, {}, {NormKind::scale, kFloor / root});
}

class YosoMixer : public AttentionMixer {
 public:
  YosoMixer(const YosoParams& params, const MixerOptions& options, const MixerScope& scope)
      : AttentionMixer(options, scope), params_(params) {
    if (!params.sampled()) return;
    const Shape shape{options.heads, params.hashes * params.bits, options.head_width()};
    const auto draw = [shape](const RandomKey& key) {
      return gaussian_rows(shape[0] * shape[1], shape[2], key);
    };
    planes_ = RandomMatrix(scope.own, "planes", shape, draw, draw, params.redraw_steps);
  }

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    MixInput unit = input;
    unit.q = direction(input.q);
    if (input.k.defined()) unit.k = direction(input.k);
    MixResult result =
        params_.sampled() ? sample(input, unit, context, state) : expect(unit, context, state);
    const double root = std::sqrt(static_cast<double>(result.y.size(3)));
    result.y = scale(direction(result.y), 1 / root);
    return result;
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    if (params_.sampled()) return sampled_cost(shape);
    return full_attention_cost(options(), shape);
  }

 private:
  // All pairs, by the probability of a collision.
  MixResult expect(const MixInput& unit, const MixerContext& context,
                   const MixerState& state) const {
    BlockAttentionContext block = block_context(options(), context);
    block.options.weights =
        params_.exact() ? BlockWeights::collision_exact : BlockWeights::collision;
    block.options.exponent = static_cast<double>(params_.bits);
    // Directions are sqrt(K) long.
    block.options.scale = params_.cosine / static_cast<double>(options().head_width());
    set_dropout(block, params_.dropout, options(), context, draw_key(context));
    MixResult result;
    if (options().form == Form::causal) {
      MixerState placed;
      const MixerState& cache =
          with_requested_places(state, context.place.time_offset, unit.q.size(1), placed);
      result = causal_with_cache(unit, context, cache, block, tokens_to_keep(state));
      keep_request(state, result.state);
    } else if (options().form == Form::noncausal) {
      result.y = block_attention({unit.q, unit.k, unit.v, {}, {}, {}}, block);
    } else {
      result.state = state.empty() ? encoded_source(unit, context) : state;
      block.key_mask = mask_from_state(result.state, "valid");
      const DType dtype = unit.q.dtype();
      result.y = block_attention({unit.q,
                                  as_dtype(result.state.at("k"), dtype),
                                  as_dtype(result.state.at("v"), dtype),
                                  {},
                                  {},
                                  {}},
                                 block);
    }
    return result;
  }

  // Pairs that collide in drawn hashes.
  MixResult sample(const MixInput& input, const MixInput& unit, const MixerContext& context,
                   const MixerState& state) const {
    const bool cross = options().form == Form::cross;
    const Tensor& q = input.q.value();
    const Variable planes = planes_.at(context, draw_key(context), sum_dtype(q.dtype()));
    const auto codes = [&](const char* name, const Tensor& x, const Tensor& mask) {
      return chosen(context, name, {x.size(0), x.size(1), x.size(2), params_.hashes}, x.device(),
                    [&] { return hash_codes(x, planes.value(), mask, params_.bits); });
    };
    CollisionContext at;
    at.slope = static_cast<double>(params_.bits) / 2 / static_cast<double>(options().head_width());
    at.query_codes = codes("token_query_codes", q, context.key_mask);
    MixResult result;
    if (!cross) {
      at.key_codes = codes("token_key_codes", input.k.value(), context.key_mask);
      at.segments = context.segments;
      result.y = sampled_collisions(unit.q, unit.k, unit.v, at);
      return result;
    }
    result.state = state;
    if (state.empty()) {
      at.key_codes = codes("token_key_codes", input.k.value(), context.source_mask);
      result.state = {
          {"k", unit.k}, {"v", unit.v}, {"codes", Variable(at.key_codes.to(DType::i64))}};
    } else {
      at.key_codes = state.at("codes").value().to(DType::i32);
    }
    const DType dtype = unit.q.dtype();
    result.y = sampled_collisions(unit.q, as_dtype(result.state.at("k"), dtype),
                                  as_dtype(result.state.at("v"), dtype), at);
    return result;
  }

  // The products of hashing; tables of values take sums alone.
  MixerCost sampled_cost(const MixerShape& shape) const {
    const bool cross = options().form == Form::cross;
    const auto planes = static_cast<double>(params_.hashes * params_.bits * options().width);
    const auto rows = static_cast<double>(shape.batch);
    const auto keys = static_cast<double>(cross ? shape.keys : shape.queries);
    MixerCost cost;
    cost.mixing = rows * (static_cast<double>(shape.queries) + keys) * planes;
    cost.bytes = planes * static_cast<double>(size_of(sum_dtype(shape.dtype)));
    if (!cross) return cost;
    const auto width = static_cast<double>(2 * options().width);
    const auto codes = static_cast<double>(options().heads * params_.hashes);
    cost.bytes +=
        rows * keys * (width * static_cast<double>(size_of(shape.dtype)) + codes * sizeof(int64_t));
    return cost;
  }

  YosoParams params_;
  RandomMatrix planes_;
};

// sqrt(n) x / |x|.
template <typename Number>
std::vector<Number> direction_of(const ReferenceSequence<Number>& s, const Number* x, int64_t n) {
  const Number length = std::max(std::sqrt(dot_product(x, x, n)), static_cast<Number>(kFloor));
  std::vector<Number> result;
  for (int64_t c = 0; c < n; ++c) {
    result.push_back(s.stored(std::sqrt(static_cast<Number>(n)) * x[c] / length));
  }
  return result;
}

// The codes [tokens,H,hashes] of queries or keys: the recorded ones, else the signs of products.
template <typename Number>
std::vector<int32_t> codes_of(const YosoParams& params, const ReferenceSequence<Number>& s,
                              bool keys) {
  const char* name = keys ? "token_key_codes" : "token_query_codes";
  const int64_t tokens = keys ? s.S : s.T;
  if (const auto found = s.choices.find(name); found != s.choices.end()) {
    const std::vector<int32_t> all = found->second.template to_vector<int32_t>();
    const int64_t begin = keys && s.form == Form::cross ? 0 : s.begin;
    const int64_t first = s.row * found->second.size(1) + begin, width = s.H * params.hashes;
    return {all.begin() + first * width, all.begin() + (first + tokens) * width};
  }
  const std::vector<Number>& planes = s.parameter("planes");
  std::vector<int32_t> codes;
  for (int64_t i = 0; i < tokens * s.H * params.hashes; ++i) {
    const int64_t n = i % params.hashes, h = i / params.hashes % s.H, t = i / params.hashes / s.H;
    int32_t code = 0;
    for (int64_t bit = 0; bit < params.bits; ++bit) {
      const int64_t row = (h * params.hashes + n) * params.bits + bit;
      const Number product = dot_product(keys ? s.key(t, h) : s.query(t, h),
                                         &planes[static_cast<size_t>(row * s.K)], s.K);
      code |= int32_t{product > 0} << bit;
    }
    codes.push_back(code);
  }
  return codes;
}

// The share of hashes in which (query i, key j) of a head collide.
template <typename Number>
Number collision_share(const YosoParams& params, const ReferenceSequence<Number>& s,
                       const std::vector<int32_t>& query_codes,
                       const std::vector<int32_t>& key_codes, int64_t h, int64_t i, int64_t j) {
  Number collisions = 0;
  for (int64_t n = 0; n < params.hashes; ++n) {
    const auto query = static_cast<size_t>((i * s.H + h) * params.hashes + n);
    const auto key = static_cast<size_t>((j * s.H + h) * params.hashes + n);
    if (query_codes[query] == key_codes[key]) collisions += 1;
  }
  return collisions / static_cast<Number>(params.hashes);
}

// (1 - arccos(cosine cos(q, k)) / pi)^bits of directions that are sqrt(K) long.
template <typename Number>
Number collision_probability(const YosoParams& params, const std::vector<Number>& q,
                             const std::vector<Number>& k) {
  const auto K = static_cast<int64_t>(q.size());
  const Number product = dot_product(q.data(), k.data(), K) / static_cast<Number>(K);
  const Number cosine =
      std::clamp(static_cast<Number>(params.cosine) * product, Number{-1}, Number{1});
  const Number collide = 1 - std::acos(cosine) / static_cast<Number>(std::numbers::pi);
  return std::pow(collide, static_cast<Number>(params.bits));
}

template <typename Number>
std::vector<Number> definition(const YosoParams& params, const ReferenceSequence<Number>& s) {
  std::vector<int32_t> query_codes, key_codes;
  if (params.sampled()) {
    query_codes = codes_of(params, s, false);
    key_codes = codes_of(params, s, true);
  }
  std::vector<Number> y;
  for (int64_t i = 0; i < s.T; ++i) {
    for (int64_t h = 0; h < s.H; ++h) {
      const std::vector<Number> q = direction_of(s, s.query(i, h), s.K);
      std::vector<Number> sum(static_cast<size_t>(s.V), 0);
      for (int64_t j = 0; j < s.S; ++j) {
        if (!s.sees(i, j)) continue;
        const Number weight =
            params.sampled() ? collision_share(params, s, query_codes, key_codes, h, i, j)
                             : collision_probability(params, q, direction_of(s, s.key(j, h), s.K));
        for (int64_t c = 0; c < s.V; ++c) sum[static_cast<size_t>(c)] += weight * s.value(j, h)[c];
      }
      for (Number& value : sum) value = s.stored(value);
      for (const Number value : direction_of(s, sum.data(), s.V)) {
        y.push_back(value / std::sqrt(static_cast<Number>(s.V)));
      }
    }
  }
  return y;
}

}  // namespace

void YosoParams::describe(ConfigDescription<YosoParams>& d) {
  describe_preset(d, kPresets);
  d.choice("estimate", &YosoParams::estimate, {"expectation", "sampled"},
           "weights of all pairs by the probability of a collision, or the share of drawn hashes "
           "in which pairs collide, linear in the length (noncausal and cross)");
  d.field("bits", &YosoParams::bits, "hyperplanes tau of one hash: the power of the collision")
      .range(1, 64);
  d.field("cosine", &YosoParams::cosine, "factor of the cosine of query and key")
      .above(0)
      .at_most(1);
  d.choice("gradient", &YosoParams::gradient, {"surrogate", "exact"},
           "backward by the paper's surrogate, or by the derivative of arccos, which has no bound "
           "at 1: cosine is then below 1");
  d.field("hashes", &YosoParams::hashes, "sampled: hashes m").range(1, 4096);
  d.field("redraw_steps", &YosoParams::redraw_steps,
          "sampled: training redraws the hyperplanes after so many updates; 0: never")
      .at_least(0);
  describe_dropout(d);
}

void YosoParams::validate(const ConfigNode& at) const {
  if (!sampled()) {
    if (exact() && cosine == 1) {
      throw located_error(at.location_of("gradient"),
                          "gradient: exact has no bound where query and key have one direction and "
                          "cosine is 1; set cosine: 0.98, or gradient: surrogate");
    }
    return;
  }
  if (exact() || cosine != 1) {
    throw located_error(at.location_of(exact() ? "gradient" : "cosine"),
                        "estimate: sampled counts collisions, which have no cosine and only the "
                        "surrogate's gradient; remove cosine and gradient");
  }
  if (bits > kMaxHashBits) {
    throw located_error(at.location_of("bits"), "hashes that are sampled have at most ",
                        kMaxHashBits, " bits, found ", bits, "; take fewer");
  }
  if (dropout) {
    throw located_error(at.location_of("dropout"),
                        "estimate: sampled has no weights that could be dropped; remove dropout");
  }
}

MixerTraits YosoParams::traits(MixerTraits traits) const {
  if (exact()) traits.exempt.erase("gradients");
  if (!sampled()) return traits;
  traits.causal = traits.decode_state = false;
  traits.growth = std::string("T m");
  return traits;
}

Mechanism yoso_mechanism() {
  Mechanism facts;
  facts.name = "yoso";
  facts.title = "YOSO: attention by the probability that hashes collide, in expectation or sampled";
  facts.equation =
      "E_ij = (1 - arccos(cosine cos(q_i, k_j)) / pi)^bits, y_i = sum_j E_ij v_j / |sum_j E_ij "
      "v_j|\n"
      "sampled: E_ij = the share of m hashes, signs of products with drawn planes, that agree";
  facts.complexity =
      "time 2 B H T^2 K, memory of decoding 2 B T H K; sampled: time B H T m (bits K + V)";
  facts.sources = "Zeng et al. 2021, You Only Sample (Almost) Once";
  facts.traits.noncausal = facts.traits.causal = facts.traits.cross = true;
  facts.traits.decode_state = true;
  facts.traits.growth = "T^2";
  facts.traits.exempt["gradients"] =
      "backward is the paper's surrogate, whose formula a unit test states (gradient: exact is "
      "checked)";
  facts.presets = kPresets;
  facts.variants = {"{bits: 1}", "{preset: linearized_llm}",
                    "{estimate: sampled, bits: 2, hashes: 5}"};
  const auto equal_directions = [](const std::string& name, std::vector<double>& values) {
    if (name == "q.weight" || name == "k.weight") std::fill(values.begin(), values.end(), 0);
    if (name == "q.bias" || name == "k.bias") std::fill(values.begin(), values.end(), 0.5);
  };
  const auto opposite_directions = [=](const std::string& name, std::vector<double>& values) {
    equal_directions(name, values);
    if (name == "k.bias") std::fill(values.begin(), values.end(), -0.5);
  };
  const auto nothing = [](const ReferenceSequence<double>& s) {
    return linear_attention_definition(
        s, [](int64_t, int64_t, int64_t) { return 0.0; }, [](double) { return 1.0; });
  };
  const auto normed_sum = [](const ReferenceSequence<double>& s) {
    std::vector<double> y = linear_attention_definition(
        s, [](int64_t, int64_t, int64_t) { return 1.0; }, [](double) { return 1.0; });
    for (auto at = y.begin(); at != y.end(); at += s.V) {
      const double length = std::sqrt(dot_product(&*at, &*at, s.V));
      std::for_each(at, at + s.V, [length](double& value) { value /= length; });
    }
    return y;
  };
  facts.limits = {{"equal directions collide always: the normed sum of the values",
                   "{}",
                   {Form::noncausal, Form::causal, Form::cross},
                   equal_directions,
                   normed_sum},
                  {"so they do in every hash that is drawn",
                   "{estimate: sampled, hashes: 3}",
                   {Form::noncausal, Form::cross},
                   equal_directions,
                   normed_sum},
                  {"opposite directions never collide",
                   "{}",
                   {Form::noncausal, Form::causal, Form::cross},
                   opposite_directions,
                   nothing},
                  {"nor do they in a hash that is drawn",
                   "{estimate: sampled, hashes: 3}",
                   {Form::noncausal, Form::cross},
                   opposite_directions,
                   nothing}};
  return define_mechanism<YosoParams, YosoMixer>(
      std::move(facts),
      [](const YosoParams& params, const auto& sequence) { return definition(params, sequence); });
}

}  // namespace linnet
