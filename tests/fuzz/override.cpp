// Overrides of the command line, one a line, on top of a recipe with a sweep.
#include "recipes/engine/recipe.h"

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/memory_files.h"

namespace linnet::fuzz {
namespace {

constexpr size_t kMaxOverrides = 64;

constexpr const char* kRecipe = R"(name: base
data: {kind: text, path: corpus, tokenizer: {kind: gpt2, path: files}, context: 64}
model: {kind: decoder, layers: 2, width: 32, heads: 2, attention: {name: lavo, rank: 8}}
optim: {kind: adamw, lr: 1e-3, schedule: {kind: cosine, warmup_steps: 10}}
train: {max_steps: 100, tokens_per_update: 128}
evaluate: {contexts: [64]}
sweep: {model.attention: [{name: lavo, rank: 8}, {name: softmax}], optim.lr: [1e-3, 1e-4]}
)";

}  // namespace

void read_input(std::string_view input) {
  MemoryFiles files;
  files["recipe.yaml"] = kRecipe;
  std::vector<std::string> overrides;
  while (!input.empty() && overrides.size() < kMaxOverrides) {
    const size_t end = std::min(input.find('\n'), input.size());
    overrides.emplace_back(input.substr(0, end));
    input.remove_prefix(std::min(end + 1, input.size()));
  }
  const std::vector<RecipePoint> points = load_recipe_points("recipe.yaml", overrides);
  restart_notes(points.front().node);
  const ConfigNode resolved = parse_recipe(points.front().node).resolved;
  expect(parse_recipe(resolved).resolved == resolved, "a resolved recipe resolves to itself");
}

}  // namespace linnet::fuzz
