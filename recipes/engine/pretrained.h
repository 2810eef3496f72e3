// A pretrained model in a folder, as Hugging Face's tools leave it: config.json, weights as
// safetensors, files of a tokenizer.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/safetensors.h"
#include "layers/parameters.h"
#include "recipes/engine/pretrained_families.h"
#include "recipes/engine/recipe.h"

namespace linnet {

// The config.json of a folder and the family whose it is.
struct PretrainedConfig {
  std::string path;  // of config.json
  JsonValue json;
  const PretrainedFamily* family;
  std::vector<RecipeKey> keys, rates;  // of recipe_keys()
  int64_t vocabulary = 0;
};

// Throws UsageError where there is none, or for a model that no recipe can have: one of another
// family (`family` null: of none that is known), or with parts that linnet has not.
PretrainedConfig load_pretrained_config(const std::string& folder,
                                        const PretrainedFamily* family = nullptr);

// `data.tokenizer` for a folder's files, in one line: "{kind: wordpiece, path: DIR/vocab.txt}"; ""
// where it has none that linnet reads.
std::string tokenizer_section(const std::string& folder, const PretrainedFamily& family);

// The recipe's value of a key "model.KEY", with what 0 stands for.
std::string model_value(const Recipe& recipe, const std::string& key);

// Whether the model's head, if it has parameters, is one that the family has.
bool head_is_of(const PretrainedFamily& family, const ParameterSet& parameters);

// Weights of a family in a folder.
class Pretrained {
 public:
  // Throws Error as SafetensorsFiles, and UsageError as load_pretrained_config.
  Pretrained(const std::string& folder, const PretrainedFamily& family);
  const SafetensorsFiles& files() const { return files_; }

  // Throws UsageError with a problem for each key of the recipe's `model` that differs from
  // config.json.
  void require_same_model(const Recipe& recipe) const;
  // Throws UsageError where the ids of a tokenizer are not those of the embedding, which may have
  // fewer than 128 rows more. 0 ids: no text.
  void require_same_vocabulary(int64_t vocabulary) const;
  // Throws UsageError for parameters that have another shape there, and where none is there. The
  // model needs no weights.
  void require_fitting(const ParameterSet& parameters) const;
  // After require_fitting: copies what is there, but for rows without an id. Returns lines for the
  // log: what was taken over, what keeps its initial values, what of the files was not used.
  std::vector<std::string> load(const ParameterSet& parameters) const;

 private:
  struct Place {
    const WeightRule* rule = nullptr;
    std::string name;  // in the files; "" where they lack it
  };
  Place place_of(const std::string& own, bool head) const;
  // Whether a parameter can be read from a tensor of another table's length, or of the expected
  // one.
  bool fits(const std::string& own, const Shape& stored, const Shape& expected) const;
  Tensor read(const Place& place, const Shape& shape) const;

  std::string folder_;
  PretrainedConfig config_;
  SafetensorsFiles files_;
  std::map<std::string, std::string> names_;  // without prefix -> in the files
};

}  // namespace linnet
