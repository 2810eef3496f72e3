// linnet generate: text from a checkpoint.
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <CLI/CLI.hpp>
#include <iostream>
#include <mutex>
#include <optional>

#include "core/interrupt.h"
#include "core/json.h"
#include "core/kernel_choice.h"
#include "core/log.h"
#include "core/utf8.h"
#include "recipes/engine/generator.h"
#include "recipes/engine/run_state.h"
#include "tools/cli/commands.h"

namespace linnet::cli {
namespace {

// Options that the command line lacks are those of the recipe's generate section.
struct Arguments {
  std::string path, prompt, device = "auto", backend = "auto";
  std::optional<int64_t> tokens, top_k;
  std::optional<double> temperature, top_p;
  std::optional<uint64_t> seed;
  bool json = false;
};

GenerateOptions options_of(const Arguments& arguments, const LoadedModel& loaded) {
  const SampleConfig& defaults = loaded.recipe.generate;
  GenerateOptions options;
  options.tokens = arguments.tokens.value_or(defaults.tokens);
  options.sampling.temperature = arguments.temperature.value_or(defaults.temperature);
  options.sampling.top_k = arguments.top_k.value_or(defaults.top_k);
  options.sampling.top_p = arguments.top_p.value_or(defaults.top_p);
  options.seed =
      arguments.seed.value_or(static_cast<uint64_t>(defaults.seed.value_or(loaded.recipe.seed)));
  // A word tokenizer's <eos> ends a line, not the text.
  options.eos_id = loaded.tokenizer->lines_end_with_eos() ? -1 : loaded.tokenizer->eos_id();
  return options;
}

// Prints tokens as they come, only whole characters: a token may end inside one.
class TextPrinter {
 public:
  TextPrinter(const Tokenizer& tokenizer, std::span<const int32_t> prompt)
      : tokenizer_(tokenizer), printed_{prompt.back()} {}
  // Before a stop ends the program: ends the line, unless the output is stuck, and prints nothing
  // more.
  void end_line() {
    pollfd out{STDOUT_FILENO, POLLOUT, 0};
    if (!printing_.try_lock_for(std::chrono::milliseconds(100)) || ::poll(&out, 1, 0) != 1) return;
    [[maybe_unused]] const ssize_t written = ::write(STDOUT_FILENO, "\n", 1);
  }
  void print(int32_t token) {
    pending_.push_back(token);
    const std::string text = continuation(tokenizer_, printed_, pending_);
    const size_t valid = std::min(text.size(), find_invalid_utf8(text));
    if (valid < text.size() && text.size() - valid < 4) return;
    flush();
  }
  void flush() {
    if (pending_.empty()) return;
    const std::lock_guard lock(printing_);
    std::cout << replace_invalid_utf8(continuation(tokenizer_, printed_, pending_)) << std::flush;
    require_output();
    printed_ = {pending_.back()};
    pending_.clear();
  }

 private:
  const Tokenizer& tokenizer_;
  std::vector<int32_t> printed_, pending_;
  std::timed_mutex printing_;
};

int run(const Arguments& arguments) {
  const size_t invalid = find_invalid_utf8(arguments.prompt);
  require_usage(invalid == std::string::npos, Cause{ErrorCode::malformed, "--prompt"},
                "--prompt is not valid UTF-8 at its byte ", invalid);
  const Device device = use_device(arguments.device);
  const UseKernels kernels(kernel_choice_from_name(arguments.backend), device);
  const LoadedModel loaded = load_model(arguments.path, {}, device);
  const Transformer& model = *loaded.model;
  model.token_head();  // classifiers are refused before they are asked for a tokenizer
  require_usage(loaded.tokenizer != nullptr, Cause{ErrorCode::conflict, "", loaded.path},
                "checkpoint ", loaded.path, " is of data of kind ", loaded.recipe.data.kind,
                ", which have no text to continue; name a checkpoint of a language model of texts");
  log_info("checkpoint ", loaded.path, " (step ", loaded.step, ")");
  const GenerateOptions options = options_of(arguments, loaded);
  const std::vector<int32_t> prompt = encode_prompt(*loaded.tokenizer, arguments.prompt);
  // Before anything is printed.
  options.sampling.validate();
  if (arguments.json) {
    const Generated result = generate(model, prompt, options);
    JsonValue tokens = JsonValue::array();
    for (const int32_t token : result.tokens) tokens.push(token);
    std::cout << JsonValue::object()
                     .set("checkpoint", loaded.path)
                     .set("step", loaded.step)
                     .set("prompt", arguments.prompt)
                     .set("text", replace_invalid_utf8(
                                      continuation(*loaded.tokenizer, prompt, result.tokens)))
                     .set("tokens", tokens)
                     .set("seconds", result.seconds)
                     .set("state_bytes", static_cast<int64_t>(result.state_bytes))
                     .dump()
              << "\n";
    return 0;
  }
  // The prompt appears with the first token: never before a message that nothing can be generated.
  bool begun = false;
  TextPrinter printer(*loaded.tokenizer, prompt);
  std::optional<StopCleanup> line_end;
  const Generated result = generate(model, prompt, options, [&](int32_t token) {
    if (!begun) {
      line_end.emplace([&printer] { printer.end_line(); });
      std::cout << arguments.prompt;
    }
    begun = true;
    printer.print(token);
  });
  if (!begun) std::cout << arguments.prompt;
  printer.flush();
  line_end.reset();
  std::cout << std::endl;
  log_info(result.tokens.size(), " tokens, ",
           std::llround(static_cast<double>(result.tokens.size()) / std::max(result.seconds, 1e-9)),
           " per second; decode state ", result.state_bytes, " bytes");
  return 0;
}

}  // namespace

void add_generate(CLI::App& app, Command& chosen) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("generate", "continue a text with a checkpoint");
  command
      ->add_option("RUN_OR_CHECKPOINT", arguments->path,
                   "a run directory (its best checkpoint) or a checkpoint directory")
      ->required();
  command->add_option("--prompt", arguments->prompt, "text to continue")->required();
  command->add_option("--tokens", arguments->tokens, "how many to generate")
      ->check(between(0, kLongestSample));
  command->add_option("--temperature", arguments->temperature, "0 takes the most likely token");
  command->add_option("--top-k", arguments->top_k, "keep the k most likely; 0: all");
  command->add_option("--top-p", arguments->top_p, "keep the smallest set of this probability");
  command->add_option("--seed", arguments->seed, "of the draws, 0 or more")->check(at_least(0));
  command->add_flag("--json", arguments->json, "one JSON object on stdout");
  add_device_option(*command, arguments->device);
  add_backend_option(*command, arguments->backend);
  add_plugin_option(*command);
  add_threads_option(*command);
  command->callback([arguments, &chosen] { chosen = [arguments] { return run(*arguments); }; });
}

}  // namespace linnet::cli
