#include "attention/mechanism.h"

#include <algorithm>

#include "core/suggest.h"

namespace linnet {

namespace {

std::string forms_of(const MixerTraits& traits) {
  std::string defined;
  for (const Form form : {Form::noncausal, Form::causal, Form::cross}) {
    if (traits.has(form)) defined += concat(defined.empty() ? "" : ", ", name_of(form));
  }
  return defined;
}

// Whether the form is there without that option. Others may not stand without it.
bool has_form_without(const Mechanism& mechanism, ConfigNode parameters, const std::string& option,
                      Form form) {
  parameters.erase(option);
  try {
    return mechanism.traits_of(parameters).has(form);
  } catch (const UsageError&) {
    return false;
  }
}

}  // namespace

void require_form(const std::string& mechanism, const MixerTraits& traits, Form form) {
  if (traits.has(form)) return;
  throw UsageError(concat("the literature defines no ", name_of(form), " form of '", mechanism,
                          "' with these options; it exists as: ", forms_of(traits)));
}

void require_form(const Mechanism& mechanism, const ConfigNode& parameters, Form form) {
  const MixerTraits traits = mechanism.traits_of(parameters);
  if (traits.has(form) || !parameters.is_map()) return require_form(mechanism.name, traits, form);
  for (const auto& [key, at, value] : parameters.entries()) {
    if (!has_form_without(mechanism, parameters, key, form)) continue;
    throw UsageError(
        {ErrorCode::conflict, key},
        concat("the literature defines no ", name_of(form), " form of '", mechanism.name, "' with ",
               key, ": ", inline_text(value), "; with it, it exists as: ", forms_of(traits)));
  }
  require_form(mechanism.name, traits, form);
}

void require_effect(const Mechanism& mechanism, const ConfigNode& parameters, Form form) {
  if (mechanism.form_options.empty()) return;
  ConfigNode unset = ConfigNode::map();
  if (const ConfigNode* preset = parameters.find("preset")) unset.set("preset", *preset);
  const ConfigNode given = mechanism.resolve(parameters), otherwise = mechanism.resolve(unset);
  for (const FormOption& option : mechanism.form_options) {
    const ConfigNode* value = given.find(option.key);
    const bool acts = std::count(option.forms.begin(), option.forms.end(), form) > 0;
    if (acts || value == nullptr || *value == *otherwise.find(option.key)) continue;
    if (!option.value.empty() && value->raw() != option.value) continue;
    throw UsageError({ErrorCode::conflict, option.key},
                     concat("'", option.key, ": ", inline_text(*value), "' of '", mechanism.name,
                            "' has no effect in the ", name_of(form), " form; leave it out"));
  }
}

ConfigNode apply_preset(const ConfigNode& parameters, const std::vector<Preset>& presets) {
  const ConfigNode* chosen = parameters.is_map() ? parameters.find("preset") : nullptr;
  if (chosen == nullptr || presets.empty()) return parameters;
  const std::string name = read_text(*chosen, "preset");
  if (name == "none") return parameters;
  std::vector<std::string> names{"none"};
  for (const Preset& preset : presets) {
    names.push_back(preset.name);
    if (preset.name != name) continue;
    ConfigNode merged = parameters;
    for (const auto& [key, text] : preset.options) {
      if (merged.contains(key)) continue;
      ConfigNode value = text == "null" ? ConfigNode() : ConfigNode::scalar(text);
      value.set_location(chosen->location());
      merged.set(key, std::move(value));
    }
    return merged;
  }
  throw located_error(chosen->location(), Cause{ErrorCode::unknown_name, "preset"},
                      "there is no preset '", name, "': ", suggestion(name, names));
}

}  // namespace linnet
