// What linnet generate is asked for, and how it answers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "recipes/engine/run_state.h"
#include "recipes/engine/speculation.h"
#include "tools/cli/prompts.h"

namespace linnet::cli {

// Options that the command line lacks are those of the recipe's generate section.
struct GenerateArguments {
  std::string path, device = "auto", backend = "auto", weights = "f32";
  std::optional<std::string> prompt, prompt_file, prompts, state, save_state;
  std::vector<std::string> stop;
  std::optional<int64_t> tokens, top_k;
  std::optional<double> temperature, top_p;
  double min_p = 0, repetition_penalty = 1;
  std::optional<uint64_t> seed;
  int64_t samples = 1, batch = 8;
  std::optional<std::string> tree;
  std::string accept = "typical";
  std::optional<int64_t> beams;
  double length_penalty = 1;
  bool json = false;
};

// The texts to continue. Throws UsageError where none is given, for a file that cannot be opened
// and for invalid UTF-8.
std::vector<Prompt> prompts_of(const GenerateArguments& arguments);

// Continues all prompts and prints the texts. `speculation`: none where nothing is guessed.
void generate_texts(const GenerateArguments& arguments, std::vector<Prompt> prompts,
                    std::optional<Speculation> speculation, const LoadedModel& loaded);

}  // namespace linnet::cli
