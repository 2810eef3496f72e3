// BigBird: parameters, mixer, literal definition, registry entry.
#include "attention/bigbird/bigbird.h"

#include "attention/common/mixer_support.h"
#include "attention/common/token_slices.h"
#include "attention/define.h"
#include "attention/primitives/listed_attention/listed_attention.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"survey",
     "the survey's runs: blocks of K/4, one random, redrawn (there by every forward pass)",
     {{"rule", "released"}, {"resample", "step"}}},
    {"lavo",
     "LAVO's Long Range Arena baseline, by Skyformer's code (one pattern for all layers there)",
     {{"block", "64"}, {"random", "3"}, {"rule", "released"}}},
    {"leapformer",
     "LeaPformer's Long Range Arena runs, by the same code",
     {{"block", "64"}, {"random", "3"}, {"rule", "released"}}},
    {"original",
     "the paper's base model: blocks of 64, three random",
     {{"block", "64"}, {"random", "3"}}}};

Initializer init_unit_interval() {
  return [](const Tensor& values, const RandomKey& key) {
    const Shape& shape = values.shape();
    std::vector<double> draws(static_cast<size_t>(values.elements()));
    for (int64_t i = 0; i < values.elements(); ++i) {
      draws[static_cast<size_t>(i)] = block_draw(key, shape[1], shape[2], i);
    }
    values.copy_from(Tensor::from(draws, shape));
  };
}

class BigbirdMixer : public AttentionMixer {
 public:
  BigbirdMixer(const BigbirdParams& params, const MixerOptions& options, const MixerScope& scope)
      : AttentionMixer(options, scope),
        params_(params),
        block_(params.block_size(options)),
        rows_(params.rows(options)),
        length_(params.length(options)) {
    if (params.random == 0) return;
    draws_ =
        scope.own.buffer("numbers", {options.heads, rows_, params.random}, init_unit_interval());
  }

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState&) const override {
    require_usage(!context.segments.defined(),
                  "bigbird counts its blocks from the beginning of a row; do not pack documents "
                  "into rows");
    const int64_t T = input.q.size(1);
    require_usage(T <= length_, "bigbird: ", T, " tokens are more than the ", length_,
                  " that random blocks were drawn for; raise max_length (or the training context)");
    BlockAttentionContext block = block_context(options(), context);
    block.options.scale = params_.scale.value_or(default_scale(options()));
    const BlockChoice choice = choice_of(T);
    if (choice.everything()) {
      return {block_attention({input.q, input.k, input.v, {}, {}, {}}, block), {}};
    }
    const int64_t last = (choice.blocks() - 1) * block_;
    block.cross = true;
    const auto to_all = [&](int64_t begin, int64_t end) {
      block.query_mask = tokens_of(context.key_mask, begin, end);
      return block_attention({tokens_of(input.q, begin, end), input.k, input.v, {}, {}, {}}, block);
    };
    ListedAttentionContext at;
    at.options.scale = block.options.scale;
    at.options.group = block_;
    at.index = block_index(choice, blocks(choice, context, input.q.value().device()));
    at.query_mask = tokens_of(context.key_mask, block_, last);
    at.key_mask = context.key_mask;
    const Variable middle =
        listed_attention({tokens_of(input.q, block_, last), input.k, input.v, {}}, at).y;
    return {join_tokens({to_all(0, block_), middle, to_all(last, T)}), {}};
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    const double pair = static_cast<double>(shape.batch) * 2 * static_cast<double>(options().width);
    const int64_t T = shape.queries;
    const BlockChoice choice = choice_of(T);
    MixerCost cost;
    if (params_.random > 0) {
      cost.bytes = static_cast<double>(options().heads * rows_ * params_.random) *
                   static_cast<double>(size_of(sum_dtype(shape.dtype)));
    }
    if (choice.everything()) {
      cost.mixing = pair * static_cast<double>(T) * static_cast<double>(T);
      return cost;
    }
    const int64_t last = (choice.blocks() - 1) * block_, of_last = T - last;
    int64_t pairs = (block_ + of_last) * T;
    for (int64_t row = 1; row <= choice.rows(); ++row) {
      const int64_t whole = 1 + (row == 1 ? 0 : 1) + 1 + (row == choice.rows() ? 0 : 1);
      pairs += block_ * ((whole + params_.random) * block_ + of_last);
    }
    cost.mixing = pair * static_cast<double>(pairs);
    return cost;
  }

  int64_t length_limit() const override { return length_; }

 private:
  BlockChoice choice_of(int64_t tokens) const {
    return {params_.rule, tokens, block_, params_.random};
  }

  // The random blocks of every head and row, i32 [H, rows, random].
  Tensor blocks(const BlockChoice& choice, const MixerContext& context, Device device) const {
    const Shape shape{options().heads, choice.rows(), params_.random};
    if (params_.random == 0) return Tensor::empty(shape, DType::i32, device);
    for (int64_t row = 1; row <= choice.rows(); ++row) {
      const int64_t candidates = choice.candidates(row).count();
      require_usage(candidates >= params_.random, "bigbird: the released code offers row ", row,
                    " of blocks only ", candidates, " of them at ", choice.tokens,
                    " tokens; lower random or block, or use rule: uniform");
    }
    const Tensor chosen_blocks = chosen(context, "blocks", shape, device, [&] {
      return choose_blocks(choice, draws(shape, context, device));
    });
    if (context.record != nullptr && context.record->given_choices.contains("blocks")) {
      for (const int32_t block : chosen_blocks.to_vector<int32_t>()) {
        require_usage(block >= 0 && block < choice.blocks(), "choices/blocks: there is no block ",
                      block, " among ", choice.blocks());
      }
    }
    return chosen_blocks;
  }

  // The stored draws, or, in training with resample: step, the draws of the update.
  Tensor draws(const Shape& shape, const MixerContext& context, Device device) const {
    if (params_.resample == "never" || !context.training) return draws_.value();
    const RandomKey key = draw_key(context).at("blocks");
    // Draws that are given or noted pass through the host; others are made on `device`.
    if (context.record == nullptr) return block_draws(key, shape, device);
    return drawn(context, "numbers", shape, [&] { return block_draws(key, shape, Device{}); })
        .to(DType::f32)
        .to(device);
  }

  BigbirdParams params_;
  int64_t block_, rows_, length_;
  Variable draws_;
};

