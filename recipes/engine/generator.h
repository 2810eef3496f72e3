// Text from a decoder: the prompt once, then one token at a time with the mechanism's decode state.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"
#include "layers/model.h"
#include "recipes/engine/sampling.h"

namespace linnet {

struct GenerateOptions {
  int64_t tokens = 200;  // at most so many after the prompt
  SamplingOptions sampling;
  uint64_t seed = 1;
  int32_t eos_id = -1;  // stop after this token; -1: never
};

struct Generated {
  std::vector<int32_t> tokens;  // without the prompt
  double prompt_seconds = 0;
  double seconds = 0;      // for `tokens`
  size_t state_bytes = 0;  // of the decode state at the end
};

// Most tokens that can follow a prompt (at least one id): the last one needs no position of its
// own. Negative when the prompt itself is too long; INT64_MAX without a limit.
int64_t longest_continuation(const Transformer& model, size_t prompt_tokens);

// Continues `prompt` (at least one id). `on_token` sees each token as it is chosen. Never
// recomputes the prefix. Throws UsageError when `tokens` exceeds longest_continuation(), or the
// mechanism has no decode state.
Generated generate(const Transformer& model, std::span<const int32_t> prompt,
                   const GenerateOptions& options,
                   const std::function<void(int32_t)>& on_token = {});

// The ids of a prompt. An empty text becomes the end-of-text id, or a newline, so that the model
// has something to continue. Throws UsageError for words that the vocabulary lacks (Error where it
// has no <unk> to write in their place).
std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, std::string_view prompt);

// The text of `tokens` as it follows on `before`, separators between words included. May begin or
// end inside a UTF-8 sequence.
std::string continuation(const Tokenizer& tokenizer, std::span<const int32_t> before,
                         std::span<const int32_t> tokens);

}  // namespace linnet
