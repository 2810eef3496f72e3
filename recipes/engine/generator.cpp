#include "recipes/engine/generator.h"

#include <chrono>
#include <limits>

#include "core/threads.h"
#include "recipes/engine/model_builder.h"

namespace linnet {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Logits of the last position of hidden [1,T,E].
std::vector<float> last_logits(const Transformer& model, const Variable& hidden) {
  const int64_t width = hidden.size(2);
  const Tensor last = hidden.value().slice((hidden.size(1) - 1) * width, {1, width});
  return model.token_head().logits(last).to_vector<float>();
}

}  // namespace

int64_t longest_continuation(const Transformer& model, size_t prompt_tokens) {
  const int64_t limit = model.length_limit();
  if (limit == 0) return std::numeric_limits<int64_t>::max();
  const int64_t left = limit - static_cast<int64_t>(prompt_tokens);
  return left >= 0 ? left + 1 : left;
}

Generated generate(const Transformer& model, std::span<const int32_t> prompt,
                   const GenerateOptions& options, const std::function<void(int32_t)>& on_token) {
  model.token_head();
  options.sampling.validate();
  require_usage(!prompt.empty(), Cause{ErrorCode::out_of_range, "generate.prompt"},
                "generate: the prompt has no tokens");
  require_usage(options.tokens >= 0, Cause{ErrorCode::out_of_range, "generate.tokens"},
                "generate: tokens must be 0 or more, got ", options.tokens);
  require_decode_state(model, "generating text");
  if (options.tokens > longest_continuation(model, prompt.size())) {
    throw UsageError({ErrorCode::out_of_range, "generate.tokens"},
                     concat("generate: ", prompt.size(), " tokens of prompt and ", options.tokens,
                            " to follow do not fit into the ", model.length_limit(),
                            " positions that the model handles; ask for fewer tokens; ",
                            model.length_limit_reason()));
  }
  const NoGrad off;
  const RandomKey key = RandomKey{options.seed, 0, 0}.at("generate");
  const auto start = std::chrono::steady_clock::now();
  ModelState state;
  ModelInput input;
  input.tokens = Tensor::from(prompt, {1, static_cast<int64_t>(prompt.size())}, model.device());
  Generated result;
  Variable hidden = model.encode(input, &state);
  result.prompt_seconds = seconds_since(start);
  const auto generating = std::chrono::steady_clock::now();
  const int64_t layers = model.config().layers;
  for (int64_t i = 0; i < options.tokens; ++i) {
    // A step's loops read the layers' decode states, one after the other.
    const SmallStep step(static_cast<int64_t>(state.bytes() / sizeof(float)) / layers);
    const int32_t token =
        sample_token(last_logits(model, hidden), options.sampling, key, static_cast<uint64_t>(i));
    result.tokens.push_back(token);
    if (on_token) on_token(token);
    if (i + 1 == options.tokens || (options.eos_id >= 0 && token == options.eos_id)) break;
    input.tokens = Tensor::from(std::vector<int32_t>{token}, {1, 1}, model.device());
    hidden = model.encode(input, &state);
  }
  result.seconds = seconds_since(generating);
  result.state_bytes = state.bytes();
  return result;
}

std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, std::string_view prompt) {
  UnknownWords unknown;
  std::vector<int32_t> ids = tokenizer.encode(prompt, &unknown);
  require_usage(unknown.count == 0, Cause{ErrorCode::unknown_name, "generate.prompt"},
                "the vocabulary lacks ", unknown.count, unknown.count == 1 ? " word" : " words",
                " of the prompt (the first is '", unknown.first,
                "'); use other words, or write <unk> in their place");
  if (ids.empty()) {
    ids =
        tokenizer.eos_id() >= 0 ? std::vector<int32_t>{tokenizer.eos_id()} : tokenizer.encode("\n");
  }
  return ids;
}

std::string continuation(const Tokenizer& tokenizer, std::span<const int32_t> before,
                         std::span<const int32_t> tokens) {
  // The separator of two tokens depends on the first of them at most.
  std::vector<int32_t> ids(before.last(std::min<size_t>(before.size(), 1)).begin(), before.end());
  const size_t known = tokenizer.decode(ids).size();
  ids.insert(ids.end(), tokens.begin(), tokens.end());
  return tokenizer.decode(ids).substr(known);
}

}  // namespace linnet