// How often query i of a head sees key j; `chosen`: the head's random blocks, row by row.
int64_t multiplicity(const BlockChoice& choice, int64_t i, int64_t j,
                     const std::vector<int32_t>& chosen, int64_t head) {
  const int64_t row = i / choice.block, block = j / choice.block, last = choice.blocks() - 1;
  if (choice.everything() || row == 0 || row == last) return 1;
  int64_t count = block == 0 || block == last || std::abs(row - block) <= 1 ? 1 : 0;
  for (int64_t r = 0; r < choice.random; ++r) {
    const int64_t at = (head * choice.rows() + row - 1) * choice.random + r;
    count += chosen[static_cast<size_t>(at)] == block ? 1 : 0;
  }
  return count;
}

template <typename Number>
std::vector<Number> definition(const BigbirdParams& params, const ReferenceSequence<Number>& s) {
  const auto scale =
      static_cast<Number>(params.scale.value_or(1 / std::sqrt(static_cast<double>(s.K))));
  const BlockChoice choice{params.rule, s.padded_length, params.block_size(s.options),
                           params.random};
  // The recorded choices; else its own, drawn from a list of the remaining blocks.
  std::vector<int32_t> chosen;
  if (s.choices.contains("blocks")) {
    chosen = s.choices.at("blocks").template to_vector<int32_t>();
  } else if (!choice.everything() && params.random > 0) {
    const std::vector<Number>& draws = s.parameter("numbers");
    const int64_t stored = params.rows(s.options);
    for (int64_t h = 0; h < s.H; ++h) {
      for (int64_t row = 1; row <= choice.rows(); ++row) {
        const BlockCandidates candidates = choice.candidates(row);
        std::vector<int32_t> left;
        for (int64_t block = 1; block <= candidates.last; ++block) {
          const auto* end = std::end(candidates.excluded);
          if (std::find(std::begin(candidates.excluded), end, block) == end) {
            left.push_back(static_cast<int32_t>(block));
          }
        }
        for (int64_t r = 0; r < params.random; ++r) {
          const auto at = static_cast<size_t>((h * stored + row - 1) * params.random + r);
          const auto size = static_cast<double>(left.size());
          const double place = std::clamp(static_cast<double>(draws[at]) * size, 0.0, size - 1);
          const auto taken = left.begin() + static_cast<int64_t>(place);
          chosen.push_back(*taken);
          left.erase(taken);
        }
      }
    }
  }
  const Number nothing = -std::numeric_limits<Number>::infinity();
  return softmax_attention_reference(
      s, scale, [](int64_t, int64_t) { return true; },
      [&](int64_t h, int64_t i, int64_t j) {
        const int64_t count = multiplicity(choice, i, j, chosen, h);
        return count == 0 ? nothing : std::log(static_cast<Number>(count));
      });
}

}  // namespace

