#include "layers/attention_sections.h"

#include "layers/models.h"

namespace linnet {

std::vector<AttentionSection> attention_sections(const ModelConfig& model) {
  const Form form = form_of_kind(model.kind);
  if (!kind_has_encoder(model.kind)) return {{"attention", &model.attention, form, model.layers}};
  std::vector<AttentionSection> sections{
      {"attention", &model.attention, Form::noncausal, model.layers}};
  const auto add = [&](const char* key, const ConfigNode& own, Form its_form) {
    if (own.is_null()) {
      sections.push_back(
          {"attention", &model.attention, its_form, model.layers_of_decoder(), true});
    } else {
      sections.push_back({key, &own, its_form, model.layers_of_decoder()});
    }
  };
  add("decoder_attention", model.decoder_attention, form);
  add("cross_attention", model.cross_attention, Form::cross);
  return sections;
}

std::string attention_text(const ConfigNode& model) {
  std::string text;
  for (const char* key : kAttentionKeys) {
    const ConfigNode* section = model.find(key);
    if (section == nullptr || section->is_null()) continue;
    text += text.empty() ? inline_text(*section) : concat(", ", key, ": ", inline_text(*section));
  }
  return text;
}

}  // namespace linnet
