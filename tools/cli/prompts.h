// The prompts of linnet generate.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/json.h"

namespace linnet::cli {

struct Prompt {
  std::string text = {};
  JsonValue id = {};       // as the file has it; null: none
  int64_t line = 0;        // of the file of prompts, from 1; 0: from no such file
  std::string place = {};  // "prompts.txt:3", or a file that is one prompt; empty: from an option
};

// The prompts of a file: one on each line, empty lines left out; in a file NAME.jsonl a JSON object
// on each line with "prompt" and, if wanted, "id". Throws UsageError naming the line that is
// neither valid UTF-8 nor such an object, for a file without prompts, and for one that cannot be
// opened.
std::vector<Prompt> read_prompts(const std::string& path);

// A file that is one prompt, whole, at most 1 GiB of valid UTF-8. Throws as read_prompts().
std::string read_prompt(const std::string& path);

// Runs what makes something of an argument: an Error of it becomes a UsageError, with the place of
// the argument (empty: none) before its sentence. Failures of the system stay what they are.
template <typename Body>
auto of_argument(const std::string& place, const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::system) throw;
    if (place.empty()) throw UsageError(error.cause(), error.what());
    throw UsageError({error.code(), error.key(), place}, concat(place, ": ", error.what()));
  }
}

}  // namespace linnet::cli
