// Reading CASE.h5: attributes, configuration, inputs, parameters.
#include "attention/case_input.h"

#include <set>

#include "attention/mixer_keys.h"
#include "attention/registry.h"
#include "core/suggest.h"
#include "core/yaml.h"

namespace linnet::case_detail {
namespace {

constexpr const char* kTied = "tied_attention";

// Of a recipe's context and layers.
constexpr int64_t kMaxLength = 1 << 24, kMaxLayer = 4095;
// Draws of the mixer with more elements must be in the file: a few bytes of it cannot ask for
// gigabytes.
constexpr int64_t kMaxFreshElements = 1 << 22;

int64_t whole(const Hdf5Reader& reader, const char* name, int64_t otherwise) {
  return reader.has_attribute("/", name) ? reader.int_attribute("/", name) : otherwise;
}

int64_t limited(const Hdf5Reader& reader, const std::string& label, const char* name, int64_t least,
                int64_t most, int64_t otherwise) {
  const int64_t value = whole(reader, name, otherwise);
  require_usage(value >= least && value <= most, Cause{ErrorCode::out_of_range, name, label}, label,
                ": the attribute ", name, " must be ", least, " to ", most, ", found ", value);
  return value;
}

Tensor optional(const Hdf5Reader& reader, const std::string& name, DType dtype) {
  return reader.contains(name) ? reader.read(name).to(dtype) : Tensor();
}

// Problems of a case that a user sees together.
class Problems {
 public:
  explicit Problems(std::string label) : label_(std::move(label)) {}

  void missing(const std::string& name, const char* what = "") {
    missing_ += concat(missing_.empty() ? "" : ", ", what, name);
    found_.push_back({ErrorCode::missing_key, name, label_, name + " is missing"});
  }
  void shape(const std::string& name, const Shape& expected, const Shape& found) {
    if (found == expected) return;
    add(ErrorCode::conflict, name, concat("expected ", name, " ", expected, ", got ", found));
  }
  // Unless `name` is one of `known`.
  void unknown(const std::string& prefix, const std::string& name,
               const std::vector<std::string>& known, const char* what = "") {
    if (std::count(known.begin(), known.end(), name) > 0) return;
    add(ErrorCode::unknown_key, prefix + name,
        concat(what, "'", prefix, name, "' is unknown: ", suggestion(name, known)));
  }
  // Throws UsageError with all of them, the missing ones in one sentence, if there are any.
  void throw_if_any() const {
    if (found_.empty()) return;
    std::string text = text_;
    if (!missing_.empty()) {
      const bool several = missing_.find(',') != std::string::npos;
      text = concat(label_, ": ", missing_, several ? " are" : " is", " missing",
                    text.empty() ? "" : "\n", text);
    }
    throw UsageError(found_, text);
  }

 private:
  void add(ErrorCode code, const std::string& name, const std::string& sentence) {
    text_ += concat(text_.empty() ? "" : "\n", label_, ": ", sentence);
    found_.push_back({code, name, label_, sentence});
  }

