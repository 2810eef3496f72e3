#include "recipes/engine/model_builder.h"

#include <algorithm>

#include "attention/layer_choice.h"
#include "attention/registry.h"
#include "core/device.h"
#include "layers/attention_sections.h"
#include "layers/models.h"

namespace linnet {
namespace {

// The complaint of a layer's mechanism, at the section that names it.
UsageError of_layer(const Recipe& recipe, const MixerOptions& options, const UsageError& error) {
  for (const AttentionSection& section : attention_sections(recipe.model)) {
    if (section.form != options.form) continue;
    for (const LayerChoice& choice : layer_choices(*section.node, section.layers)) {
      const auto& layers = choice.layers;
      if (std::count(layers.begin(), layers.end(), options.layer) == 0) continue;
      const bool general = error.code() == ErrorCode::general;
      const ErrorCode code = general ? ErrorCode::conflict : error.code();
      const std::string key = key_in(concat("model.", section.key), error.key());
      const Location where = choice.attention.location_of(error.key());
      if (where.file == nullptr) return UsageError({code, key}, error.what());
      return located_error(where, Cause{code, key}, error.what());
    }
  }
  return error;
}

}  // namespace

std::unique_ptr<Transformer> declare_model(const Recipe& recipe, const ModelSizes& sizes) {
  require(recipe.mixer != nullptr, "declare_model: the recipe is not one of parse_recipe()");
  const MixerFactory mixer = [&recipe](const MixerOptions& options, const MixerScope& scope) {
    try {
      return recipe.mixer(options, scope);
    } catch (const UsageError& error) {
      if (!error.place().empty() || error.key() == "model") throw;
      throw of_layer(recipe, options, error);
    }
  };
  return std::make_unique<Transformer>(recipe.model, sizes, mixer);
}

std::unique_ptr<Transformer> build_model(const Recipe& recipe, const ModelSizes& sizes,
                                         Device device, ModelUse use) {
  const ModelConfig& config = recipe.model;
  std::unique_ptr<Transformer> model = declare_model(recipe, sizes);
  require_model_memory(recipe, *model, device, use);
  const bool bf16_values = recipe.train.precision == Precision::bf16;
  try {
    model->parameters().materialize(static_cast<uint64_t>(recipe.seed), DType::f32,
                                    bf16_values ? DType::bf16 : DType::f32, device);
    if (model->medusa() != nullptr) {
      std::vector<std::string> all;
      for (const auto& entry : model->parameters().entries()) all.push_back(entry.name);
      begin_as_head(model->parameters(), all);
    }
  } catch (const OutOfMemory& error) {
    throw OutOfMemory(
        concat(error.what(), ", for a model of ", model->parameters().count(),
               " parameters; lower model.width (", config.width, "), model.layers (", config.layers,
               ") or model.feed_forward_width (", config.hidden_width(), ")"),
        error.requested, error.free, error.held);
  }
  return model;
}

void require_context(const Transformer& model, int64_t context) {
  const int64_t limit = model.length_limit();
  require_usage(limit == 0 || context <= limit, Cause{ErrorCode::out_of_range, "data.context"},
                "data.context ", context, " is longer than the model can process, ", limit, ": ",
                model.length_limit_reason());
}

void require_decode_state(const Transformer& model, std::string_view what) {
  const ModelConfig& config = model.config();
  require_usage(form_of_kind(config.kind) == Form::causal, Cause{ErrorCode::conflict, "model.kind"},
                what, " needs a model whose tokens see no later ones, and this one is of kind ",
                config.kind, ": train one of kind decoder");
  for (const AttentionSection& section : attention_sections(config)) {
    if (section.form == Form::noncausal) continue;
    const std::string key = concat("model.", section.key);
    const Cause cause{ErrorCode::conflict, key};
    for (const LayerChoice& choice : layer_choices(*section.node, section.layers)) {
      ConfigNode parameters = choice.attention;
      const std::string name = parameters.find("name")->raw();
      parameters.erase("name");
      const MixerTraits traits = find_mechanism(name).traits_of(parameters);
      if (section.form == Form::cross) {
        require_usage(!traits.exempt.contains("chunks"), cause, what,
                      " needs cross-attention of every token by itself, and that of '", name,
                      "' depends on the other tokens of a call");
      } else {
        require_usage(traits.decode_state, cause, what,
                      " needs a state that follows the text, which attention '", name,
                      "' does not have");
      }
    }
  }
}

void load_weights(const ParameterSet& parameters, const std::map<std::string, Tensor>& weights,
                  const std::string& label) {
  const std::map<std::string, Tensor> own = parameters.tensors();
  for (const auto& [name, tensor] : weights) {
    const auto found = own.find(name);
    const Tensor to =
        found != own.end() ? found->second : parameters.weight_of(parameters.find(name));
    require(tensor.shape() == to.shape() && tensor.dtype() == to.dtype(),
            Cause{ErrorCode::conflict, name, label}, label, ": parameter ", name, " is ",
            name_of(tensor.dtype()), " ", tensor.shape(), ", the model has ", name_of(to.dtype()),
            " ", to.shape());
    to.copy_from(tensor);
  }
  for (const auto& tensor : own) {
    require(weights.contains(tensor.first), Cause{ErrorCode::not_found, tensor.first, label}, label,
            ": parameter ", tensor.first, " is missing");
  }
  parameters.refresh_values();
}

int64_t untrained_elements(const ParameterSet& parameters) {
  int64_t total = 0;
  for (const ParameterSet::Buffer& buffer : parameters.buffers()) total += buffer.shape.elements();
  return total;
}

}  // namespace linnet
