// The prompts of linnet generate.
#pragma once

#include <string>
#include <vector>

#include "core/json.h"

namespace linnet::cli {

struct Prompt {
  std::string text;
  JsonValue id;  // as the file has it; null: none
};

// The prompts of a file: one on each line, empty lines left out; in a file NAME.jsonl a JSON object
// on each line with "prompt" and, if wanted, "id". Throws UsageError naming the line that is
// neither valid UTF-8 nor such an object, and for a file without prompts.
std::vector<Prompt> read_prompts(const std::string& path);

// A file that is one prompt, whole, at most 1 GiB of valid UTF-8.
std::string read_prompt(const std::string& path);

}  // namespace linnet::cli
