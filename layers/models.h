// The kinds of models, by name: which form of attention their blocks have, and whether they read an
// encoder.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "layers/token_mixer.h"

namespace linnet {

// The values of model.kind.
std::vector<std::string> model_kinds();

// The attention of the blocks of that kind. Throws UsageError for an unknown kind.
Form form_of_kind(std::string_view kind);

// Whether an encoder of the same row stands before these blocks, which read it by cross-attention.
// Throws UsageError for an unknown kind.
bool kind_has_encoder(std::string_view kind);

}  // namespace linnet
