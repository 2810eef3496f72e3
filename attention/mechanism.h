// An entry of the registry of attention mechanisms: facts, typed parameters, a mixer, a literal
// definition; with its presets and the check of its forms.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attention/reference.h"
#include "core/config.h"
#include "layers/token_mixer.h"

namespace linnet {

// Options as one paper ran the mechanism, chosen by `preset: NAME`; explicit options win.
struct Preset {
  std::string name;
  std::string source;                                        // whose choice, and why
  std::vector<std::pair<std::string, std::string>> options;  // key and YAML text
};

// A statement of the mechanism's specification that the conformance suite verifies: with these
// parameters the mechanism equals something simpler.
struct LimitingCase {
  std::string statement;   // "window >= T equals softmax"
  std::string parameters;  // YAML flow text
  std::vector<Form> forms;
  // Changes a parameter tensor (by its own name) or the sequence's k before both sides run; may be
  // empty.
  std::function<void(const std::string& name, std::vector<double>& values)> adjust;
  // The required context [T,H,V] of one sequence.
  std::function<std::vector<double>(const ReferenceSequence<double>&)> expected;
};

// An option that acts in these forms alone: all of its values but the default, or one.
struct FormOption {
  std::string key;
  std::vector<Form> forms;
  std::string value = "";  // "": all
};

struct Mechanism {
  std::string name;        // as recipes write it: "lavo"
  std::string title;       // "Linear attention via orthogonal memory"
  std::string equation;    // one to a few lines of plain text
  std::string complexity;  // time and memory in B, T, H, K
  std::string sources;     // papers
  // Traits for the default parameters; traits_of(parameters) gives those for others.
  MixerTraits traits;
  std::function<MixerTraits(const ConfigNode& parameters)> traits_of;
  // Its typed parameters, without `name`.
  std::function<ConfigSchema()> schema;
  // Parameters with all defaults filled. Throws UsageError as parse_config does.
  std::function<ConfigNode(const ConfigNode& parameters)> resolve;
  // Reads the recipe's section without `name` once. The factory holds the typed parameters and
  // makes the mixer of any layer from them. Throws UsageError as parse_config does; the factory
  // throws it when the form or the length is not defined for this mechanism.
  std::function<MixerFactory(const ConfigNode& parameters)> bind;
  // The same for one layer alone.
  std::unique_ptr<TokenMixer> make(const ConfigNode& parameters, const MixerOptions& options,
                                   const MixerScope& scope) const {
    return bind(parameters)(options, scope);
  }
  // The literal definition, O(T^2) if that is simplest, in double and in plain float: the context
  // [T,H,V] of one sequence. Shares no code with the kernels.
  std::function<std::vector<double>(const ConfigNode& parameters, const ReferenceSequence<double>&)>
      reference;
  std::function<std::vector<float>(const ConfigNode& parameters, const ReferenceSequence<float>&)>
      reference_f32;
  std::vector<Preset> presets;
  // Options without effect in some form, which recipes of that form are refused for.
  std::vector<FormOption> form_options;
  std::vector<LimitingCase> limits;
  // Small parameter sets that the conformance suite runs besides the defaults, as YAML flow text.
  std::vector<std::string> variants;
  // Parameter sets so large, for heads of 128, that corner tiles hardly count: there the suite
  // compares the operations that kernels execute with the declared cost.
  std::vector<std::string> cost_cases{"{}"};
  // Its mixer stands between the four projections of an AttentionMixer, where branches can be
  // added.
  bool between_projections = false;
  // Width of a head at which the suite runs the defaults (variants: 8).
  int64_t check_head_width = 8;
};

// `parameters` with the options of its `preset` where it does not set them itself. Throws
// UsageError with suggestions for an unknown preset.
ConfigNode apply_preset(const ConfigNode& parameters, const std::vector<Preset>& presets);

// Throws UsageError, saying which forms are defined, unless the mechanism has this one.
void require_form(const std::string& mechanism, const MixerTraits& traits, Form form);
// The same for its traits with these parameters; names the option that rules the form out, where
// one alone does.
void require_form(const Mechanism& mechanism, const ConfigNode& parameters, Form form);

// Throws UsageError, whose key is the option, for one of the mechanism's form_options that has no
// effect in this form and another value than the defaults or the preset give it.
void require_effect(const Mechanism& mechanism, const ConfigNode& parameters, Form form);

}  // namespace linnet
