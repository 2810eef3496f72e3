// Reformer: parameters, mixer, registry entry.
#include "attention/reformer/reformer.h"

#include <bit>

#include "attention/common/joint/joint_softmax.h"
#include "attention/common/mixer_support.h"
#include "attention/common/query_rows.h"
#include "attention/common/random_matrix.h"
#include "attention/define.h"
#include "attention/reformer/chunks.h"
#include "attention/reformer/reformer_definition.h"
#include "autograd/arithmetic.h"
#include "autograd/norms.h"

namespace linnet {
namespace {

constexpr double kEpsilon = 1e-6;  // beside the mean square of a key
constexpr double kOneself = -1e5;  // logit of a query's own value

const std::vector<Preset> kPresets = {
    {"survey",
     "the survey's tasks with heads of 64 channels: twice that many keys per query",
     {{"hashes", "2"}, {"chunk", "32"}}},
    {"survey_image",
     "the survey's tasks with heads of 32 channels (Image, Pathfinder)",
     {{"hashes", "2"}, {"chunk", "16"}}},
    {"lra",
     "Skyformer's and LeaPformer's code for Long Range Arena, also LAVO's table",
     {{"hashes", "2"}, {"chunk", "64"}}}};

class ReformerMixer : public AttentionMixer {
 public:
  ReformerMixer(const ReformerParams& params, const MixerOptions& options, const MixerScope& scope)
      : AttentionMixer(options, scope, {.k = false, .bias = false}), params_(params) {
    require_usage(options.max_length > 0 || params.buckets,
                  "reformer: the number of its buckets needs a length; set buckets");
    const Shape shape{options.heads, params.hashes * rule().directions(), options.head_width()};
    const auto draw = [shape](const RandomKey& key) {
      return gaussian_rows(shape[0] * shape[1], shape[2], key);
    };
    rotations_ = RandomMatrix(scope.own, "rotations", shape, draw, draw, params.redraw_steps);
  }

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState&) const override {
    const Tensor& x = input.q.value();
    const DType wide = sum_dtype(x.dtype());
    const Chunks chunks = chunks_of(x, context);
    const Variable keys = norm(input.q, {}, {}, {NormKind::rms, kEpsilon});
    const Shape logits{x.size(0), x.size(1), x.size(2)};
    ListedAttentionResult all{as_dtype(input.v, wide),
                              Variable(Tensor::full(logits, kOneself, wide, x.device()))};
    for (int64_t round = 0; round < chunks.order.size(0); ++round) {
      all = joint_softmax(all, attend({input.q, keys, input.v, {}}, chunks, round, context));
    }
    return {as_dtype(all.y, x.dtype()), {}};
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    const auto rows = static_cast<double>(shape.batch);
    const auto width = static_cast<double>(options().width);
    const auto hashes = static_cast<double>(params_.hashes);
    MixerCost cost;
    cost.mixing = rows * met_pairs(shape.queries) * 2 * width;
    if (shape.queries > params_.chunk) {
      const int64_t directions = rule().factors(shape.queries).directions();
      cost.mixing += rows * width * hashes * static_cast<double>(shape.queries * directions);
    }
    cost.bytes = width * hashes * static_cast<double>(rule().directions()) *
                 static_cast<double>(size_of(sum_dtype(shape.dtype)));
    return cost;
  }

 private:
  // Outputs and log-sum-exps of tokens in one round; 0 where they are masked.
  ListedAttentionResult attend(ListedAttentionVariables in, const Chunks& chunks, int64_t round,
                               const MixerContext& context) const {
    const Chunks own = chunks.of(round);
    const int64_t B = in.q.size(0), T = in.q.size(1), H = in.q.size(2), N = own.order.size(2);
    ListedAttentionContext at;
    at.options.scale = default_scale(options());
    at.options.group = own.size;
    if (context.training) {
      at.options.dropout = params_.dropout;
      at.options.dropout_key = draw_key(context);
    }
    at.index = own.index;
    at.place = context.place;
    at.place.time_offset += round * N;
    in.q = take_queries(in.q, {own.order, own.places});
    in.bias = Variable(own.bias);
    const ListedAttentionResult found = listed_attention(in, at);
    const auto by_time = [&](const Variable& rows) {
      return take_queries(rows, {own.places, own.order});
    };
    const Variable sums = by_time(reshape(found.log_sum_exp, {B, N, H, 1}));
    return {as_dtype(by_time(found.y), sums.dtype()), reshape(sums, {B, T, H})};
  }

  // Pairs of a query and a key of its two chunks in every round. Pairs that a query does not see
  // (itself and later keys) are computed too.
  double met_pairs(int64_t T) const {
    const int64_t c = params_.chunk;
    return static_cast<double>(T > c ? params_.hashes * T * 2 * c : T * T);
  }

  BucketRule rule() const { return params_.bucket_rule(options().max_length); }

