#include "attention/mechanism.h"

#include "core/suggest.h"

namespace linnet {

void require_form(const std::string& mechanism, const MixerTraits& traits, Form form) {
  if (traits.has(form)) return;
  std::string defined;
  for (const Form other : {Form::noncausal, Form::causal, Form::cross}) {
    if (traits.has(other)) defined += concat(defined.empty() ? "" : ", ", name_of(other));
  }
  throw UsageError(concat("the literature defines no ", name_of(form), " form of '", mechanism,
                          "' with these options; it exists as: ", defined));
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
