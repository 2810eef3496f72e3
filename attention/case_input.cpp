// Reading CASE.h5: attributes, configuration, inputs, parameters.
#include "attention/case_input.h"

#include <set>

#include "attention/registry.h"
#include "core/suggest.h"
#include "core/yaml.h"

namespace linnet::case_detail {
namespace {

constexpr const char* kTied = "tied_attention";

int64_t whole(const Hdf5Reader& reader, const char* name, int64_t otherwise) {
  return reader.has_attribute("/", name) ? reader.int_attribute("/", name) : otherwise;
}

Tensor optional(const Hdf5Reader& reader, const std::string& name, DType dtype) {
  return reader.contains(name) ? reader.read(name).to(dtype) : Tensor();
}

Tensor required(const Hdf5Reader& reader, const std::string& label, const std::string& name,
                DType dtype) {
  require_usage(reader.contains(name), label, ": ", name, " is missing");
  return reader.read(name).to(dtype);
}

void require_shape(const Tensor& tensor, const Shape& expected, const std::string& label,
                   const char* name) {
  require_usage(!tensor.defined() || tensor.shape() == expected, label, ": expected ", name, " ",
                expected, ", got ", tensor.defined() ? tensor.shape().to_string() : "");
}

// All names of the format; a file with any other is refused.
void refuse_unknown(const Hdf5Reader& reader, const std::string& label) {
  const std::vector<std::string> known{"inputs", "positions", "state",     "params",
                                       "draws",  "choices",   "cotangent", "cotangent_state"};
  for (const std::string& name : reader.list("/")) {
    require_usage(std::count(known.begin(), known.end(), name) > 0, label, ": '", name,
                  "' is unknown: ", suggestion(name, known));
  }
  const std::vector<std::string> inputs{"x", "source", "mask", "source_mask", "q", "k", "v"};
  for (const std::string& name :
       reader.contains("inputs") ? reader.list("inputs") : std::vector<std::string>{}) {
    require_usage(std::count(inputs.begin(), inputs.end(), name) > 0, label, ": 'inputs/", name,
                  "' is unknown: ", suggestion(name, inputs));
  }
}

std::map<std::string, Tensor> read_group(const Hdf5Reader& reader, const std::string& group,
                                         DType dtype) {
  std::map<std::string, Tensor> tensors;
  if (!reader.contains(group)) return tensors;
  for (const std::string& name : reader.list_datasets(group)) {
    const Tensor tensor = reader.read(group + "/" + name);
    // Counts and masks are i64; sums of bf16 runs are f32; wider ones stay.
    const bool keep = tensor.dtype() == DType::f64 && dtype != DType::f64;
    tensors[name] = !is_floating(tensor.dtype()) ? tensor.to(DType::i64)
                    : keep                       ? tensor
                    : dtype == DType::f64        ? tensor.to(DType::f64)
                                                 : tensor.to(DType::f32);
  }
  return tensors;
}

void read_inputs(const Hdf5Reader& reader, DType dtype, const MixerOptions& options, Case& c) {
  const std::string& label = c.label;
  const auto take = [&](const char* name, bool needed) {
    const std::string path = concat("inputs/", name);
    return needed ? required(reader, label, path, dtype) : optional(reader, path, dtype);
  };
  c.x = take("x", !c.core);
  c.source = take("source", c.cross() && !c.core && c.state.empty());
  const bool encoded = c.cross() && !c.state.empty();
  if (c.core) {
    c.q = take("q", true);
    c.k = take("k", !encoded);
    c.v = take("v", !encoded);
    require_usage(c.q.shape().rank() == 4, label, ": expected inputs/q [B,T,H,K], got ",
                  c.q.shape());
  }
  const Tensor& queries = c.core ? c.q : c.x;
  require_usage(queries.shape().rank() >= 3 && queries.elements() > 0, label,
                ": expected inputs [B,T,...] with at least one token, got ", queries.shape());
  c.rows = queries.size(0);
  c.length = queries.size(1);
  require_shape(c.x, {c.rows, c.length, options.width}, label, "inputs/x");
  const int64_t H = options.heads, K = options.head_width();
  if (c.core) require_shape(c.q, {c.rows, c.length, H, K}, label, "inputs/q");
  const int64_t keys = c.source.defined() ? c.source.size(1)
                       : c.k.defined()    ? c.k.size(1)
                                          : c.length;
  if (c.cross()) require_shape(c.source, {c.rows, keys, options.width}, label, "inputs/source");
  require_shape(c.k, {c.rows, c.cross() ? keys : c.length, H, K}, label, "inputs/k");
  c.context.key_mask = optional(reader, "inputs/mask", DType::u8);
  require_shape(c.context.key_mask, {c.rows, c.length}, label, "inputs/mask");
  c.context.source_mask = optional(reader, "inputs/source_mask", DType::u8);
  if (c.cross() && !encoded) {
    require_shape(c.context.source_mask, {c.rows, keys}, label, "inputs/source_mask");
  }
}

void read_positions(const Hdf5Reader& reader, Case& c) {
  const int64_t start = whole(reader, "start", 0);
  c.context.place.time_offset = start;
  c.context.positions = optional(reader, "positions/q", DType::i32);
  if (!c.context.positions.defined()) {
    c.context.positions = Tensor::empty({c.rows, c.length}, DType::i32);
    for (int64_t i = 0; i < c.rows * c.length; ++i) {
      c.context.positions.data<int32_t>()[i] = static_cast<int32_t>(start + i % c.length);
    }
  }
  require_shape(c.context.positions, {c.rows, c.length}, c.label, "positions/q");
  const Tensor keys = optional(reader, "positions/k", DType::i32);
  if (!keys.defined()) return;
  require_usage(!c.cross() || c.state.empty(), c.label,
                ": the state holds the encoded source; remove positions/k");
  const int64_t source = c.source.defined() ? c.source.size(1) : c.cross() ? c.k.size(1) : 0;
  require_shape(keys, {c.rows, c.cross() ? source : c.length}, c.label, "positions/k");
  // Mechanisms that cannot use other key positions refuse them; the queries' own positions count as
  // none.
  const bool same =
      !c.cross() && std::equal(keys.data<int32_t>(), keys.data<int32_t>() + keys.elements(),
                               c.context.positions.data<int32_t>());
  if (!same) c.context.key_positions = keys;
}

// Given draws and choices take the place of fresh ones. The names that a call uses are known after
// it has run: see refuse_unused.
void read_draws(const Hdf5Reader& reader, Case& c) {
  for (const ParameterSet::Buffer& buffer : c.parameters->buffers()) {
    const std::string path = "draws/" + c.own_name(buffer.name);
    if (!reader.contains(path)) continue;
    const Tensor given = reader.read(path);
    require_shape(given, buffer.shape, c.label, path.c_str());
    buffer.variable.value().copy_from(given);
  }
  c.given.given_draws = read_group(reader, "draws", DType::f64);
  c.given.given_choices = read_group(reader, "choices", DType::f64);
  for (const ParameterSet::Buffer& buffer : c.parameters->buffers()) {
    c.given.given_draws.erase(c.own_name(buffer.name));
  }
  for (const auto& [name, choice] : c.given.given_choices) {
    require_usage(choice.dtype() == DType::i64, c.label, ": expected integers in choices/", name,
                  ", got ", name_of(choice.dtype()));
  }
}

void read_parameters(const Hdf5Reader& reader, DType dtype, Device device, Case& c) {
  c.parameters->materialize(c.context.random.seed, dtype == DType::f64 ? DType::f64 : DType::f32,
                            dtype, device);
  std::vector<std::string> names;
  for (const ParameterSet::Entry& entry : c.parameters->entries()) {
    const std::string name = c.own_name(entry.name);
    names.push_back(name);
    if (c.core && is_projection(name)) continue;
    const Tensor weight = required(reader, c.label, "params/" + name, DType::f64);
    require_shape(weight, entry.shape, c.label, ("params/" + name).c_str());
    c.parameters->weight_of(entry).copy_from(weight);
  }
  c.parameters->refresh_values();
  if (!reader.contains("params")) return;
  for (const std::string& name : reader.list_datasets("params")) {
    require_usage(std::count(names.begin(), names.end(), name) > 0, c.label, ": 'params/", name,
                  "' is unknown: ", suggestion(name, names));
  }
}

int64_t take_int(ConfigNode& config, const char* key, int64_t otherwise, bool needed) {
  const ConfigNode* node = config.find(key);
  require_usage(node != nullptr || !needed, "attention run: the config lacks '", key, "'");
  const int64_t value = node == nullptr ? otherwise : read_int(*node, key);
  config.erase(key);
  return value;
}

}  // namespace

void refuse_unused(const Case& c, const CallDraws& used) {
  const auto check = [&](const char* group, const std::map<std::string, Tensor>& given,
                         std::vector<std::string> known, const char* none) {
    for (const auto& entry : given) {
      const std::string& name = entry.first;
      require_usage(!known.empty(), c.label, ": '", c.mechanism, "' with this config ", none,
                    "; remove ", group, "/", name);
      require_usage(std::count(known.begin(), known.end(), name) > 0, c.label, ": '", group, "/",
                    name, "' is unknown: ", suggestion(name, known));
    }
  };
  std::vector<std::string> draws, choices;
  for (const auto& entry : used.draws) draws.push_back(entry.first);
  for (const auto& entry : used.choices) choices.push_back(entry.first);
  for (const ParameterSet::Buffer& buffer : c.parameters->buffers()) {
    draws.push_back(c.own_name(buffer.name));
  }
  check("draws", c.given.given_draws, std::move(draws), "draws nothing");
  check("choices", c.given.given_choices, std::move(choices), "makes no choices");
}

std::string Case::own_name(const std::string& name) const {
  return name.substr(name.starts_with(kTied) ? tied_prefix : own_prefix);
}

bool is_projection(const std::string& own_name) {
  static const std::set<std::string> names{"q.weight", "q.bias", "k.weight",   "k.bias",
                                           "v.weight", "v.bias", "out.weight", "out.bias"};
  return names.contains(own_name);
}

Case read_case(const Hdf5Reader& reader, const std::string& label, DType dtype, Device device) {
  refuse_unknown(reader, label);
  Case c;
  c.label = label;
  const Mechanism& mechanism = find_mechanism(reader.text_attribute("/", "mechanism"));
  c.mechanism = mechanism.name;
  c.form = form_from_name(reader.text_attribute("/", "form"));
  c.core = whole(reader, "core", 0) != 0;
  ConfigNode config = parse_yaml(reader.text_attribute("/", "config"), label + " config");
  if (config.is_null()) config = ConfigNode::map();
  MixerOptions options;
  options.form = c.form;
  options.width = take_int(config, "width", 0, true);
  options.heads = take_int(config, "heads", 0, true);
  options.rotary_width = take_int(config, "rotary_width", 0, false);
  if (const ConfigNode* bias = config.find("bias"); bias != nullptr) {
    options.bias = read_bool(*bias, "bias");
    config.erase("bias");
  }
  config.erase("name");
  options.layer = whole(reader, "layer", 0);
  require_usage(options.heads > 0 && options.width > 0 && options.width % options.heads == 0, label,
                ": width ", options.width, " must be a positive multiple of heads ", options.heads);
  c.state = read_group(reader, "state", dtype);
  read_inputs(reader, dtype, options, c);
  read_positions(reader, c);
  options.max_length = whole(reader, "max_length", c.context.place.time_offset + c.length);
  c.context.training = whole(reader, "training", 0) != 0;
  c.context.random = {static_cast<uint64_t>(whole(reader, "seed", 0)),
                      static_cast<uint64_t>(whole(reader, "step", 0)), 0};

  c.parameters = std::make_unique<ParameterSet>();
  const ParameterScope root(*c.parameters);
  const ParameterScope own =
      root.child("layers").child(std::to_string(options.layer)).child("attention");
  c.own_prefix = own.prefix().size() + 1;
  c.tied_prefix = std::string_view(kTied).size() + 1;
  c.mixer = mechanism.make(config, options, {own, root.child(kTied)});
  if (c.core) {
    c.attention = dynamic_cast<const AttentionMixer*>(c.mixer.get());
    require_usage(c.attention != nullptr, label, ": '", mechanism.name,
                  "' has no core between projections; remove the attribute core");
  }
  read_parameters(reader, dtype, device, c);
  read_draws(reader, c);
  c.cotangent = optional(reader, "cotangent", DType::f64);
  if (reader.contains("cotangent_state")) {
    for (const std::string& name : reader.list_datasets("cotangent_state")) {
      c.cotangent_state[name] = reader.read("cotangent_state/" + name);
    }
  }
  return c;
}

}  // namespace linnet::case_detail
