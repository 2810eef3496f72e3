// Families of pretrained models: where each parameter of ours is in their files, and what a recipe
// says of them. A family is a table of names and a function of its config.json.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "core/tensor.h"

namespace linnet {

// Where weight and bias of a layer of ours are; a norm's gain is "weight" there. In both names *
// stands for the number of a layer.
struct WeightRule {
  const char* own;          // "layers.*.attention.q"
  const char* theirs;       // "encoder.layer.*.attention.self.query"
  bool transposed = false;  // their matrix is [in, out] (GPT-2's Conv1D), ours [out, in]
  int64_t part = 0;         // ours is this one of `parts` equal parts of the outputs
  int64_t parts = 1;
  bool bare = false;  // never with the family's prefix in front: a head beside the trunk
};

// A member of config.json and the key of a recipe that says the same.
struct ConfigField {
  enum class Kind {
    count,
    number,
    flag,
    activation,
    fixed,  // no member: what the family's code computes; `value` of the key
    only,   // no key: a member that changes the model unless it is `value`
    rate,   // a number that a recipe may change: dropout
  };
  Kind kind;
  const char* key;     // "model.width"; null for only
  const char* theirs;  // "hidden_size"; of fixed: in words
  const char* value;   // without such a member, as in a recipe; null: it is required
};

// What a recipe has to say for a config.json.
struct RecipeKey {
  std::string key;    // "model.width"
  std::string value;  // "384"
  std::string why;    // "hidden_size 384"
};

struct PretrainedFamily {
  const char* name;                   // in init.map, and config.json's model_type
  const char* prefix;                 // that names of a file may have in front
  std::span<const WeightRule> trunk;  // of several for one layer of ours the first found
  std::span<const WeightRule> heads;
  std::span<const ConfigField> fields;
  const char* architecture;  // what Hugging Face's library calls the trunk with `output`, if any
  const char* classifier;    // and with head.classes
  const char* masked;        // and with the head of a masked language model; null: it has none
  // The rules of all.
  std::vector<const WeightRule*> rules() const;
};

std::span<const PretrainedFamily> pretrained_families();
// nullptr when there is none of that name.
const PretrainedFamily* find_pretrained_family(std::string_view name);
// "bert, roberta or gpt2".
std::string pretrained_family_names();

// The name of a parameter of ours: "layers.3.attention.q.weight" is the "weight" of
// "layers.*.attention.q" in layer "3".
struct OwnName {
  explicit OwnName(const std::string& name);
  std::string layer, number, leaf;
};
// The first rule for a parameter; nullptr when there is none.
const WeightRule* rule_of(const PretrainedFamily& family, const OwnName& own);
// The name, without the family's prefix, and the shape of the tensor of theirs that holds it.
std::string name_there(const WeightRule& rule, const OwnName& own);
Shape shape_there(const Shape& own, const WeightRule& rule);

// The keys that a config.json fixes, or, of `rates`, suggests. Throws UsageError for a member that
// is missing, or says what linnet has not, and Error for one of another type.
std::vector<RecipeKey> recipe_keys(const PretrainedFamily& family, const JsonValue& config,
                                   bool rates);
// The inverse for one value of a recipe: what the member has to be; null for an activation that no
// family has.
JsonValue config_value(const ConfigField& field, const std::string& value);

}  // namespace linnet
