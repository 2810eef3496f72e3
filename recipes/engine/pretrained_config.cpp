// config.json of a pretrained model against a recipe.
#include <charconv>

#include "core/echo.h"
#include "core/files.h"
#include "core/json.h"
#include "recipes/engine/pretrained.h"

namespace linnet {
namespace {

constexpr uint64_t kMaxConfigBytes = 1 << 20;

const PretrainedFamily& family_of(const JsonValue& json, const std::string& path,
                                  const PretrainedFamily* family) {
  const JsonValue* type = json.find("model_type");
  if (type == nullptr && family != nullptr) return *family;
  const std::string name = type == nullptr ? "" : type->text();
  const PretrainedFamily* found = find_pretrained_family(name);
  require_usage(found != nullptr, Cause{ErrorCode::unknown_name, "model_type", path}, path,
                ": model_type is '", name, "'; ", pretrained_family_names(), " are known");
  require_usage(family == nullptr || family == found, Cause{ErrorCode::conflict, "init.map", path},
                path, ": model_type is '", name, "': set init.map=", name);
  return *found;
}

// What 0 stands for.
std::string default_of(const ModelConfig& model, const std::string& key) {
  if (key == "model.feed_forward_width") return concat(4 * model.width);
  return key == "model.decoder_layers" ? concat(model.layers) : "0";
}

bool equal(const std::string& a, const std::string& b) {
  if (a == b) return true;
  const auto number = [](const std::string& text) -> std::optional<double> {
    double value = 0;
    const char* end = text.data() + text.size();
    const auto result = std::from_chars(text.data(), end, value);
    return result.ptr == end && result.ec == std::errc() ? std::optional(value) : std::nullopt;
  };
  const std::optional<double> first = number(a);
  return first && first == number(b);
}

}  // namespace

PretrainedConfig load_pretrained_config(const std::string& folder, const PretrainedFamily* family) {
  PretrainedConfig config{join_path(folder, "config.json"), {}, nullptr, {}, {}, 0};
  require_usage(exists(config.path), Cause{ErrorCode::not_found, "init.from", config.path},
                "there is no ", config.path,
                ": name the folder of a pretrained model, with config.json and model.safetensors");
  config.json = parse_json(read_file(config.path, kMaxConfigBytes), config.path);
  try {
    config.family = &family_of(config.json, config.path, family);
    config.keys = recipe_keys(*config.family, config.json, false);
    config.rates = recipe_keys(*config.family, config.json, true);
    config.vocabulary = config.json.at("vocab_size").integer();
  } catch (const UsageError& error) {
    if (!error.place().empty()) throw;
    throw UsageError({error.code(), error.key(), config.path},
                     concat(config.path, ": ", error.what()));
  } catch (const Error& error) {
    throw Error({ErrorCode::malformed, error.key(), config.path},
                concat(config.path, ": ", error.what()));
  }
  return config;
}

std::string tokenizer_section(const std::string& folder, const PretrainedFamily& family) {
  const auto there = [&](const char* name) { return exists(join_path(folder, name)); };
  const auto section = [&](const char* kind, const std::string& path, const char* more = "") {
    return concat("{kind: ", kind, ", path: ", JsonValue(path).dump(), more, "}");
  };
  const std::string_view name = family.name;
  if (name == "bert" && there("vocab.txt")) {
    const std::string settings = join_path(folder, "tokenizer_config.json");
    bool lowercase = true;
    if (exists(settings)) {
      const JsonValue json = parse_json(read_file(settings, kMaxConfigBytes), settings);
      const JsonValue* found = json.is_object() ? json.find("do_lower_case") : nullptr;
      if (found != nullptr && found->kind() == JsonValue::Kind::boolean) {
        lowercase = found->boolean();
      }
    }
    return section("wordpiece", join_path(folder, "vocab.txt"),
                   lowercase ? "" : ", lowercase: false");
  }
  if (name == "roberta" && there("vocab.json") && there("merges.txt")) {
    return section("roberta", folder);
  }
  const bool published = there("encoder.json") && there("vocab.bpe");
  if (name == "gpt2" && (published || (there("vocab.json") && there("merges.txt")))) {
    return section("gpt2", folder);
  }
  if (there("tokenizer.json"))
    return section("tokenizer_json", join_path(folder, "tokenizer.json"));
  return "";
}

std::string model_value(const Recipe& recipe, const std::string& key) {
  const ModelConfig& model = recipe.model;
  if (key == "model.feed_forward_width") return concat(model.hidden_width());
  if (key == "model.max_positions" && model.max_positions == 0) {
    return concat(recipe.data.context + model.position_offset);
  }
  if (key == "model.decoder_layers") return concat(model.layers_of_decoder());
  const ConfigNode* node = recipe.resolved.find("model")->find(key.substr(key.find('.') + 1));
  return node == nullptr ? "" : node->raw();
}

void Pretrained::require_same_model(const Recipe& recipe) const {
  std::vector<Error::Problem> problems;
  std::string text;
  for (const RecipeKey& key : config_.keys) {
    const bool of_table = key.key == "model.max_positions" || key.key == "model.position_offset";
    if (of_table && recipe.model.positions != "learned") continue;  // told by model.positions
    // Heads of examples have no table of tokens.
    if (key.key == "model.tie_embeddings" && !recipe.model.predicts_tokens()) continue;
    const std::string value = model_value(recipe, key.key);
    if (equal(value, key.value == "0" ? default_of(recipe.model, key.key) : key.value)) continue;
    const std::string problem =
        concat(config_.path, ": the model has ", key.why, ", and the recipe's ", key.key, " is ",
               value, ": set ", key.key, "=", key.value);
    problems.push_back({ErrorCode::conflict, key.key, config_.path, problem});
    text += concat(text.empty() ? "" : "\n", problem);
  }
  if (!problems.empty()) throw UsageError(std::move(problems), text);
}

}  // namespace linnet
