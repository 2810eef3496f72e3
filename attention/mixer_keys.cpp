#include "attention/mixer_keys.h"

#include <algorithm>

namespace linnet {
namespace {

void require_sizes(const ConfigNode& config) {
  std::vector<Error::Problem> missing;
  std::string names;
  for (const char* key : {"width", "heads"}) {
    if (config.contains(key)) continue;
    missing.push_back({ErrorCode::missing_key, key, config.location().text(), ""});
    names += concat(names.empty() ? "'" : " and '", key, "'");
  }
  if (missing.empty()) return;
  const std::string text = concat(config.location().text(), ": the config lacks ", names);
  for (Error::Problem& problem : missing) problem.text = text;
  throw UsageError(std::move(missing), text);
}

// The limits of recipes.
constexpr int64_t kMaxWidth = 65536, kMaxHeads = 1024;

void take_size(ConfigNode& config, const char* key, int64_t least, int64_t most, int64_t& value) {
  if (const ConfigNode* node = config.find(key)) {
    value = read_int(*node, key);
    if (value < least || value > most) {
      throw located_error(node->location(), Cause{ErrorCode::out_of_range, key}, "'", key,
                          "' must be ", least, " to ", most, ", found ", value);
    }
  }
  config.take(key);
}

// Whether `bias: value` is of the projections: the mechanism has no such option, or one that does
// not take true and false.
bool is_projection_bias(const ConfigNode& value, const Mechanism& mechanism) {
  const ConfigSchema schema = mechanism.schema();
  const FieldSchema* own = schema.find("bias");
  if (own == nullptr) return true;
  const bool boolean =
      value.is_scalar() && !value.quoted() && (value.raw() == "true" || value.raw() == "false");
  return boolean && !own->choices.empty() &&
         std::count(own->choices.begin(), own->choices.end(), value.raw()) == 0;
}

void take_bias(ConfigNode& config, const Mechanism& mechanism, bool& bias) {
  const ConfigNode* own = config.find("projection_bias");
  if (own != nullptr) bias = read_bool(*own, "projection_bias");
  const ConfigNode* other = config.find("bias");
  if (other != nullptr && is_projection_bias(*other, mechanism)) {
    if (own != nullptr) {
      throw located_error(other->location(), Cause{ErrorCode::conflict, "bias"},
                          "bias and projection_bias mean the same here; remove one");
    }
    bias = read_bool(*other, "bias");
    config.erase("bias");
  }
  config.take("projection_bias");
}

}  // namespace

void take_mixer_keys(ConfigNode& config, const Mechanism& mechanism, bool sizes_required,
                     MixerOptions& options) {
  if (sizes_required) require_sizes(config);
  const Location width_at = config.location_of("width");
  const Location rotary_at = config.location_of("rotary_width");
  take_size(config, "width", 1, kMaxWidth, options.width);
  take_size(config, "heads", 1, kMaxHeads, options.heads);
  take_size(config, "rotary_width", 0, kMaxWidth, options.rotary_width);
  take_bias(config, mechanism, options.bias);
  if (options.width % options.heads != 0) {
    throw located_error(width_at, Cause{ErrorCode::conflict, "width"}, "width ", options.width,
                        " must be a multiple of heads ", options.heads);
  }
  if (options.rotary_width % 2 != 0) {
    throw located_error(rotary_at, Cause{ErrorCode::out_of_range, "rotary_width"},
                        "rotary_width counts pairs of channels and must be even, found ",
                        options.rotary_width);
  }
}

}  // namespace linnet
