// The contents of the registry, as JSON and text.
#include "attention/explain.h"

#include <algorithm>
#include <cmath>

#include "attention/augment.h"
#include "attention/case.h"
#include "attention/mixer_keys.h"
#include "attention/registry.h"
#include "core/config_scalar.h"

namespace linnet {
namespace {

constexpr Form kForms[] = {Form::noncausal, Form::causal, Form::cross};

JsonValue shape_json(const Shape& shape) {
  JsonValue list = JsonValue::array();
  for (const int64_t size : shape.sizes()) list.push(size);
  return list;
}

JsonValue options_json(const ConfigSchema& schema, const ConfigNode& resolved) {
  JsonValue list = JsonValue::array();
  for (const FieldSchema& field : schema.fields) {
    JsonValue option = JsonValue::object();
    const ConfigNode* value = resolved.find(field.name);
    option.set("name", field.name).set("type", field.type).set("default", field.default_text);
    option.set("value", value == nullptr || value->is_null() ? "null" : value->raw());
    JsonValue choices = JsonValue::array();
    for (const std::string& choice : field.choices) choices.push(choice);
    option.set("choices", choices).set("range", field.range).set("help", field.help);
    list.push(option);
  }
  return list;
}

// By the name that CASE.h5 uses.
JsonValue named_shape(const std::string& name, const Shape& shape) {
  return JsonValue::object()
      .set("name", name.substr(name.find('.') + 1))
      .set("shape", shape_json(shape));
}

JsonValue parameters_json(const ParameterSet& set) {
  JsonValue list = JsonValue::array();
  for (const ParameterSet::Entry& entry : set.entries()) {
    list.push(named_shape(entry.name, entry.shape).set("tied", entry.name.starts_with("tied.")));
  }
  return list;
}

// The mixer's call for `length` tokens (cross: of as many, and a source of that length), batch of
// one; `used` receives its draws and choices in training.
MixerResult call(const TokenMixer& mixer, const MixerOptions& options, int64_t length,
                 CallDraws* used) {
  const NoGrad off;
  const Variable x(Tensor::zeros({1, length, options.width}));
  MixerContext context;
  context.positions = Tensor::zeros({1, length}, DType::i32);
  for (int64_t t = 0; t < length; ++t)
    context.positions.data<int32_t>()[t] = static_cast<int32_t>(t);
  context.place.examples = Tensor::zeros({1}, DType::i64);
  context.training = used != nullptr;
  context.record = used;
  return options.form == Form::cross ? mixer.forward_cross(x, x, context, {})
                                     : mixer.forward(x, context, {});
}

// Adds the state that `tokens` tokens leave, and the draws and choices of a call for them after the
// buffers in `draws`.
void add_call(JsonValue& entry, JsonValue draws, const TokenMixer& mixer,
              const MixerOptions& options, int64_t tokens) {
  const MixerState first = call(mixer, options, 1, nullptr).state;
  CallDraws used;
  const MixerResult result = call(mixer, options, tokens, &used);
  JsonValue state = JsonValue::array();
  for (const auto& [name, value] : result.state) {
    JsonValue item = JsonValue::object();
    item.set("name", name).set("shape", shape_json(value.shape()));
    if (const auto one = first.find(name); one != first.end()) {
      item.set("shape_after_one_token", shape_json(one->second.shape()));
    }
    item.set("dtype", name_of(value.dtype()));
    state.push(item);
  }
  JsonValue choices = JsonValue::array();
  for (const auto& [name, draw] : used.draws) draws.push(named_shape(name, draw.shape()));
  for (const auto& [name, choice] : used.choices) choices.push(named_shape(name, choice.shape()));
  entry.set("state", state).set("draws", draws).set("choices", choices);
}

// Two chunks: of the longest span of tokens that the options name, or of `attention run`.
int64_t useful_length(const ConfigNode& resolved, int64_t max_length) {
  int64_t longest = CaseOptions().chunk;
  for (const char* span : {"chunk", "group", "block", "window"}) {
    const ConfigNode* value = resolved.find(span);
    std::string why;
    if (value == nullptr || !value->is_scalar()) continue;
    longest = std::max(longest, parse_int(value->raw(), why).value_or(0));
  }
  return std::min(2 * longest, max_length);
}

// Cost per token of a sequence of `length` tokens (cross: with a source of that length).
JsonValue cost_json(const TokenMixer& mixer, const MixerOptions& options, int64_t length) {
  const MixerCost cost =
      mixer.cost({1, length, options.form == Form::cross ? length : 0, DType::f32});
  const auto tokens = static_cast<double>(length);
  return JsonValue::object()
      .set("length", length)
      .set("projections_per_token", cost.projections / tokens)
      .set("mixing_per_token", cost.mixing / tokens)
      .set("bytes_per_token", cost.bytes / tokens);
}

// One head of 64 channels with the defaults, in the causal form where there is one.
struct HeadCost {
  std::string mixing;  // multiply-adds per token of 1,024
  std::string state;   // bytes of f32 after 1,024 tokens
};

HeadCost head_cost(const Mechanism& mechanism) {
  constexpr int64_t kLength = 1024;
  MixerOptions options;
  options.width = 64;
  options.heads = 1;
  options.max_length = kLength;
  options.form = mechanism.traits.causal ? Form::causal : Form::noncausal;
  ParameterSet set;
  const ParameterScope root(set);
  const auto mixer =
      mechanism.make(ConfigNode::map(), options, {root.child("own"), root.child("tied")});
  set.materialize(1);
  const MixerCost cost = mixer->cost({1, kLength, 0, DType::f32});
  HeadCost result{concat(std::llround(cost.mixing / kLength)), "none"};
  if (!mechanism.traits.decode_state || !mechanism.traits.causal) return result;
  int64_t bytes = 0;
  for (const auto& [name, value] : call(*mixer, options, kLength, nullptr).state) {
    bytes += value.value().bytes();
  }
  result.state = concat(bytes, mechanism.traits.constant_state ? "" : ", grows");
  return result;
}

std::string join(const JsonValue& list) {
  std::string text;
  for (const JsonValue& item : list.elements()) {
    text += (text.empty() ? "" : ", ") + (item.is_text() ? item.text() : concat(item.integer()));
  }
  return text;
}

std::string indented(const std::string& text) {
  std::string result = "  ";
  for (const char c : text) {
    result += c;
    if (c == '\n') result += "  ";
  }
  return result + "\n";
}

}  // namespace

JsonValue explain_mechanism(const Mechanism& mechanism, const ConfigNode& config,
                            std::optional<int64_t> tokens) {
  ConfigNode parameters = config.is_null() ? ConfigNode::map() : config;
  parameters.take("name");
  MixerOptions options;
  options.width = 256;
  options.heads = 4;
  options.max_length = 1024;
  take_mixer_keys(parameters, mechanism, false, options);
  if (const ConfigNode* length = parameters.find("max_length"); length && !length->is_null()) {
    constexpr int64_t kLongest = 1 << 24;  // of a recipe's data.context
    options.max_length = read_int(*length, "max_length");
    if (options.max_length < 0 || options.max_length > kLongest) {
      throw located_error(length->location(), Cause{ErrorCode::out_of_range, "max_length"},
                          "'max_length' must be 0 to ", kLongest, ", found ", options.max_length);
    }
  }
  // Some mechanisms have an option of that name.
  if (mechanism.schema().find("max_length") == nullptr) parameters.take("max_length");
  const ConfigNode resolved = mechanism.resolve(parameters);
  const MixerTraits traits = mechanism.traits_of(parameters);
  const int64_t length = tokens.value_or(useful_length(resolved, options.max_length));
  require_usage(length >= 1 && length <= options.max_length,
                Cause{ErrorCode::out_of_range, "--tokens"}, "attention show: --tokens ", length,
                " must be from 1 to max_length, which is ", options.max_length,
                "; set a larger max_length in the YAML file of --config");
  JsonValue out = JsonValue::object();
  out.set("name", mechanism.name).set("title", mechanism.title);
  out.set("equation", mechanism.equation).set("complexity", mechanism.complexity);
  out.set("growth", traits.growth).set("sources", mechanism.sources);
  out.set("decode_state", !traits.decode_state    ? "none"
                          : traits.constant_state ? "constant size"
                                                  : "grows with the sequence");
  out.set("depends_on_length", traits.depends_on_length);
  out.set("couples_heads", traits.couples_heads);
  JsonValue exempt = JsonValue::object();
  for (const auto& [check, reason] : traits.exempt) exempt.set(check, reason);
  out.set("exempt", exempt);
  JsonValue presets = JsonValue::array();
  for (const Preset& preset : mechanism.presets) {
    std::string text;
    for (const auto& [key, value] : preset.options) {
      text += concat(text.empty() ? "" : ", ", key, ": ", value);
    }
    JsonValue entry = JsonValue::object();
    entry.set("name", preset.name).set("source", preset.source).set("options", text);
    presets.push(entry);
  }
  out.set("presets", presets).set("options", options_json(mechanism.schema(), resolved));
  out.set("width", options.width).set("heads", options.heads).set("tokens", length);
  JsonValue forms = JsonValue::array();
  bool augment = false;
  for (const Form form : kForms) {
    if (!traits.has(form)) continue;
    options.form = form;
    ParameterSet set;
    const ParameterScope root(set);
    const auto mixer = mechanism.make(parameters, options, {root.child("own"), root.child("tied")});
    set.materialize(1);
    JsonValue entry = JsonValue::object();
    entry.set("form", name_of(form)).set("parameters", parameters_json(set));
    entry.set("cost", cost_json(*mixer, options, options.max_length));
    entry.set("replaces_feed_forward", mixer->replaces_feed_forward());
    augment = augment || takes_augmentation(*mixer, form);
    // Buffers: drawn once and kept.
    JsonValue draws = JsonValue::array();
    for (const ParameterSet::Buffer& buffer : set.buffers()) {
      draws.push(named_shape(buffer.name, buffer.shape));
    }
    add_call(entry, std::move(draws), *mixer, options, length);
    forms.push(entry);
  }
  if (augment) {
    const ConfigNode* value = resolved.find("augment");
    const ConfigNode own = value == nullptr ? ConfigNode::map() : *value;
    out.set("augment", JsonValue::object()
                           .set("value", value == nullptr ? "null" : inline_text(own))
                           .set("options", options_json(augmentation_schema(), own)));
  }
  return out.set("forms", forms);
}

std::string format_explanation(const JsonValue& e) {
  std::string text = concat(e.at("name").text(), ": ", e.at("title").text(), "\n\n",
                            indented(e.at("equation").text()), "\n");
  text += concat("complexity  ", e.at("complexity").text(), "\ngrowth      ", e.at("growth").text(),
                 "\nstate       ", e.at("decode_state").text(), "\nsources     ",
                 e.at("sources").text(), "\n\noptions\n");
  for (const JsonValue& option : e.at("options").elements()) {
    const std::string limits =
        option.at("choices").size() > 0     ? " {" + join(option.at("choices")) + "}"
        : option.at("range").text().empty() ? ""
                                            : " (" + option.at("range").text() + ")";
    text += concat("  ", option.at("name").text(), ": ", option.at("value").text(), limits,
                   "\n      ", option.at("help").text(), "\n");
  }
  if (const JsonValue* augment = e.find("augment")) {
    std::string defaults;
    for (const JsonValue& option : augment->at("options").elements()) {
      defaults += concat(defaults.empty() ? "" : ", ", option.at("name").text(), ": ",
                         option.at("default").text());
    }
    text += concat("  augment: ", augment->at("value").text(),
                   "\n      further branches of the self forms; null: none; defaults {", defaults,
                   "}\n");
  }
  if (e.at("presets").size() > 0) text += "\npresets\n";
  for (const JsonValue& preset : e.at("presets").elements()) {
    text += concat("  ", preset.at("name").text(), " {", preset.at("options").text(), "}\n      ",
                   preset.at("source").text(), "\n");
  }
  text += concat("\nwith width ", e.at("width").integer(), " and ", e.at("heads").integer(),
                 " heads; draws, choices and states of ", e.at("tokens").integer(), " tokens\n");
  for (const JsonValue& form : e.at("forms").elements()) {
    text += concat("  ", form.at("form").text(), "\n    parameters ");
    for (const JsonValue& parameter : form.at("parameters").elements()) {
      text += concat(" ", parameter.at("name").text(), "[", join(parameter.at("shape")), "]");
    }
    for (const char* group : {"draws", "choices"}) {
      if (form.at(group).size() > 0) text += concat("\n    ", group, " ");
      for (const JsonValue& item : form.at(group).elements()) {
        text += concat(" ", item.at("name").text(), "[", join(item.at("shape")), "]");
      }
    }
    if (form.at("replaces_feed_forward").boolean()) {
      text += "\n    a block has no feed-forward beside it";
    }
    text += concat("\n    state after ", e.at("tokens").integer(), " tokens ");
    if (form.at("state").size() == 0) text += " none";
    for (const JsonValue& entry : form.at("state").elements()) {
      text += concat(" ", entry.at("name").text(), "[", join(entry.at("shape")), "]");
    }
    const JsonValue& cost = form.at("cost");
    const auto rounded = [&](const char* key) {
      return static_cast<int64_t>(std::llround(cost.at(key).number()));
    };
    text += concat("\n    cost per token at T = ", cost.at("length").integer(),
                   "  multiply-adds: ", rounded("projections_per_token"), " projections, ",
                   rounded("mixing_per_token"), " mixing; ", rounded("bytes_per_token"),
                   " bytes in f32\n");
  }
  return text;
}

std::string mechanism_table() {
  std::string table =
      "| name | what | forms | growth | multiply-adds | state | presets | source |\n"
      "|---|---|---|---|---|---|---|---|\n";
  for (const Mechanism& mechanism : mechanisms()) {
    std::string forms;
    for (const Form form : kForms) {
      if (mechanism.traits.has(form)) forms += concat(forms.empty() ? "" : ", ", name_of(form));
    }
    std::string presets;
    for (const Preset& preset : mechanism.presets) {
      presets += concat(presets.empty() ? "" : ", ", preset.name);
    }
    const HeadCost cost = head_cost(mechanism);
    table += concat("| [", mechanism.name, "](", mechanism.name, "/README.md) | ", mechanism.title,
                    " | ", forms, " | ", mechanism.traits.growth, " | ", cost.mixing, " | ",
                    cost.state, " | ", presets, " | ", mechanism.sources, " |\n");
  }
  return table;
}

}  // namespace linnet
