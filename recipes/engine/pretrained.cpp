#include "recipes/engine/pretrained.h"

#include <algorithm>
#include <set>

#include "core/echo.h"
#include "core/files.h"
#include "recipes/engine/weight_differences.h"

namespace linnet {
namespace {

bool is_floating_type(std::string_view dtype) {
  return dtype == "F32" || dtype == "F64" || dtype == "F16" || dtype == "BF16";
}

constexpr std::string_view kHead = "head.";

// Whether a table of so many rows for so many ids is padded to a round number, as T5's 32,128 rows
// for 32,100: nothing reads the rest.
bool is_padded(int64_t rows, int64_t ids) {
  return rows > ids && rows - ids < 128;
}

bool has_row_for_each_id(std::string_view own) {
  return own == "embedding.weight" || own == "output.weight" || own == "head.bias";
}

}  // namespace

bool head_is_of(const PretrainedFamily& family, const ParameterSet& parameters) {
  return std::all_of(parameters.entries().begin(), parameters.entries().end(),
                     [&](const ParameterSet::Entry& entry) {
                       return !entry.name.starts_with(kHead) ||
                              rule_of(family, OwnName(entry.name), false) != nullptr;
                     });
}

Pretrained::Pretrained(const std::string& folder, const PretrainedFamily& family)
    : folder_(folder), config_(load_pretrained_config(folder, &family)), files_(folder) {
  for (const auto& [name, tensor] : files_.tensors()) {
    std::string key = name;
    if (key.starts_with(family.prefix)) key.erase(0, std::string_view(family.prefix).size());
    // How BERT's first files name the parameters of norms.
    if (key.ends_with(".LayerNorm.gamma")) key.replace(key.size() - 5, 5, "weight");
    if (key.ends_with(".LayerNorm.beta")) key.replace(key.size() - 4, 4, "bias");
    const auto [at, fresh] = names_.emplace(key, name);
    require_usage(fresh, Cause{ErrorCode::repeated, name, files_.path()}, files_.path(), ": '",
                  at->second, "' and '", name, "' are the same parameter");
  }
}

Pretrained::Place Pretrained::place_of(const std::string& own, bool head) const {
  if (!head && own.starts_with(kHead)) return {};
  const OwnName name(own);
  for (const WeightRule* rule : config_.family->rules()) {
    if (!name.is_of(*rule)) continue;
    const auto found = names_.find(name_there(*rule, name));
    if (found != names_.end()) return {rule, found->second};
  }
  return {};
}

void Pretrained::require_same_vocabulary(int64_t vocabulary) const {
  if (vocabulary == 0 || vocabulary == config_.vocabulary ||
      is_padded(config_.vocabulary, vocabulary))
    return;
  const std::string section = tokenizer_section(folder_, *config_.family);
  throw UsageError({ErrorCode::conflict, "data.tokenizer", config_.path},
                   concat("init.from: vocab_size in ", config_.path, " is ", config_.vocabulary,
                          ", and the recipe's tokenizer has ", vocabulary, " ids; ",
                          section.empty() ? "set data.tokenizer to the one of that model"
                                          : concat("set data.tokenizer=", shell_word(section))));
}

void Pretrained::require_fitting(const ParameterSet& parameters) const {
  WeightDifferences shapes(ErrorCode::conflict, files_.path(), "other shapes");
  size_t there = 0;
  const bool head = head_is_of(*config_.family, parameters);
  for (const ParameterSet::Entry& entry : parameters.entries()) {
    const Place place = place_of(entry.name, head);
    if (place.name.empty()) continue;
    ++there;
    const StoredTensor& stored = files_.tensors().at(place.name);
    const Shape expected = shape_there(entry.shape, *place.rule);
    if (fits(entry.name, stored.shape, expected) && is_floating_type(stored.dtype)) continue;
    shapes.add(entry.name, concat(" is ", stored.dtype, " ", stored.shape, " there ('", place.name,
                                  "') and F32 ", expected, " here"));
  }
  require_usage(there > 0, Cause{ErrorCode::not_found, "init.map", files_.path()},
                "init.from: ", files_.path(), " holds no parameter of this model by the names of ",
                config_.family->name);
  std::vector<Error::Problem> problems;
  std::string text;
  shapes.report(text, problems);
  if (problems.empty()) return;
  throw UsageError(std::move(problems), concat("init.from: the weights of ", files_.path(),
                                               " do not fit this recipe's model", text));
}

bool Pretrained::fits(const std::string& own, const Shape& stored, const Shape& expected) const {
  if (stored == expected) return true;
  if (!has_row_for_each_id(own) || !is_padded(config_.vocabulary, expected[0])) return false;
  return stored == expected.with(0, config_.vocabulary);
}

Tensor Pretrained::read(const Place& place, const Shape& shape) const {
  const WeightRule& rule = *place.rule;
  const Tensor stored = files_.read(place.name).to(DType::f32);
  if (stored.elements() > shape.elements() * rule.parts) return stored.rows(0, shape[0]).clone();
  if (!rule.transposed && rule.parts == 1) return stored;
  const Shape matrix = matrix_of(shape, rule);
  const int64_t out = matrix[0], in = matrix.elements() / out, all = out * rule.parts;
  const bool transposed = rule.transposed && matrix.rank() == 2;
  const Tensor own = Tensor::empty(shape);
  const float* from = stored.data<float>();
  float* to = own.data<float>();
  for (int64_t o = 0; o < out; ++o) {
    const int64_t row = rule.part * out + o;
    for (int64_t i = 0; i < in; ++i) {
      to[o * in + i] = from[transposed ? i * all + row : row * in + i];
    }
  }
  return own;
}

std::vector<std::string> Pretrained::load(const ParameterSet& parameters) const {
  std::set<std::string> used;
  std::vector<std::string> fresh, unused;
  size_t taken = 0;
  int64_t ids = config_.vocabulary;
  const bool head = head_is_of(*config_.family, parameters);
  for (const ParameterSet::Entry& entry : parameters.entries()) {
    const Place place = place_of(entry.name, head);
    if (place.name.empty()) {
      fresh.push_back(entry.name);
      continue;
    }
    used.insert(place.name);
    ++taken;
    if (has_row_for_each_id(entry.name)) ids = entry.shape[0];
    parameters.weight_of(entry).copy_from(read(place, entry.shape));
  }
  parameters.refresh_values();
  begin_as_head(parameters, fresh);
  for (const ParameterSet::Buffer& buffer : parameters.buffers()) fresh.push_back(buffer.name);
  for (const auto& [name, tensor] : files_.tensors()) {
    if (!used.contains(name)) unused.push_back(name);
  }
  std::vector<std::string> lines{concat("takes over ", taken, " parameters from ", used.size(),
                                        " of ", files_.tensors().size(), " tensors in ",
                                        files_.path())};
  if (ids < config_.vocabulary)
    lines.push_back(concat("the last ", config_.vocabulary - ids, " of ", config_.vocabulary,
                           " rows of its tables are of no id of the tokenizer and left out"));
  if (!fresh.empty())
    lines.push_back(concat("keep their initial values: ", names_of_layers(fresh)));
  if (!unused.empty()) lines.push_back(concat("not used there: ", names_of_layers(unused)));
  return lines;
}

}  // namespace linnet
