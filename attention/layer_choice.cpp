// Reading `attention:` of a model layer by layer.
#include "attention/layer_choice.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

#include "attention/registry.h"

namespace linnet {
namespace {

constexpr const char* kLayers = "layers";

// An integer from the beginning of `text`, from which it is removed.
std::optional<int64_t> take_number(std::string_view& text) {
  int64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || value < 0) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

// "3" or "0-5": {first, last}.
std::pair<int64_t, int64_t> read_range(const ConfigNode& node, int64_t layers) {
  std::string_view text = node.is_scalar() ? std::string_view(node.raw()) : std::string_view();
  const std::optional<int64_t> first = take_number(text);
  std::optional<int64_t> last = first;
  if (first && text.starts_with("-")) {
    text.remove_prefix(1);
    last = take_number(text);
  }
  if (!first || !last || !text.empty()) {
    throw located_error(node.location(), Cause{ErrorCode::wrong_type, kLayers},
                        "layers: expected a layer such as 3, a range such as 0-5,",
                        " or a list of these, found ", node.found());
  }
  if (*first > *last) {
    throw located_error(node.location(), Cause{ErrorCode::out_of_range, kLayers}, "layers ",
                        node.raw(), " run backwards; write ", *last, "-", *first);
  }
  if (*last >= layers) {
    throw located_error(node.location(), Cause{ErrorCode::out_of_range, kLayers}, "layer ", *last,
                        " is beyond the model, whose ", layers, " layers are 0 to ", layers - 1);
  }
  return {*first, *last};
}

std::vector<int64_t> read_layers(const ConfigNode& node, int64_t layers) {
  std::vector<int64_t> result;
  for (const ConfigNode& item : node.is_sequence() ? node.items() : std::vector<ConfigNode>{node}) {
    const auto [first, last] = read_range(item, layers);
    for (int64_t layer = first; layer <= last; ++layer) result.push_back(layer);
  }
  if (result.empty()) {
    throw located_error(node.location(), Cause{ErrorCode::out_of_range, kLayers},
                        "layers: the list is empty");
  }
  std::sort(result.begin(), result.end());
  return result;
}

std::string range_text(int64_t first, int64_t last) {
  return first == last ? concat("layer ", first) : concat("layers ", first, "-", last);
}

// Throws unless every layer has exactly one choice.
void require_cover(const ConfigNode& attention, const std::vector<LayerChoice>& choices,
                   int64_t layers) {
  std::vector<const ConfigNode*> owner(static_cast<size_t>(layers), nullptr);
  for (const LayerChoice& choice : choices) {
    for (const int64_t layer : choice.layers) {
      const ConfigNode*& before = owner[static_cast<size_t>(layer)];
      if (before != nullptr) {
        throw located_error(choice.attention.location(), Cause{ErrorCode::repeated, kLayers},
                            "layer ", layer, " has an attention already, at ",
                            before->location().text(), "; each layer needs exactly one");
      }
      before = &choice.attention;
    }
  }
  for (int64_t layer = 0; layer < layers; ++layer) {
    if (owner[static_cast<size_t>(layer)] != nullptr) continue;
    int64_t last = layer;
    while (last + 1 < layers && owner[static_cast<size_t>(last + 1)] == nullptr) ++last;
    throw located_error(attention.location(), Cause{ErrorCode::missing_key, kLayers},
                        "no attention is given for ", range_text(layer, last),
                        "; the model has layers 0 to ", layers - 1);
  }
}

}  // namespace

std::vector<LayerChoice> layer_choices(const ConfigNode& attention, int64_t layers) {
  std::vector<LayerChoice> choices;
  if (!attention.is_sequence()) {
    LayerChoice& all = choices.emplace_back();
    for (int64_t layer = 0; layer < layers; ++layer) all.layers.push_back(layer);
    all.attention = attention;
    if (attention.is_map() && attention.contains(kLayers)) {
      throw located_error(attention.location_of(kLayers), Cause{ErrorCode::conflict, kLayers},
                          "'layers' chooses among the sections of a list; write attention: ",
                          "[{layers: 0-1, name: ...}, {layers: 2-3, name: ...}]");
    }
    return choices;
  }
  for (const ConfigNode& section : attention.items()) {
    if (!section.is_map() || !section.contains(kLayers)) {
      throw located_error(
          section.location(),
          section.is_map() ? Cause{ErrorCode::missing_key, kLayers} : Cause{ErrorCode::wrong_type},
          "in a list, every attention says which layers it is for, such as ",
          "{layers: 0-5, name: lavo}; found ", section.is_map() ? "no 'layers'" : section.found());
    }
    LayerChoice& choice = choices.emplace_back();
    choice.layers = read_layers(*section.find(kLayers), layers);
    choice.attention = section;
    choice.attention.take(kLayers);
  }
  require_cover(attention, choices, layers);
  return choices;
}

void require_grouped_queries(const ConfigNode& attention, int64_t layers) {
  for (const LayerChoice& choice : layer_choices(attention, layers)) {
    ConfigNode parameters = choice.attention;
    const std::string name = parameters.find("name")->raw();
    parameters.erase("name");
    if (find_mechanism(name).traits_of(parameters).grouped_queries) continue;
    std::string others;
    for (const Mechanism& mechanism : mechanisms()) {
      if (!mechanism.traits.grouped_queries) continue;
      others += concat(others.empty() ? "" : ", ", mechanism.name);
    }
    throw UsageError(
        {ErrorCode::conflict, "kv_heads"},
        concat("attention '", name, "'", parameters.contains("augment") ? " with augment" : "",
               " needs keys and values for every head of queries: remove "
               "model.kv_heads, or choose among ",
               others));
  }
}

ResolvedAttention resolve_attention(const ConfigNode& attention, Form form, int64_t layers) {
  std::vector<ConfigNode> sections;
  std::vector<MixerFactory> factories;
  std::map<int64_t, size_t> of_layer;
  for (const LayerChoice& choice : layer_choices(attention, layers)) {
    for (const int64_t layer : choice.layers) of_layer[layer] = sections.size();
    factories.push_back(make_mixer_factory(choice.attention, form));
    ConfigNode parameters = choice.attention;
    parameters.erase("name");
    ConfigNode resolved = ConfigNode::map();
    if (attention.is_sequence()) {
      resolved.set(kLayers, *attention.items()[sections.size()].find(kLayers));
    }
    const ConfigNode& name = *choice.attention.find("name");
    resolved.set("name", name);
    const ConfigNode filled = find_mechanism(name.raw()).resolve(parameters);
    for (const ConfigEntry& entry : filled.entries()) resolved.set(entry.key, entry.value);
    sections.push_back(std::move(resolved));
  }
  if (!attention.is_sequence()) return {std::move(sections.front()), std::move(factories.front())};
  return {ConfigNode::sequence(std::move(sections)),
          [factories, of_layer](const MixerOptions& options, const MixerScope& scope) {
            const size_t i = of_layer.at(options.layer);
            return factories[i](options, {scope.own, scope.tied.child(std::to_string(i))});
          }};
}

}  // namespace linnet
