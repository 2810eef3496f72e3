#include "layers/heads.h"

#include <algorithm>
#include <iterator>

#include "layers/head_makers.h"

namespace linnet {
namespace {

struct HeadEntry {
  const char* name;
  bool of_examples;  // else of tokens
  bool pairs;        // takes examples of two rows
  Head (*make)(const HeadParts&);
};

constexpr HeadEntry kHeads[] = {
    {"table", false, false, make_table_head},
    {"adaptive", false, false, make_adaptive_head},
    {"masked_lm", false, false, make_masked_lm_head},
    {"lra", true, true, make_lra_head},
    {"pooler", true, false, make_pooler_head},
    {"last_token", true, false, make_last_token_head},
};

const HeadEntry& entry_of(std::string_view name) {
  return *std::find_if(std::begin(kHeads), std::end(kHeads),
                       [name](const HeadEntry& head) { return name == head.name; });
}

// "lra, pooler or last_token".
std::string names(bool of_examples, bool pairs) {
  std::vector<std::string> list;
  for (const HeadEntry& head : kHeads) {
    if (head.of_examples == of_examples && (head.pairs || !pairs)) list.emplace_back(head.name);
  }
  std::string text = list[0];
  for (size_t i = 1; i < list.size(); ++i) {
    text += (i + 1 == list.size() ? " or " : ", ") + list[i];
  }
  return text;
}

}  // namespace

std::vector<std::string> head_names() {
  std::vector<std::string> names{"auto"};
  for (const HeadEntry& head : kHeads) names.emplace_back(head.name);
  return names;
}

Head make_head(const HeadParts& parts) {
  const ModelConfig& config = parts.config;
  const ModelSizes& sizes = parts.sizes;
  const bool of_examples = sizes.classes > 0, pairs = sizes.rows_per_example == 2;
  require(pairs || sizes.rows_per_example == 1, "model: an example has 1 or 2 rows, got ",
          sizes.rows_per_example);
  std::string_view name = config.head;
  if (name == "auto") {
    name = !of_examples                       ? std::string_view(config.embedding)
           : config.kind == "encoder_decoder" ? "pooler"
                                              : "lra";
  }
  const HeadEntry& head = entry_of(name);
  const Cause cause{ErrorCode::conflict, "model.head"};
  require_usage(head.of_examples == of_examples, cause, "model.head ", name, " predicts ",
                head.of_examples ? "classes of examples" : "tokens",
                ", and the task is to predict ", of_examples ? "classes or values" : "tokens",
                ": leave it out, or set it to ", names(of_examples, pairs));
  require_usage(head.pairs || !pairs, cause, "model.head ", name,
                " reads one row an example, and the data have two: set model.head=",
                names(of_examples, pairs));
  const bool by_embedding = name == "masked_lm" || (name == "table" && config.tie_embeddings);
  require_usage(!by_embedding || parts.token_table.defined(), cause, "model.head ", name,
                " predicts by the embedding's table, and model.embedding adaptive has none: set "
                "model.embedding=table, or model.head=adaptive");
  return head.make(parts);
}

}  // namespace linnet
