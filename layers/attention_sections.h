// The sections of `model:` that name mechanisms.
#pragma once

#include <string>
#include <vector>

#include "layers/model_config.h"
#include "layers/token_mixer.h"

namespace linnet {

// One stack's self-attention, or the decoder's cross-attention.
struct AttentionSection {
  const char* key;         // "attention": where the recipe names it
  const ConfigNode* node;  // of the config
  Form form;
  int64_t layers;
  bool shared = false;  // it is the encoder's section, since the recipe has none of its own
};

// "attention" alone, or, of kind encoder_decoder, those of the encoder, of the decoder, and of what
// reads the encoder; each of another form. Valid as long as the config.
std::vector<AttentionSection> attention_sections(const ModelConfig& model);

// The keys of a model that name mechanisms.
inline constexpr const char* kAttentionKeys[] = {"attention", "decoder_attention",
                                                 "cross_attention"};

// "{name: lavo}", or with a decoder's own "{name: lavo}, cross_attention: {name: softmax}": of the
// section `model` of a recipe.
std::string attention_text(const ConfigNode& model);

}  // namespace linnet
