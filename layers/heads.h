// Heads: what a model makes of the vectors after its last block. A head is a file NAME_head.cpp, a
// line in head_makers.h and one in heads.cpp.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "layers/model_config.h"
#include "layers/model_input.h"
#include "layers/parameters.h"

namespace linnet {

class AdaptiveTables;

// Predicts a token at every position: the next one, or the one that a mask hides.
class TokenHead {
 public:
  virtual ~TokenHead() = default;
  // The sum of the cross-entropies of hidden [..,E] with targets, i32 with an entry per vector, -1
  // where nothing is scored: f64, in nats.
  virtual Variable loss(const Variable& hidden, const Tensor& targets) const = 0;
  // The same of a batch, for heads that drop out or sort its targets.
  virtual Variable loss(const Variable& hidden, const Tensor& targets, const ModelInput&) const {
    return loss(hidden, targets);
  }
  // The cross-entropy of each target, f64 [targets], 0 where unscored, without recording.
  virtual Tensor losses(const Tensor& hidden, const Tensor& targets) const = 0;
  // [N,V] of hidden [N,E], without recording; f32 of bf16, so that close logits stay apart.
  virtual Tensor logits(const Tensor& hidden) const = 0;
};

// Predicts the class of an example, or a value.
class ExampleHead {
 public:
  virtual ~ExampleHead() = default;
  // [B / rows_per_example, classes] of hidden [B,T,E] and the batch that it came from.
  virtual Variable logits(const Variable& hidden, const ModelInput& input) const = 0;
};

using Head = std::variant<std::unique_ptr<const TokenHead>, std::unique_ptr<const ExampleHead>>;

// What a head is made from.
struct HeadParts {
  const ModelConfig& config;
  const ModelSizes& sizes;
  ParameterScope model;  // of the whole model's parameters
  Variable token_table;  // [V,E], the embedding; undefined where its tables are adaptive
  std::shared_ptr<const AdaptiveTables> adaptive_tables;
};

// The values of model.head: "auto", which is what the data ask for, and the heads.
std::vector<std::string> head_names();

// The head that model.head, or else the data, ask for. Throws UsageError for a head
// that does not suit the data.
Head make_head(const HeadParts& parts);

}  // namespace linnet
