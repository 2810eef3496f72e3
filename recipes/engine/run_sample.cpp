#include "recipes/engine/run_sample.h"

#include <algorithm>

#include "core/files.h"
#include "core/log.h"
#include "recipes/engine/generator.h"

namespace linnet {
namespace {

bool has_sample(const Recipe& recipe, const Task& task) {
  return task.kind() == TaskKind::language_model && recipe.generate.tokens > 0;
}

GenerateOptions sample_options(const Recipe& recipe) {
  const SampleConfig& config = recipe.generate;
  GenerateOptions options;
  options.tokens = config.tokens;
  options.sampling = {config.temperature, config.top_k, config.top_p};
  options.sampling.validate();
  options.seed = static_cast<uint64_t>(config.seed.value_or(recipe.seed));
  return options;
}

}  // namespace

void check_sample(const Recipe& recipe) {
  if (recipe.generate.tokens > 0) sample_options(recipe);
}

void check_sample(const Recipe& recipe, const Task& task) {
  if (!has_sample(recipe, task)) return;
  sample_options(recipe);
  try {
    encode_prompt(*task.tokenizer(), recipe.generate.prompt);
  } catch (const Error& error) {
    throw UsageError({error.code(), "generate.prompt", error.place()},
                     concat("generate.prompt: ", error.what()));
  }
}

void write_sample(const TrainParts& parts, const std::string& run_directory) {
  const auto& [recipe, task, model, updater, job] = parts;
  if (!has_sample(recipe, task)) return;
  const std::string& text = recipe.generate.prompt;
  const Tokenizer& tokenizer = *task.tokenizer();
  try {
    require_decode_state(model, "a sample");
  } catch (const UsageError& reason) {
    return log_warning(reason.what(), "; none is written");
  }
  const std::vector<int32_t> prompt = encode_prompt(tokenizer, text);
  GenerateOptions options = sample_options(recipe);
  if (const int64_t limit = longest_continuation(model, static_cast<int64_t>(prompt.size()));
      limit < options.tokens) {
    log_warning("the sample is ", std::max<int64_t>(limit, 0), " tokens instead of ",
                options.tokens, ": the model handles ", model.length_limit(), " positions");
    if (limit <= 0) return;
    options.tokens = limit;
  }
  const WithAverage averaged(model.parameters(), updater);
  Generated sample;
  try {
    sample = generate(model, prompt, options);
  } catch (const Error& reason) {  // weights that give no numbers: the run is done without it
    return log_warning("no sample is written: ", reason.what());
  }
  write_file_atomically(join_path(run_directory, "sample.txt"),
                        text + continuation(tokenizer, prompt, sample.tokens));
}

}  // namespace linnet