  std::string label_, missing_, text_;
  std::vector<Error::Problem> found_;
};

void require_shape(const Tensor& tensor, const Shape& expected, const std::string& label,
                   const char* name) {
  if (!tensor.defined()) return;
  Problems problems(label);
  problems.shape(name, expected, tensor.shape());
  problems.throw_if_any();
}

// All names of the format; a file with any other is refused.
void refuse_unknown(const Hdf5Reader& reader, const std::string& label) {
  const auto lacks = [&](const char* name) { return !reader.has_attribute("/", name); };
  require_usage(!(lacks("mechanism") && lacks("form") && lacks("config")),
                Cause{ErrorCode::malformed, "", label}, label,
                " is an HDF5 file, but no case of linnet: it has none of the attributes mechanism, "
                "form and config (attention/README.md describes cases)");
  Problems problems(label);
  for (const char* name : {"mechanism", "form", "config"}) {
    if (lacks(name)) problems.missing(name, "attribute ");
  }
  for (const std::string& name : reader.attributes("/")) {
    problems.unknown("", name,
                     {"mechanism", "form", "config", "core", "seed", "step", "training", "layer",
                      "start", "max_length"},
                     "attribute ");
  }
  for (const std::string& name : reader.list("/")) {
    problems.unknown("", name,
                     {"inputs", "positions", "state", "params", "draws", "choices", "cotangent",
                      "cotangent_state"});
  }
  const auto members = [&](const char* group, const std::vector<std::string>& known) {
    if (!reader.contains(group)) return;
    for (const std::string& name : reader.list(group)) {
      problems.unknown(concat(group, "/"), name, known);
    }
  };
  members("inputs", {"x", "source", "mask", "source_mask", "q", "k", "v"});
  members("positions", {"q", "k"});
  problems.throw_if_any();
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
  Problems problems(label);
  const auto take = [&](const char* name, bool needed) {
    const std::string path = concat("inputs/", name);
    if (needed && !reader.contains(path)) problems.missing(path);
    return optional(reader, path, dtype);
  };
  c.x = take("x", !c.core);
  c.source = take("source", c.cross() && !c.core && c.state.empty());
  const bool encoded = c.cross() && !c.state.empty();
  if (c.core) {
    c.q = take("q", true);
    c.k = take("k", !encoded);
    c.v = take("v", !encoded);
  }
  problems.throw_if_any();
  if (c.core) {
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
  const int64_t start = limited(reader, c.label, "start", 0, kMaxLength, 0);
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
    buffer.variable.value().copy_from(reader.read(path));
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

// Refuses parameters and buffers other than those of the file, before memory is taken for them.
void check_parameters(const Hdf5Reader& reader, const Case& c) {
  Problems problems(c.label);
  std::vector<std::string> names;
  for (const ParameterSet::Entry& entry : c.parameters->entries()) {
    const std::string name = c.own_name(entry.name), path = "params/" + name;
    names.push_back(name);
    if (c.core && is_projection(name)) continue;
    if (reader.contains(path)) {
      problems.shape(path, entry.shape, reader.shape(path));
    } else {
      problems.missing(path);
    }
  }
  if (reader.contains("params")) {
    for (const std::string& name : reader.list_datasets("params")) {
      problems.unknown("params/", name, names);
    }
  }
  for (const ParameterSet::Buffer& buffer : c.parameters->buffers()) {
    const std::string path = "draws/" + c.own_name(buffer.name);
    if (reader.contains(path)) {
      problems.shape(path, buffer.shape, reader.shape(path));
    } else if (buffer.shape.elements() > kMaxFreshElements) {
      problems.missing(path);
    }
  }
  problems.throw_if_any();
}

void read_parameters(const Hdf5Reader& reader, DType dtype, Device device, Case& c) {
  check_parameters(reader, c);
  c.parameters->materialize(c.context.random.seed, dtype == DType::f64 ? DType::f64 : DType::f32,
                            dtype, device);
  for (const ParameterSet::Entry& entry : c.parameters->entries()) {
    const std::string name = c.own_name(entry.name);
    if (c.core && is_projection(name)) continue;
    c.parameters->weight_of(entry).copy_from(reader.read("params/" + name).to(DType::f64));
  }
  c.parameters->refresh_values();
}

}  // namespace

void refuse_unused(const Case& c, const CallDraws& used, const MixerState& state) {
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
  std::vector<std::string> states;
  for (const auto& entry : state) states.push_back(entry.first);
  Problems problems(c.label);
  for (const auto& entry : c.state) problems.unknown("state/", entry.first, states);
  problems.throw_if_any();
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
  config.take("name");
  take_mixer_keys(config, mechanism, true, options);
  options.layer = limited(reader, label, "layer", 0, kMaxLayer, 0);
  c.traits = mechanism.traits_of(config);
  require_form(mechanism, config, c.form);
  c.state = read_group(reader, "state", dtype);
  require_usage(c.state.empty() || c.carries_state(), Cause{ErrorCode::conflict, "state", label},
                label, ": the ", name_of(c.form), " form of '", c.mechanism,
                "' with this config has no state to continue from; remove the group state");
  read_inputs(reader, dtype, options, c);
  read_positions(reader, c);
  options.max_length =
      limited(reader, label, "max_length", 0, kMaxLength, c.context.place.time_offset + c.length);
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
