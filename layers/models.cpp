#include "layers/models.h"

#include <algorithm>
#include <iterator>

namespace linnet {
namespace {

struct ModelKind {
  const char* name;
  Form form;
  bool has_encoder;
};

constexpr ModelKind kKinds[] = {
    {"decoder", Form::causal, false},
    {"encoder", Form::noncausal, false},
    {"encoder_decoder", Form::causal, true},
};

const ModelKind& find_kind(std::string_view kind) {
  const auto* found = std::find_if(std::begin(kKinds), std::end(kKinds),
                                   [kind](const ModelKind& each) { return kind == each.name; });
  require_usage(found != std::end(kKinds), Cause{ErrorCode::unknown_name, "model.kind"},
                "there is no model.kind '", kind, "'");
  return *found;
}

}  // namespace

std::vector<std::string> model_kinds() {
  std::vector<std::string> names;
  for (const ModelKind& kind : kKinds) names.emplace_back(kind.name);
  return names;
}

Form form_of_kind(std::string_view kind) {
  return find_kind(kind).form;
}

bool kind_has_encoder(std::string_view kind) {
  return find_kind(kind).has_encoder;
}

}  // namespace linnet
