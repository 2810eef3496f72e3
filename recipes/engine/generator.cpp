#include "recipes/engine/generator.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "autograd/layout.h"
#include "core/cuda/backend.h"
#include "core/step_memory.h"
#include "core/threads.h"
#include "layers/models.h"
#include "recipes/engine/device_steps.h"
#include "recipes/engine/model_builder.h"

namespace linnet {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void check(const GenerateOptions& options) {
  options.sampling.validate();
  require_usage(options.tokens >= 0, Cause{ErrorCode::out_of_range, "generate.tokens"},
                "generate: tokens must be 0 or more, got ", options.tokens);
}

constexpr int64_t kReserved = int64_t{1} << 16;  // tokens

// A text that is being continued.
class Writing {
 public:
  Writing(const Transformer& model, const Continuation& text, size_t number)
      : options_(text.options),
        on_token_(text.on_token),
        number_(number),
        key_(RandomKey{options_.seed, options_.sample, 0}.at("generate")),
        text_(text.read()),
        seen_(static_cast<size_t>(model.vocabulary())),
        ended_(options_.tokens == 0) {
    require(text_.hidden.defined(), "generate: nothing was read");
    require_room(model, text_.state.length, options_.tokens);
    result_.tokens.reserve(static_cast<size_t>(std::min(options_.tokens, kReserved)));
    if (options_.log_probabilities) result_.log_probabilities.reserve(result_.tokens.capacity());
    for (const int32_t token : text_.seen) seen_[static_cast<size_t>(token)] = true;
  }
  size_t number() const { return number_; }
  bool ended() const { return ended_; }
  ModelState& state() { return text_.state; }
  const Tensor& hidden() const { return text_.hidden; }
  int32_t last() const { return result_.tokens.back(); }
  void set_hidden(Tensor hidden) { text_.hidden = std::move(hidden); }

  // What a device reads and draws by in the next step.
  StepRow step_row() {
    const size_t chosen = result_.tokens.size();
    return {number_,
            &text_.state,
            last(),
            key_,
            chosen,
            options_.sampling.temperature,
            options_.tokens - static_cast<int64_t>(chosen)};
  }
  // Whether a device chooses as choose() does.
  bool chosen_on_device() const {
    return options_.sampling.only_temperature() && !options_.log_probabilities;
  }
  // The next token, or its logits, where a device made them.
  void set_next(int32_t token) { next_ = token; }
  void set_logits(std::vector<float> logits) { logits_ = std::move(logits); }
  bool ready() const { return next_.has_value() || !logits_.empty(); }
  void choose_ready() {
    if (next_) return take(*std::exchange(next_, std::nullopt));
    choose(logits_);
    logits_.clear();
  }

  // The next token, from its logits.
  void choose(std::span<float> logits) {
    std::vector<float> own;
    if (options_.log_probabilities) own.assign(logits.begin(), logits.end());
    penalize(logits, seen_, options_.sampling.repetition_penalty);
    const auto draw = static_cast<uint64_t>(result_.tokens.size());
    const int32_t token = sample_token(logits, options_.sampling, key_, draw);
    if (options_.log_probabilities) {
      result_.log_probabilities.push_back(log_probability(own, token));
    }
    take(token);
  }
  Generated result() {
    result_.seconds = seconds_since(start_);
    result_.state_bytes = text_.state.bytes();
    return std::move(result_);
  }

 private:
  void take(int32_t token) {
    result_.tokens.push_back(token);
    seen_[static_cast<size_t>(token)] = true;
    const bool wanted = !on_token_ || on_token_(token);
    ended_ = !wanted || static_cast<int64_t>(result_.tokens.size()) == options_.tokens ||
             (options_.eos_id >= 0 && token == options_.eos_id);
  }

