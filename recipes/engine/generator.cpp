#include "recipes/engine/generator.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "core/threads.h"
#include "recipes/engine/model_builder.h"

namespace linnet {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::vector<float> logits_of(const Transformer& model, const Tensor& hidden) {
  return model.token_head().logits(hidden).to_vector<float>();
}

// Runs `tokens` through the model and notes the vector of the last one.
void read_part(const Transformer& model, std::span<const int32_t> tokens, ReadText& text) {
  ModelInput input;
  input.tokens = Tensor::from(tokens, {1, static_cast<int64_t>(tokens.size())}, model.device());
  const Variable hidden = model.encode(input, &text.state);
  const int64_t width = hidden.size(2);
  text.hidden = hidden.value().slice((hidden.size(1) - 1) * width, {1, width});
  text.last = tokens.back();
}

}  // namespace

int64_t longest_continuation(const Transformer& model, int64_t prompt_tokens) {
  const int64_t limit = model.length_limit();
  if (limit == 0) return std::numeric_limits<int64_t>::max();
  const int64_t left = limit - prompt_tokens;
  return left >= 0 ? left + 1 : left;
}

void require_room(const Transformer& model, int64_t prompt_tokens, int64_t tokens) {
  if (tokens <= longest_continuation(model, prompt_tokens)) return;
  throw UsageError({ErrorCode::out_of_range, "generate.tokens"},
                   concat("generate: ", prompt_tokens, " tokens of prompt and ", tokens,
                          " to follow do not fit into the ", model.length_limit(),
                          " positions that the model handles; ask for fewer tokens; ",
                          model.length_limit_reason()));
}

void read_text(const Transformer& model, std::span<const int32_t> tokens, ReadText& text,
               const std::function<void(int64_t read)>& on_part) {
  require_decode_state(model, "generating text");
  require_room(model, text.state.length + static_cast<int64_t>(tokens.size()), 0);
  const NoGrad off;
  const size_t count = tokens.size();
  for (size_t begin = 0; begin < count; begin += static_cast<size_t>(kPromptPart)) {
    const size_t part = std::min(count - begin, static_cast<size_t>(kPromptPart));
    read_part(model, tokens.subspan(begin, part), text);
    if (on_part) on_part(static_cast<int64_t>(begin + part));
  }
  text.seen.insert(text.seen.end(), tokens.begin(), tokens.end());
}

Generated generate(const Transformer& model, const ReadText& text, const GenerateOptions& options,
                   const OnToken& on_token) {
  model.token_head();
  options.sampling.validate();
  require(text.hidden.defined(), "generate: nothing was read");
  require_usage(options.tokens >= 0, Cause{ErrorCode::out_of_range, "generate.tokens"},
                "generate: tokens must be 0 or more, got ", options.tokens);
  require_room(model, text.state.length, options.tokens);
  const NoGrad off;
  const RandomKey key = RandomKey{options.seed, options.sample, 0}.at("generate");
  std::vector<bool> seen(static_cast<size_t>(model.vocabulary()));
  for (const int32_t token : text.seen) seen[static_cast<size_t>(token)] = true;
  const auto start = std::chrono::steady_clock::now();
  Generated result;
  ReadText now = text;
  const int64_t layers = model.config().layers;
  for (int64_t i = 0; i < options.tokens; ++i) {
    // A step's loops read the layers' decode states, one after the other.
    const SmallStep step(static_cast<int64_t>(now.state.bytes() / sizeof(float)) / layers);
    std::vector<float> logits = logits_of(model, now.hidden);
    const std::vector<float> own = options.log_probabilities ? logits : std::vector<float>();
    penalize(logits, seen, options.sampling.repetition_penalty);
    const int32_t token = sample_token(logits, options.sampling, key, static_cast<uint64_t>(i));
    result.tokens.push_back(token);
    if (options.log_probabilities) result.log_probabilities.push_back(log_probability(own, token));
    if (on_token && !on_token(token)) break;
    if (i + 1 == options.tokens || (options.eos_id >= 0 && token == options.eos_id)) break;
    seen[static_cast<size_t>(token)] = true;
    read_part(model, {&token, 1}, now);
  }
  result.seconds = seconds_since(start);
  result.state_bytes = now.state.bytes();
  return result;
}

Generated generate(const Transformer& model, std::span<const int32_t> prompt,
                   const GenerateOptions& options, const OnToken& on_token) {
  model.token_head();
  options.sampling.validate();
  require_usage(!prompt.empty(), Cause{ErrorCode::out_of_range, "generate.prompt"},
                "generate: the prompt has no tokens");
  const auto start = std::chrono::steady_clock::now();
  require_room(model, static_cast<int64_t>(prompt.size()), options.tokens);
  ReadText text;
  read_text(model, prompt, text);
  const double seconds = seconds_since(start);
  Generated result = generate(model, text, options, on_token);
  result.prompt_seconds = seconds;
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
