#include "recipes/engine/model_run.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <string_view>

#include "attention/layer_choice.h"
#include "core/column_file.h"
#include "core/files.h"
#include "core/hdf5.h"
#include "core/safetensors.h"
#include "data/pair_encoding.h"
#include "layers/attention_sections.h"
#include "layers/forward_record.h"
#include "layers/models.h"
#include "recipes/engine/generator.h"
#include "recipes/engine/run_state.h"

namespace linnet {
namespace {

// "0,4-5" or "all", each less than `count`.
std::vector<int64_t> numbers_of(std::string_view text, int64_t count, const char* option,
                                std::string_view what) {
  std::vector<int64_t> numbers;
  if (text == "all") {
    for (int64_t i = 0; i < count; ++i) numbers.push_back(i);
    return numbers;
  }
  const auto number = [&](std::string_view part) {
    int64_t value = -1;
    const char* end = part.data() + part.size();
    const auto [at, code] = std::from_chars(part.data(), end, value);
    require_usage(code == std::errc() && at == end && value >= 0,
                  Cause{ErrorCode::wrong_type, option}, option, ": '", text, "' names no ", what,
                  "; write such as 0,4-5, or all");
    require_usage(value < count, Cause{ErrorCode::out_of_range, option}, option, ": the model's ",
                  what, " are 0 to ", count - 1, ": there is no ", value);
    return value;
  };
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    const size_t dash = part.find('-', 1);
    const int64_t first = number(part.substr(0, dash));
    const int64_t last = dash == std::string_view::npos ? first : number(part.substr(dash + 1));
    require_usage(first <= last, Cause{ErrorCode::out_of_range, option}, option, ": '", part,
                  "' runs backwards; write ", last, "-", first);
    for (int64_t i = first; i <= last; ++i) numbers.push_back(i);
    begin = end + 1;
  }
  return numbers;
}

std::map<int64_t, std::vector<int64_t>> attention_of(const std::string& text,
                                                     const ModelConfig& model, int64_t layers) {
  std::map<int64_t, std::vector<int64_t>> asked;
  if (text.empty()) return asked;
  constexpr const char* kOption = "--attention";
  const std::string_view all = text;
  const size_t colon = all.find(':');
  const std::string_view heads = colon == std::string_view::npos ? "all" : all.substr(colon + 1);
  for (const int64_t layer : numbers_of(all.substr(0, colon), layers, kOption, "layers")) {
    asked[layer] = numbers_of(heads, model.heads, kOption, "heads");
  }
  return asked;
}

std::vector<int32_t> ids_of(const LoadedModel& loaded, const ModelRunRequest& request) {
  const int64_t vocabulary = loaded.model->vocabulary();
  if (!request.text) {
    require_usage(!request.ids.empty(), Cause{ErrorCode::out_of_range, "--ids"},
                  "there is nothing to read: give --text or --ids");
    for (const int32_t id : request.ids) {
      require_usage(0 <= id && id < vocabulary, Cause{ErrorCode::out_of_range, "--ids"},
                    "--ids: the model has the ids 0 to ", vocabulary - 1, ", and not ", id);
    }
    return request.ids;
  }
  const bool readable =
      loaded.tokenizer != nullptr &&
      (loaded.model->predicts_tokens() || loaded.tokenizer->special_ids().cls >= 0 ||
       loaded.tokenizer->pair_style() == PairStyle::t5) &&
      loaded.tokenizer->vocabulary_size() <= vocabulary;
  require_usage(readable, Cause{ErrorCode::conflict, "--text"},
                "this run's data make ids in a way of their own: give them, with --ids");
  if (loaded.recipe.model.kind == "decoder" && loaded.model->predicts_tokens()) {
    return encode_prompt(*loaded.tokenizer, *request.text);
  }
  return encode_text(*loaded.tokenizer, *request.text).ids;
}

void write_tensors(const std::string& path, const std::map<std::string, Tensor>& tensors,
                   const std::map<std::string, std::string>& about) {
  if (is_safetensors_name(path)) return write_safetensors(path, tensors, about);
  Hdf5Writer writer;
  for (const auto& [name, tensor] : tensors) writer.write(name, tensor);
  for (const auto& [name, text] : about) writer.set_attribute("/", name, text);
  write_file_atomically(path, writer.finish());
}

// A line for each of these layers that has no attention weights among `tensors`.
std::vector<std::string> without_weights(const ModelConfig& model,
                                         const std::map<int64_t, std::vector<int64_t>>& asked,
                                         const std::map<std::string, Tensor>& tensors) {
  const bool both = kind_has_encoder(model.kind);
  std::vector<std::string> lines;
  for (const AttentionSection& section : attention_sections(model)) {
    const bool cross = section.form == Form::cross;
    const std::string stack = !both                             ? ""
                              : section.form == Form::noncausal ? "encoder."
                                                                : "decoder.";
    for (const LayerChoice& choice : layer_choices(*section.node, section.layers)) {
      for (const int64_t layer : choice.layers) {
        const std::string place = concat(stack, "layers.", layer);
        if (!asked.contains(layer) ||
            tensors.contains(concat(place, cross ? ".cross_attention" : ".attention")))
          continue;
        lines.push_back(concat(both ? place : concat("layer ", layer), " has no ",
                               cross ? "cross-attention" : "attention", " weights: the outputs of ",
                               choice.attention.find("name")->raw(),
                               " are no weighted means of the tokens' values"));
      }
    }
  }
  return lines;
}

}  // namespace

std::vector<std::string> run_model(const std::string& run_or_checkpoint,
                                   const ModelRunRequest& request) {
  const LoadedModel loaded = load_model(run_or_checkpoint, {}, request.device);
  const Transformer& model = *loaded.model;
  const ModelConfig& config = model.config();
  require_usage(model.rows_per_example() == 1,
                Cause{ErrorCode::conflict, "model.head", loaded.path}, loaded.path,
                " reads an example in two rows, and this is one: run a model of single rows");
  const int64_t most = kind_has_encoder(config.kind)
                           ? std::max(config.layers, config.layers_of_decoder())
                           : config.layers;
  const auto layers =
      numbers_of(request.layers.empty() ? "all" : request.layers, most, "--layers", "layers");
  const auto attention = attention_of(request.attention, config, most);
  const std::vector<int32_t> ids = ids_of(loaded, request);
  const auto time = static_cast<int64_t>(ids.size());
  ModelInput input;
  input.tokens = Tensor::from(ids, {1, time}, model.device());
  const NoGrad off;
  ForwardRecord record({layers.begin(), layers.end()}, attention);
  const Variable hidden = model.encode(input, nullptr);
  record.add("final", hidden.value());
  std::map<std::string, Tensor> tensors = record.tensors();
  tensors["ids"] = Tensor::from(ids, {time});
  if (model.predicts_tokens()) {
    const Tensor table = hidden.value().slice(0, {time, config.width});
    tensors["logits"] = model.token_head().logits(table).to(DType::f32);
  } else {
    const Tensor logits = model.example_head().logits(hidden, input).value();
    tensors["logits"] = logits.slice(0, {logits.elements()}).to(DType::f32);
  }
  write_tensors(request.out, tensors,
                {{"checkpoint", loaded.path},
                 {"recipe", loaded.recipe.name},
                 {"step", std::to_string(loaded.step)}});
  std::vector<std::string> lines = {concat("wrote ", request.out, ": ", time, " tokens, ",
                                           tensors.size(), " tensors, of ", loaded.path)};
  for (std::string& line : without_weights(config, attention, tensors))
    lines.push_back(std::move(line));
  return lines;
}

}  // namespace linnet
