// Augmentation: options, branches, and their addition to a registry entry.
#include "attention/augment.h"

#include "attention/common/conv_branch.h"
#include "attention/common/grouped/branches.h"
#include "autograd/arithmetic.h"

namespace linnet {
namespace {

constexpr const char* kOption = "augment";
constexpr const char* kStates = "augment.";

struct AugmentParams {
  int64_t conv = 63;
  std::optional<int64_t> local;
  GroupKernel kappa = GroupKernel::relu2_l2;
  std::string conv_init = "zero";

  static void describe(ConfigDescription<AugmentParams>& d) {
    d.field("conv", &AugmentParams::conv,
            "taps of a centred filter of the values; a causal layer has the taps of the token and "
            "before it; 0: no convolution")
        .range(0, 4095)
        .unit("tokens");
    d.field("local", &AugmentParams::local,
            "tokens of a group for attention inside groups; null: none")
        .range(1, 1 << 20)
        .unit("tokens");
    describe_group_kernel(d);
    describe_conv_init(d);
  }
};

class Augmentation : public MixBranches {
 public:
  Augmentation(const AugmentParams& params, const MixerOptions& options,
               const ParameterScope& own) {
    if (params.conv > 0) conv_.emplace(params.conv, params.conv_init, options, own.child(kOption));
    if (params.local) local_.emplace(params.kappa, *params.local, options);
  }

  AttentionMixer::MixResult mix(const MixInput& input, const MixerContext& context,
                                const MixerState& state) const override {
    refuse_key_positions(context, kOption);
    if (!conv_) return local_->mix(input, context, state, kStates);
    AttentionMixer::MixResult result = conv_->mix(input.v, context, state, kStates);
    if (!local_) return result;
    AttentionMixer::MixResult local = local_->mix(input, context, state, kStates);
    result.y = add(result.y, local.y);
    result.state.merge(local.state);
    return result;
  }

  MixerCost cost(const MixerShape& shape) const override {
    MixerCost cost = conv_ ? conv_->cost(shape) : MixerCost();
    if (!local_) return cost;
    const MixerCost local = local_->cost(shape);
    cost.mixing += local.mixing;
    cost.bytes += local.bytes;
    return cost;
  }

 private:
  std::optional<ConvBranch> conv_;
  std::optional<GroupBranch> local_;
};

// Keys of its errors begin with the option, as those of the mechanism's own parameters do not.
AugmentParams parse_augment(const ConfigNode& node) {
  try {
    return parse_config<AugmentParams>(node);
  } catch (const UsageError& error) {
    std::vector<Error::Problem> problems = error.problems();
    for (Error::Problem& problem : problems) problem.key = key_in(kOption, problem.key);
    throw UsageError(std::move(problems), error.what());
  }
}

// A mechanism's own parameters, and the augmentation if there is one.
struct Split {
  ConfigNode own;
  std::optional<AugmentParams> augment;

  // `possible`: whether messages about other keys list the option.
  Split(const ConfigNode& parameters, bool possible) : own(parameters) {
    if (possible && own.is_map()) own.take(kOption);
    const ConfigNode* node = parameters.is_map() ? parameters.find(kOption) : nullptr;
    if (node == nullptr) return;
    if (!node->is_null()) {
      augment = parse_augment(*node);
      if (augment->conv == 0 && !augment->local) {
        throw located_error(node->location(), Cause{ErrorCode::conflict, kOption},
                            "augment adds nothing: give conv taps, or local a size");
      }
    }
    own.erase(kOption);
  }
};

template <typename Number>
std::vector<Number> augmented(std::vector<Number> y, const std::optional<AugmentParams>& augment,
                              const ReferenceSequence<Number>& s) {
  if (!augment || s.form == Form::cross) return y;
  if (augment->conv > 0) add_conv_definition(s, augment->conv, "augment.conv", y);
  if (augment->local) add_group_definition(s, augment->kappa, *augment->local, y);
  return y;
}

}  // namespace

ConfigSchema augmentation_schema() {
  return schema_of<AugmentParams>();
}

bool takes_augmentation(const TokenMixer& mixer, Form form) {
  const auto* attention = dynamic_cast<const AttentionMixer*>(&mixer);
  return form != Form::cross && attention != nullptr && attention->projections().v;
}

Mechanism augmentable(Mechanism host) {
  const bool possible = host.between_projections;
  host.traits_of = [possible, traits_of = std::move(host.traits_of)](const ConfigNode& parameters) {
    const Split split(parameters, possible);
    MixerTraits traits = traits_of(split.own);
    traits.grouped_queries &= !split.augment;  // a branch has as many heads of values as of queries
    return traits;
  };
  host.resolve = [possible, resolve = std::move(host.resolve)](const ConfigNode& parameters) {
    const Split split(parameters, possible);
    ConfigNode resolved = resolve(split.own);
    if (split.augment) resolved.set(kOption, to_config_node(*split.augment));
    return resolved;
  };
  host.bind = [possible, bind = std::move(host.bind),
               name = host.name](const ConfigNode& parameters) -> MixerFactory {
    const Split split(parameters, possible);
    if (!split.augment) return bind(split.own);
    return [make = bind(split.own), augment = *split.augment, name](const MixerOptions& options,
                                                                    const MixerScope& scope) {
      std::unique_ptr<TokenMixer> mixer = make(options, scope);
      auto* attention = dynamic_cast<AttentionMixer*>(mixer.get());
      require_usage(
          attention != nullptr, "augment: '", name,
          "' has no queries, keys and values of heads to put branches beside; remove augment");
      const Projections& projections = attention->projections();
      require_usage(projections.v, Cause{ErrorCode::conflict, kOption}, "augment: '", name,
                    "' with these options projects no values of every head to put branches beside; "
                    "remove augment");
      require_usage(!augment.local || (projections.q && projections.k),
                    Cause{ErrorCode::conflict, key_in(kOption, "local")},
                    "augment: attention inside groups needs queries and keys, and '", name,
                    "' does not project both; leave out local");
      if (takes_augmentation(*mixer, options.form)) {
        attention->augment(std::make_shared<Augmentation>(augment, options, scope.own));
      }
      return mixer;
    };
  };
  if (host.reference) {
    host.reference = [possible, reference = std::move(host.reference)](
                         const ConfigNode& parameters, const ReferenceSequence<double>& s) {
      const Split split(parameters, possible);
      return augmented(reference(split.own, s), split.augment, s);
    };
  }
  if (host.reference_f32) {
    host.reference_f32 = [possible, reference = std::move(host.reference_f32)](
                             const ConfigNode& parameters, const ReferenceSequence<float>& s) {
      const Split split(parameters, possible);
      return augmented(reference(split.own, s), split.augment, s);
    };
  }
  return host;
}

}  // namespace linnet