  const GenerateOptions& options_;
  const OnToken& on_token_;
  size_t number_;
  RandomKey key_;
  ReadText text_;
  std::vector<bool> seen_;
  bool ended_;
  std::optional<int32_t> next_;
  std::vector<float> logits_;
  Generated result_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

using Writings = std::vector<std::unique_ptr<Writing>>;

// A step's loops read the layers' decode states, one after the other.
int64_t loop_work(const Transformer& model, const Writings& texts) {
  size_t bytes = 0;
  for (const auto& text : texts) bytes = std::max(bytes, text->state().bytes());
  return static_cast<int64_t>(bytes / sizeof(float)) / model.config().layers;
}

size_t state_bytes(const Writings& texts) {
  size_t bytes = 0;
  for (const auto& text : texts) bytes += text->state().bytes();
  return bytes;
}

void choose_tokens(const Transformer& model, const Writings& texts) {
  std::vector<Tensor> rows;
  for (const auto& text : texts) {
    if (!text->ready()) rows.push_back(text->hidden());
  }
  std::vector<float> logits;
  if (!rows.empty()) logits = model.token_head().logits(concatenate(rows, 0)).to_vector<float>();
  const size_t words = logits.size() / std::max<size_t>(rows.size(), 1);
  size_t at = 0;
  for (const auto& text : texts) {
    if (text->ready()) {
      text->choose_ready();
    } else {
      text->choose(std::span(logits).subspan(at, words));
      at += words;
    }
  }
}

// The same as read_tokens() on a device, where the next tokens are chosen, too, if it can.
void step_on_device(DeviceSteps& steps, const Writings& texts) {
  std::vector<StepRow> rows;
  for (const auto& text : texts) rows.push_back(text->step_row());
  const bool choose =
      std::all_of(texts.begin(), texts.end(), [](const auto& t) { return t->chosen_on_device(); });
  if (choose) {
    const std::vector<int32_t> tokens = steps.choose(rows);
    for (size_t i = 0; i < texts.size(); ++i) texts[i]->set_next(tokens[i]);
    return;
  }
  const std::vector<float> logits = steps.logits(rows).to_vector<float>();
  const auto words = std::ssize(logits) / std::ssize(texts);
  auto begin = logits.begin();
  for (const auto& text : texts) {
    text->set_logits({begin, begin + words});
    begin += words;
  }
}

// Each text's last token through the model.
void read_tokens(const Transformer& model, const Writings& texts) {
  std::vector<int32_t> tokens;
  std::vector<ModelState*> states;
  for (const auto& text : texts) {
    tokens.push_back(text->last());
    states.push_back(&text->state());
  }
  const auto rows = static_cast<int64_t>(texts.size());
  const Tensor hidden =
      model.encode_rows(Tensor::from(tokens, {rows, 1}, model.device()), states).value();
  for (int64_t row = 0; row < rows; ++row) {
    texts[static_cast<size_t>(row)]->set_hidden(
        hidden.rows(row, row + 1).reshape({1, hidden.size(2)}));
  }
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

// Encodes the source and begins the decoder's text.
void read_source(const Transformer& model, std::span<const int32_t> tokens, ReadText& text) {
  require_usage(
      text.state.length == 0, Cause{ErrorCode::conflict, "generate.prompt"},
      "generate: the encoder has read its source, and takes no more: leave out the prompt, "
      "or the state");
  const auto start = static_cast<int32_t>(model.config().decoder_start);
  ModelInput input;
  input.source = Tensor::from(tokens, {1, std::ssize(tokens)}, model.device());
  input.tokens = Tensor::from(std::vector<int32_t>{start}, {1, 1}, model.device());
  text.hidden = model.encode(input, &text.state).value().reshape({1, model.config().width});
  text.last = start;
}

std::string counted_tokens(int64_t count) {
  return concat(count, count == 1 ? " token" : " tokens");
}

[[noreturn]] void refuse_length(const Transformer& model, const std::string& what,
                                const char* advice) {
  throw UsageError(
      {ErrorCode::out_of_range, "generate.tokens"},
      concat("generate: ", what, " do not fit into the ", model.length_limit(),
             " positions that the model handles; ", advice, "; ", model.length_limit_reason()));
}

}  // namespace

int64_t prompt_positions(const Transformer& model, int64_t prompt_tokens) {
  return kind_has_encoder(model.config().kind) ? 1 : prompt_tokens;
}

int64_t longest_continuation(const Transformer& model, int64_t prompt_tokens) {
  const int64_t limit = model.length_limit();
  if (limit == 0) return std::numeric_limits<int64_t>::max();
  const int64_t left = limit - prompt_tokens;
  return left >= 0 ? left + 1 : left;
}

void require_room(const Transformer& model, int64_t prompt_tokens, int64_t tokens) {
  const int64_t longest = longest_continuation(model, prompt_tokens);
  if (tokens <= longest) return;
  // Behind an encoder the prompt takes no positions of the text.
  if (kind_has_encoder(model.config().kind)) {
    refuse_length(model, counted_tokens(tokens), "ask for fewer tokens");
  }
  const std::string prompt = counted_tokens(prompt_tokens) + " of prompt";
  if (longest < 0) refuse_length(model, prompt, "give a shorter prompt");
  refuse_length(model, concat(prompt, " and ", tokens, " to follow"), "ask for fewer tokens");
}

void require_source(const Transformer& model, int64_t source_tokens) {
  const int64_t limit = model.length_limit();
  if (limit == 0 || source_tokens <= limit) return;
  refuse_length(model, counted_tokens(source_tokens) + " of source", "give a shorter prompt");
}

void read_text(const Transformer& model, std::span<const int32_t> tokens, ReadText& text,
               const std::function<void(int64_t read)>& on_part) {
  require_decode_state(model, "generating text");
  const NoGrad off;
  if (tokens.empty()) return;
  if (kind_has_encoder(model.config().kind)) {
    read_source(model, tokens, text);
    if (on_part) on_part(std::ssize(tokens));
    return;
  }
  require_room(model, text.state.length + std::ssize(tokens), 0);
  const size_t count = tokens.size();
  for (size_t begin = 0; begin < count; begin += static_cast<size_t>(kPromptPart)) {
    const size_t part = std::min(count - begin, static_cast<size_t>(kPromptPart));
    read_part(model, tokens.subspan(begin, part), text);
    if (on_part) on_part(static_cast<int64_t>(begin + part));
  }
  text.seen.insert(text.seen.end(), tokens.begin(), tokens.end());
}

BatchCounts generate_batch(const Transformer& model, std::span<const Continuation> texts,
                           int64_t slots,
                           const std::function<void(size_t text, Generated result)>& on_done,
                           const OnPass& on_pass) {
  model.token_head();
  require(slots > 0, "generate: no slots");
  for (const Continuation& text : texts) check(text.options);
  const NoGrad off;
  const StepMemory memory;
  std::unique_ptr<DeviceSteps> steps;
  if constexpr (kCuda) {
    if (on_cuda(model.parameters().weights())) steps = make_device_steps(model);
  }
  BatchCounts counts;
  std::vector<std::unique_ptr<Writing>> running;
  for (size_t next = 0; next < texts.size() || !running.empty();) {
    while (next < texts.size() && static_cast<int64_t>(running.size()) < slots) {
      auto text = std::make_unique<Writing>(model, texts[next], next);
      ++next;
      if (text->ended()) {
        on_done(text->number(), text->result());
      } else {
        running.push_back(std::move(text));
      }
    }
    if (running.empty()) continue;
    const auto start = std::chrono::steady_clock::now();
    counts.tokens += static_cast<int64_t>(running.size());
    const SmallStep step(loop_work(model, running));
    choose_tokens(model, running);
    for (const auto& text : running) {
      if (text->ended()) on_done(text->number(), text->result());
    }
    std::erase_if(running, [](const auto& text) { return text->ended(); });
    if (!running.empty()) {
      if (steps) {
        step_on_device(*steps, running);
      } else {
        read_tokens(model, running);
      }
      ++counts.passes;
      if (on_pass) on_pass(state_bytes(running));
    }
    counts.seconds += seconds_since(start);
  }
  return counts;
}

Generated generate(const Transformer& model, const ReadText& text, const GenerateOptions& options,
                   const OnToken& on_token) {
  Generated generated;
  const Continuation one{[&text] { return text; }, options, on_token};
  generate_batch(model, {&one, 1}, 1,
                 [&generated](size_t, Generated result) { generated = std::move(result); });
  return generated;
}

Generated generate(const Transformer& model, std::span<const int32_t> prompt,
                   const GenerateOptions& options, const OnToken& on_token) {
  model.token_head();
  check(options);
  require_usage(!prompt.empty(), Cause{ErrorCode::out_of_range, "generate.prompt"},
                "generate: the prompt has no tokens");
  require_decode_state(model, "generating text");
  const auto start = std::chrono::steady_clock::now();
  require_room(model, prompt_positions(model, std::ssize(prompt)), options.tokens);
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
