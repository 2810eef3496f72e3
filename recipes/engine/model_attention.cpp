#include "recipes/engine/model_attention.h"

#include <algorithm>
#include <map>
#include <optional>

#include "attention/layer_choice.h"
#include "attention/registry.h"
#include "layers/attention_sections.h"
#include "layers/models.h"

namespace linnet {
namespace {

// The encoder's section may lack a form that the decoder needs.
UsageError with_own_key(const AttentionSection& section, const UsageError& error) {
  const char* own = section.form == Form::cross ? "cross_attention" : "decoder_attention";
  std::vector<Error::Problem> problems = error.problems();
  const std::string advice = concat("; the decoder may have another: set model.", own);
  for (Error::Problem& problem : problems) problem.text += advice;
  return {std::move(problems), error.what() + advice};
}

}  // namespace

ModelAttention resolve_model_attention(const ModelConfig& model, const ConfigNode& given,
                                       ConfigErrors& errors) {
  ModelAttention all;
  std::map<Form, MixerFactory> of_form;
  const auto report = [&](const AttentionSection& section, const UsageError& error) {
    if (given.contains(section.key)) errors.add_conflicts(error, concat("model.", section.key));
  };
  const std::vector<std::string> kinds = model_kinds();
  if (std::count(kinds.begin(), kinds.end(), model.kind) == 0) return all;  // refused already
  for (const AttentionSection& section : attention_sections(model)) {
    if (section.shared && all.sections.empty()) continue;  // the encoder's is refused already
    try {
      ResolvedAttention resolved = resolve_attention(*section.node, section.form, section.layers);
      of_form[section.form] = std::move(resolved.mixer);
      if (!section.shared) all.sections.emplace_back(section.key, std::move(resolved.node));
    } catch (const UsageError& error) {
      report(section, section.shared ? with_own_key(section, error) : error);
    }
  }
  all.mixer = [of_form = std::move(of_form)](const MixerOptions& options, const MixerScope& scope) {
    return of_form.at(options.form)(options, scope);
  };
  return all;
}

void require_attention_effects(const ModelConfig& model) {
  std::map<const ConfigNode*, std::optional<UsageError>> refusals;
  for (const AttentionSection& section : attention_sections(model)) {
    const auto [refusal, first] = refusals.try_emplace(section.node);
    if (!first && !refusal->second) continue;  // all of its options act in a form before
    refusal->second.reset();
    for (LayerChoice& choice : layer_choices(*section.node, section.layers)) {
      const std::string name = choice.attention.find("name")->raw();
      choice.attention.erase("name");
      try {
        require_effect(find_mechanism(name), choice.attention, section.form);
      } catch (const UsageError& error) {
        refusal->second = UsageError(
            {error.code(), concat("model.", section.key, ".", error.key())}, error.what());
        break;
      }
    }
  }
  for (const auto& [node, refusal] : refusals) {
    if (refusal) throw UsageError(*refusal);
  }
}

}  // namespace linnet
