#include "recipes/engine/saved_state.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "core/device.h"
#include "core/hash.h"
#include "core/safetensors.h"
#include "layers/models.h"

namespace linnet {
namespace {

constexpr const char* kFormat = "linnet decode state 1";

std::string layer_name(const char* part, size_t layer, const std::string& name) {
  return concat(part, ".", layer, ".", name);
}

std::string_view bytes_of(const Tensor& host) {
  return {static_cast<const char*>(host.raw()), host.bytes()};
}

std::string hash_of_weights(const Transformer& model) {
  return hash128_hex(bytes_of(model.parameters().weights().to(Device())));
}

// Of the number of tokens, and names, dtypes, shapes and elements.
std::string hash_of(const std::string& tokens, const std::map<std::string, Tensor>& tensors) {
  Hash128 hash;
  hash.add(tokens + "\n");
  for (const auto& [name, tensor] : tensors) {
    hash.add(concat(name, " ", name_of(tensor.dtype()), " ", tensor.shape(), "\n"));
    hash.add(bytes_of(tensor));
  }
  return hash.hex();
}

SafetensorsContents parse(const MappedFile& file, const std::string& path) {
  try {
    return parse_safetensors(file.bytes(), path);
  } catch (const Error& reason) {
    throw Error({ErrorCode::malformed, "", path},
                concat(path, " is damaged, or no decode state: ", reason.what()));
  }
}

const std::string& metadata_of(const SafetensorsContents& contents, const std::string& key,
                               const std::string& path) {
  const auto found = contents.metadata.find(key);
  require(found != contents.metadata.end(), Cause{ErrorCode::malformed, key, path}, path,
          " is no decode state: its header has no '", key, "'");
  return found->second;
}

int64_t whole_number(const std::string& text, const std::string& path) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  require(error == std::errc() && end == text.data() + text.size() && value > 0,
          Cause{ErrorCode::malformed, "", path}, path, ": '", text, "' is no number of tokens");
  return value;
}

// Whether each tensor of `expected` is in the state, where its second dimension may be longer; a
// mechanism may add others later.
bool fits(const MixerState& state, const MixerState& expected) {
  return std::all_of(expected.begin(), expected.end(), [&](const auto& entry) {
    const auto found = state.find(entry.first);
    if (found == state.end()) return false;
    const Tensor &wanted = entry.second.value(), &given = found->second.value();
    const bool grows = given.shape().rank() > 1 && wanted.shape().rank() > 1;
    const Shape shape = grows ? given.shape().with(1, wanted.size(1)) : given.shape();
    return given.dtype() == wanted.dtype() && shape == wanted.shape();
  });
}

// The first layer whose tensors are not those of `expected`; -1 for none.
int64_t misfit(const ModelState& state, const ModelState& expected) {
  for (size_t layer = 0; layer < expected.layers.size(); ++layer) {
    if (!fits(state.layers[layer], expected.layers[layer]) ||
        (!expected.cross.empty() && !fits(state.cross[layer], expected.cross[layer]))) {
      return static_cast<int64_t>(layer);
    }
  }
  return -1;
}

// A state has the tensors of the state after one token; where it ends with a chunk, those of an
// open chunk are absent, as after as many tokens as a chunk has, which divide the length.
void require_fitting(const ModelState& state, const Transformer& model, const std::string& path) {
  constexpr int64_t kLongestChunk = 16384;
  const NoGrad off;
  ReadText some;
  read_text(model, std::vector<int32_t>{0}, some);
  int64_t layer = misfit(state, some.state);
  for (int64_t n = 2; layer >= 0 && n <= std::min(state.length, kLongestChunk); ++n) {
    if (state.length % n != 0) continue;
    read_text(model, std::vector<int32_t>(static_cast<size_t>(n - some.state.length)), some);
    layer = misfit(state, some.state);
  }
  require(layer < 0, Cause{ErrorCode::malformed, "", path}, path, ": the tensors of layer ", layer,
          " are not those of this model's decode state; read the text again with this checkpoint");
}

}  // namespace

void save_state(const std::string& path, const Transformer& model, const ReadText& text) {
  require(text.hidden.defined(), "save_state: nothing was read");
  std::map<std::string, Tensor> tensors;
  tensors["hidden"] = text.hidden.to(Device());
  tensors["last"] = Tensor::from(std::vector<int32_t>{text.last}, {1});
  const auto add = [&tensors](const char* part, const std::vector<MixerState>& layers) {
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      for (const auto& [name, values] : layers[layer]) {
        tensors[layer_name(part, layer, name)] = values.value().to(Device());
      }
    }
  };
  add("layers", text.state.layers);
  add("cross", text.state.cross);
  write_safetensors(path, tensors,
                    {{"format", kFormat},
                     {"tokens", concat(text.state.length)},
                     {"weights", hash_of_weights(model)},
                     {"tensors", hash_of(concat(text.state.length), tensors)}});
}

ReadText load_state(const std::string& path, const Transformer& model) {
  const MappedFile file(path);
  const SafetensorsContents contents = parse(file, path);
  const std::string& format = metadata_of(contents, "format", path);
  require(format == kFormat, Cause{ErrorCode::malformed, "", path}, path, " is of the format '",
          format, "', and this version reads '", kFormat, "'");
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, stored] : contents.tensors) tensors[name] = stored.read();
  const std::string& tokens = metadata_of(contents, "tokens", path);
  require(hash_of(tokens, tensors) == metadata_of(contents, "tensors", path),
          Cause{ErrorCode::malformed, "", path}, path,
          " is damaged: its tensors and tokens do not have the hash that its header states");
  require(metadata_of(contents, "weights", path) == hash_of_weights(model),
          Cause{ErrorCode::conflict, "", path}, path,
          " was made with other weights; read the text again with this checkpoint, or give the "
          "checkpoint and the --weights that it was made with");
  ReadText text;
  text.state.length = whole_number(tokens, path);
  const bool both = kind_has_encoder(model.config().kind);
  const auto layers =
      static_cast<size_t>(both ? model.config().layers_of_decoder() : model.config().layers);
  for (const char* name : {"hidden", "last"}) {
    require(tensors.contains(name), Cause{ErrorCode::malformed, name, path}, path,
            " has no tensor '", name, "'");
  }
  text.hidden = tensors.at("hidden").to(model.device());
  text.last = tensors.at("last").to_vector<int32_t>().at(0);
  const auto take = [&](const char* part, std::vector<MixerState>& states) {
    states.resize(layers);
    for (size_t layer = 0; layer < layers; ++layer) {
      const std::string prefix = layer_name(part, layer, "");
      for (auto each = tensors.lower_bound(prefix);
           each != tensors.end() && each->first.starts_with(prefix); ++each) {
        states[layer][each->first.substr(prefix.size())] =
            Variable(each->second.to(model.device()));
      }
    }
  };
  take("layers", text.state.layers);
  if (both) take("cross", text.state.cross);
  const int64_t width = model.config().width;
  require(text.hidden.shape() == Shape({1, width}) && is_floating(text.hidden.dtype()) &&
              text.last >= 0 && text.last < model.vocabulary(),
          Cause{ErrorCode::malformed, "", path}, path,
          ": 'hidden' and 'last' are not a vector and a token of this model");
  require_fitting(text.state, model, path);
  return text;
}

}  // namespace linnet