void BigbirdParams::describe(ConfigDescription<BigbirdParams>& d) {
  describe_preset(d, kPresets);
  d.field("block", &BigbirdParams::block, "tokens b of a block; null: a quarter of a head's width")
      .range(1, 1 << 20)
      .unit("tokens");
  d.field("random", &BigbirdParams::random, "random blocks r of a row of blocks").range(0, 1024);
  d.choice("rule", &BigbirdParams::rule,
           {{"uniform", BlockRule::uniform}, {"released", BlockRule::released}},
           "random blocks are any outside the window, or those that the released code draws from");
  d.choice("resample", &BigbirdParams::resample, {"never", "step"},
           "keep the blocks that were drawn with the model, or draw others for every update "
           "(evaluation keeps them)");
  d.field("max_length", &BigbirdParams::max_length,
          "longest sequence with random blocks; 0: the training context")
      .range(0, 1 << 24)
      .unit("tokens");
  describe_scale(d, "factor of q . k; null: 1/sqrt(K)");
}

int64_t BigbirdParams::block_size(const MixerOptions& options) const {
  return block.value_or(std::max<int64_t>(1, options.head_width() / 4));
}

int64_t BigbirdParams::length(const MixerOptions& options) const {
  const int64_t length = max_length > 0 ? max_length : options.max_length;
  require_usage(length > 0,
                "bigbird: random blocks are drawn for a length; set max_length (or the "
                "training context)");
  return length;
}

int64_t BigbirdParams::rows(const MixerOptions& options) const {
  const int64_t size = block_size(options);
  return std::max<int64_t>(1, (length(options) + size - 1) / size - 2);
}

Mechanism bigbird_mechanism() {
  Mechanism facts;
  facts.name = "bigbird";
  facts.title = "BigBird: blocks with neighbours, global and random blocks";
  facts.equation =
      "y_i = sum_j softmax_j(scale q_i . k_j) v_j over the blocks {0, c-1, c, c+1, last} of i's\n"
      "block c and r random ones; the first and the last block read all tokens";
  facts.complexity = "time B H T (7 + r) b (K + V), memory B H T (K + V)";
  facts.sources = "Zaheer et al. 2020, Big Bird; its released code (rule: released)";
  facts.traits.noncausal = true;
  facts.traits.depends_on_length = true;
  facts.traits.growth = "T b (7 + r)";
  facts.presets = kPresets;
  facts.cost_cases = {"{block: 16, random: 3}"};
  facts.variants = {"{block: 5, random: 3}", "{block: 4, random: 2, rule: released, scale: 1}",
                    "{block: 3, random: 0}"};
  facts.limits = {{"too few blocks for a pattern give softmax attention",
                   "{block: 10, random: 1}",
                   {Form::noncausal},
                   {},
                   [](const ReferenceSequence<double>& s) {
                     return softmax_attention_reference(
                         s, 1 / std::sqrt(static_cast<double>(s.K)),
                         [](int64_t, int64_t) { return true; },
                         [](int64_t, int64_t, int64_t) { return 0.0; });
                   }}};
  return define_mechanism<BigbirdParams, BigbirdMixer>(
      std::move(facts), [](const BigbirdParams& params, const auto& sequence) {
        return definition(params, sequence);
      });
}

}  // namespace linnet
