// Text from a decoder: the prompt once, then one token at a time with the mechanism's decode state.
// A decoder behind an encoder has the prompt as its source, and begins with model.decoder_start.
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
  uint64_t sample = 0;  // number of the sample: each has draws of its own
  int32_t eos_id = -1;  // stop after this token; -1: never
  bool log_probabilities = false;
};

// What a model has read of a text, from which any number of continuations start: reading and
// generating leave the tensors of a state as they are.
struct ReadText {
  ModelState state;
  Tensor hidden;      // [1,E], the vector of the last token
  int32_t last = -1;  // the last token
  // What the repetition penalty counts: tokens read by this program, none of them a source's.
  std::vector<int32_t> seen;
};

// At most so many tokens of a prompt go through the model at a time.
inline constexpr int64_t kPromptPart = 1024;

// Reads `tokens` (after what `text` has) in parts, so that memory beside the decode state does not
// grow with their number; an encoder reads its source at once, and no more after it. `on_part`
// hears how many are read. Throws UsageError when they exceed the positions that the model handles,
// or the mechanism has no decode state.
void read_text(const Transformer& model, std::span<const int32_t> tokens, ReadText& text,
               const std::function<void(int64_t read)>& on_part = {});

struct Generated {
  std::vector<int32_t> tokens;  // without the prompt
  // Of each token by the model's own distribution, before penalty, temperature and cuts; nats.
  std::vector<double> log_probabilities;
  double prompt_seconds = 0;
  double seconds = 0;      // for `tokens`
  size_t state_bytes = 0;  // of the decode state at the end
};

// Positions that a prompt of so many tokens takes in the decoder: behind an encoder that of
// model.decoder_start alone.
int64_t prompt_positions(const Transformer& model, int64_t prompt_tokens);

// Most tokens that can follow a prompt (at least one id): the last one needs no position of its
// own. Negative when the prompt itself is too long; INT64_MAX without a limit.
int64_t longest_continuation(const Transformer& model, int64_t prompt_tokens);

// Throws UsageError unless so many tokens can follow a prompt of that length.
void require_room(const Transformer& model, int64_t prompt_tokens, int64_t tokens);
// Throws UsageError unless the encoder can read a source of so many tokens.
void require_source(const Transformer& model, int64_t source_tokens);

// Is told each token as it is chosen; false ends the text after it.
using OnToken = std::function<bool(int32_t token)>;

// A text to go on from and how.
struct Continuation {
  std::function<ReadText()> read;  // called when its turn comes
  GenerateOptions options;
  OnToken on_token;
};

struct BatchCounts {
  int64_t passes = 0;  // of the model, each over every text that is being continued
  int64_t tokens = 0;
  double seconds = 0;  // of passes and draws
};

// Is told after each pass how many bytes the decode states of all texts have.
using OnPass = std::function<void(size_t state_bytes)>;

// Continues all texts, at most `slots` at a time: where one ends, the next takes its place between
// two steps. On the CPU in f32 a text is to the bit what it would be alone. `on_done` hears which
// one has ended. Throws as the generate() below.
BatchCounts generate_batch(const Transformer& model, std::span<const Continuation> texts,
                           int64_t slots,
                           const std::function<void(size_t text, Generated result)>& on_done,
                           const OnPass& on_pass = {});

// Continues a text (of at least one token). Never recomputes the prefix. Throws UsageError when
// `tokens` exceeds longest_continuation().
Generated generate(const Transformer& model, const ReadText& text, const GenerateOptions& options,
                   const OnToken& on_token = {});
// Reads `prompt` (at least one id) and continues it. Throws as read_text, too.
Generated generate(const Transformer& model, std::span<const int32_t> prompt,
                   const GenerateOptions& options, const OnToken& on_token = {});

// The ids of a prompt. An empty text becomes the end-of-text id, or a newline, so that the model
// has something to continue. Throws UsageError for words that the vocabulary lacks (Error where it
// has no <unk> to write in their place).
std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, std::string_view prompt);

// The text of `tokens` as it follows on `before`, separators between words included. May begin or
// end inside a UTF-8 sequence.
std::string continuation(const Tokenizer& tokenizer, std::span<const int32_t> before,
                         std::span<const int32_t> tokens);

}  // namespace linnet