  Chunks chunks_of(const Tensor& x, const MixerContext& context) const {
    const Shape shape{x.size(0), x.size(1), x.size(2), params_.hashes};
    const ChunkContext at{params_.chunk, options().form == Form::causal, params_.dedup,
                          context.key_mask, document_spans(context.segments)};
    const DType wide = sum_dtype(x.dtype());
    // One chunk needs no buckets.
    if (x.size(1) <= params_.chunk) {
      return make_chunks(Tensor::empty(shape, DType::i32, x.device()), at, wide);
    }
    const Variable rotations = rotations_.at(context, draw_key(context), wide);
    const Tensor buckets = chosen(context, "token_buckets", shape, x.device(), [&] {
      return hash_buckets(x, rotations.value(), {rule(), params_.hashes, at.mask, at.spans});
    });
    return make_chunks(buckets, at, wide);
  }

  ReformerParams params_;
  RandomMatrix rotations_;
};

}  // namespace

void ReformerParams::describe(ConfigDescription<ReformerParams>& d) {
  describe_preset(d, kPresets);
  d.field("hashes", &ReformerParams::hashes, "rounds l of hashing").range(1, 64);
  d.field("chunk", &ReformerParams::chunk,
          "tokens c of a chunk; queries see two chunks in each round")
      .range(1, 1 << 16)
      .unit("tokens");
  d.field("buckets", &ReformerParams::buckets,
          "buckets of a round, a power of two; null: about two for each chunk of the sequence")
      .range(2, 1 << 24);
  d.field(
      "dedup", &ReformerParams::dedup,
      "a key that a query meets several times counts once, as in the paper; otherwise as often, "
      "as in the code that the survey runs");
  d.field("redraw_steps", &ReformerParams::redraw_steps,
          "training redraws the rotations after so many updates; 0: never")
      .at_least(0);
  d.field("dropout", &ReformerParams::dropout, "probability of dropping a softmax weight")
      .at_least(0)
      .below(1);
}

void ReformerParams::validate(const ConfigNode& at) const {
  if (!buckets || std::has_single_bit(static_cast<uint64_t>(*buckets))) return;
  throw located_error(at.location_of("buckets"), "buckets must be a power of two, found ", *buckets,
                      "; take ", std::bit_floor(static_cast<uint64_t>(*buckets)));
}

BucketRule ReformerParams::bucket_rule(int64_t longest) const {
  return {chunk, longest, buckets.value_or(0)};
}

Mechanism reformer_mechanism() {
  Mechanism facts;
  facts.name = "reformer";
  facts.title = "Reformer: softmax attention inside chunks of tokens sorted by hashes";
  facts.equation =
      "x = W_qk h, k_j = x_j / sqrt(mean x_j^2 + 1e-6), z_ij = x_i . k_j / sqrt(K), z_ii = -1e5\n"
      "bucket = argmax([x R; -x R]) in each of l rounds; all rounds' tokens in the order (round, "
      "bucket, time)\n"
      "are split into chunks of c; i meets j c_ij times in its own chunk and the one before\n"
      "y_i = sum_j c_ij exp(z_ij) v_j / sum_j c_ij exp(z_ij)";
  facts.complexity = "time B H T l (4 c K + buckets K / 2 + ln T), memory B H T l (2 c + 4 K)";
  facts.sources =
      "Kitaev et al. 2020, Reformer: The Efficient Transformer; Hugging Face's code, as run by a "
      "survey, Skyformer and LeaPformer";
  facts.traits.noncausal = facts.traits.causal = true;
  facts.traits.depends_on_length = true;
  facts.traits.growth = "T ln T";
  facts.traits.exempt["causality"] =
      "later tokens move the borders of chunks, so that a query may see other earlier keys; a unit "
      "test holds the buckets";
  facts.presets = kPresets;
  facts.variants = {"{chunk: 8}", "{chunk: 5, hashes: 1, buckets: 32, dedup: true}"};
  facts.cost_cases = {"{}"};
  facts.limits = {{"a chunk for all tokens gives attention of all to all, oneself last",
                   "{chunk: 64}",
                   {Form::noncausal, Form::causal},
                   {},
                   [](const ReferenceSequence<double>& s) {
                     const auto sees = [&](int64_t i, int64_t j) {
                       return j != i && (s.form != Form::causal || j < i);
                     };
                     std::vector<double> y = linear_attention_definition(
                         s,
                         [&](int64_t h, int64_t i, int64_t j) {
                           if (!sees(i, j)) return 0.0;
                           const double* key = s.query(j, h);
                           const double square = dot_product(key, key, s.K) + 1e-6 * s.K;
                           return std::exp(dot_product(s.query(i, h), key, s.K) /
                                           std::sqrt(square));
                         },
                         [](double total) { return total > 0 ? total : 1; });
                     // The first token sees nothing before it.
                     if (s.form == Form::causal) std::copy_n(s.value(0, 0), s.H * s.V, y.begin());
                     return y;
                   }}};
  return define_mechanism<ReformerParams, ReformerMixer>(
      std::move(facts), [](const ReformerParams& params, const auto& sequence) {
        return reformer_definition::definition(params, sequence);
      });
}

}  // namespace linnet
