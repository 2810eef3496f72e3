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
#include "core/progress.h"
#include "core/utf8.h"
#include "recipes/engine/generator.h"
#include "recipes/engine/run_state.h"
#include "recipes/engine/saved_state.h"
#include "recipes/engine/text_stream.h"
#include "tools/cli/commands.h"
#include "tools/cli/prompts.h"

namespace linnet::cli {
namespace {

constexpr int64_t kMostSamples = 100'000;

// Options that the command line lacks are those of the recipe's generate section.
struct Arguments {
  std::string path, device = "auto", backend = "auto";
  std::optional<std::string> prompt, prompt_file, prompts, state, save_state;
  std::vector<std::string> stop;
  std::optional<int64_t> tokens, top_k;
  std::optional<double> temperature, top_p;
  double min_p = 0, repetition_penalty = 1;
  std::optional<uint64_t> seed;
  int64_t samples = 1;
  bool json = false;
};

GenerateOptions options_of(const Arguments& arguments, const LoadedModel& loaded) {
  const SampleConfig& defaults = loaded.recipe.generate;
  GenerateOptions options;
  options.tokens = arguments.tokens.value_or(defaults.tokens);
  options.sampling.temperature = arguments.temperature.value_or(defaults.temperature);
  options.sampling.top_k = arguments.top_k.value_or(defaults.top_k);
  options.sampling.top_p = arguments.top_p.value_or(defaults.top_p);
  options.sampling.min_p = arguments.min_p;
  options.sampling.repetition_penalty = arguments.repetition_penalty;
  options.seed =
      arguments.seed.value_or(static_cast<uint64_t>(defaults.seed.value_or(loaded.recipe.seed)));
  // A word tokenizer's <eos> ends a line, not the text.
  options.eos_id = loaded.tokenizer->lines_end_with_eos() ? -1 : loaded.tokenizer->eos_id();
  options.log_probabilities = arguments.json;
  options.sampling.validate();
  return options;
}

std::vector<Prompt> prompts_of(const Arguments& arguments) {
  if (arguments.prompts) return read_prompts(*arguments.prompts);
  if (arguments.prompt_file) return {{read_prompt(*arguments.prompt_file), {}}};
  require_usage(arguments.prompt || arguments.state, Cause{ErrorCode::missing_key, "--prompt"},
                "--prompt, --prompt-file or --prompts is required");
  const std::string text = arguments.prompt.value_or("");
  const size_t invalid = find_invalid_utf8(text);
  require_usage(invalid == std::string::npos, Cause{ErrorCode::malformed, "--prompt"},
                "--prompt is not valid UTF-8 at its byte ", invalid);
  return {{text, {}}};
}

// Text on stdout as it comes.
class Printer {
 public:
  // Before a stop ends the program: ends the line, unless the output is stuck, and prints nothing
  // more.
  void end_line() {
    pollfd out{STDOUT_FILENO, POLLOUT, 0};
    if (!printing_.try_lock_for(std::chrono::milliseconds(100)) || ::poll(&out, 1, 0) != 1) return;
    [[maybe_unused]] const ssize_t written = ::write(STDOUT_FILENO, "\n", 1);
  }
  void print(const std::string& text) {
    if (text.empty()) return;
    const std::lock_guard lock(printing_);
    std::cout << text << std::flush;
    require_output();
  }

 private:
  std::timed_mutex printing_;
};

// One continuation of one prompt, and where it belongs.
struct Job {
  const Prompt& prompt;
  size_t number, of;  // of the prompts, from 1
  int64_t sample, samples;
};

class Generation {
 public:
  Generation(const Arguments& arguments, const LoadedModel& loaded)
      : arguments_(arguments), loaded_(loaded), options_(options_of(arguments, loaded)) {}

  void run() {
    const Transformer& model = *loaded_.model;
    const std::vector<Prompt> prompts = prompts_of(arguments_);
    require_usage(prompts.size() == 1 || !arguments_.save_state,
                  Cause{ErrorCode::conflict, "--save-state"},
                  "--save-state keeps the state of one prompt, and there are ", prompts.size());
    TextStream(*loaded_.tokenizer, 0, arguments_.stop);  // refuses stop strings
    ReadText before;
    if (arguments_.state) before = load_state(*arguments_.state, model);
    // Whatever is wrong with a prompt is said before anything is generated.
    std::vector<std::vector<int32_t>> ids;
    for (const Prompt& prompt : prompts) {
      const bool nothing = prompt.text.empty() && arguments_.state;
      ids.push_back(nothing ? std::vector<int32_t>()
                            : encode_prompt(*loaded_.tokenizer, prompt.text));
      require_room(model, before.state.length + static_cast<int64_t>(ids.back().size()),
                   options_.tokens);
    }
    total_ = static_cast<double>(prompts.size()) * static_cast<double>(arguments_.samples) *
             static_cast<double>(options_.tokens);
    for (size_t i = 0; i < prompts.size(); ++i) {
      ReadText text = before;
      const auto count = static_cast<double>(ids[i].size());
      read_text(model, ids[i], text, [&](int64_t read) {
        progress_.show("reading the prompt", static_cast<double>(read), count);
      });
      progress_.erase();
      if (arguments_.save_state) {
        save_state(*arguments_.save_state, model, text);
        log_info("the state after ", text.state.length, " tokens is in ", *arguments_.save_state,
                 ": ", text.state.bytes(), " bytes and a header");
      }
      for (int64_t sample = 0; sample < arguments_.samples; ++sample) {
        continue_text(text, {prompts[i], i + 1, prompts.size(), sample, arguments_.samples});
      }
    }
  }

 private:
  void continue_text(const ReadText& text, const Job& job) {
    TextStream stream(*loaded_.tokenizer, text.last, arguments_.stop);
    GenerateOptions options = options_;
    options.sample = static_cast<uint64_t>(job.sample);
    if (arguments_.json) {
      std::string words;
      const Generated result = generate(*loaded_.model, text, options, [&](int32_t token) {
        words += stream.add(token);
        show_progress();
        return !stream.stopped();
      });
      words += stream.finish();
      progress_.erase();
      print_json(text, job, result, words);
      return;
    }
    if (job.of * static_cast<size_t>(job.samples) > 1) {
      std::cout << "--- prompt " << job.number << " of " << job.of << ", sample " << job.sample + 1
                << " of " << job.samples << " ---\n";
    }
    // The prompt appears with the first token: never before a message that nothing can be
    // generated.
    bool begun = false;
    Printer printer;
    std::optional<StopCleanup> line_end;
    const Generated result = generate(*loaded_.model, text, options, [&](int32_t token) {
      if (!begun) {
        line_end.emplace([&printer] { printer.end_line(); });
        std::cout << job.prompt.text;
      }
      begun = true;
      printer.print(stream.add(token));
      if (!streams_to_terminal_) show_progress();
      return !stream.stopped();
    });
    if (!begun) std::cout << job.prompt.text;
    progress_.erase();
    printer.print(stream.finish());
    line_end.reset();
    std::cout << std::endl;
    const double rate = static_cast<double>(result.tokens.size()) / std::max(result.seconds, 1e-9);
    log_info(result.tokens.size(), " tokens, ", std::llround(rate), " per second; decode state ",
             result.state_bytes, " bytes");
  }

  void show_progress() {
    ++done_;
    if (!progress_.due()) return;
    const double rate = static_cast<double>(done_) / std::max(progress_.seconds(), 1e-9);
    progress_.show(concat(done_, " tokens, ", std::llround(rate), " per second"),
                   static_cast<double>(done_), total_);
  }

  void print_json(const ReadText& text, const Job& job, const Generated& result,
                  const std::string& words) const {
    JsonValue tokens = JsonValue::array(), log_probabilities = JsonValue::array();
    for (const int32_t token : result.tokens) tokens.push(token);
    for (const double nats : result.log_probabilities) log_probabilities.push(nats);
    JsonValue line = JsonValue::object();
    line.set("checkpoint", loaded_.path).set("step", loaded_.step);
    if (!job.prompt.id.is_null()) line.set("id", job.prompt.id);
    line.set("prompt", job.prompt.text)
        .set("prompt_tokens", text.state.length)
        .set("sample", job.sample)
        .set("text", words)
        .set("tokens", tokens)
        .set("log_probabilities", log_probabilities)
        .set("seconds", result.seconds)
        .set("state_bytes", static_cast<int64_t>(result.state_bytes));
    std::cout << line.dump() << "\n";
    require_output();
  }

  const Arguments& arguments_;
  const LoadedModel& loaded_;
  GenerateOptions options_;
  WorkProgress progress_;
  int64_t done_ = 0;  // tokens generated
  double total_ = 0;
  bool streams_to_terminal_ = ::isatty(STDOUT_FILENO) == 1;
};

int run(const Arguments& arguments) {
  if (!arguments.prompts) prompts_of(arguments);  // before a model is loaded
  const Device device = use_device(arguments.device);
  const UseKernels kernels(kernel_choice_from_name(arguments.backend), device);
  const LoadedModel loaded = load_model(arguments.path, {}, device);
  loaded.model->token_head();  // classifiers are refused before they are asked for a tokenizer
  require_usage(loaded.tokenizer != nullptr, Cause{ErrorCode::conflict, "", loaded.path},
                "checkpoint ", loaded.path, " is of data of kind ", loaded.recipe.data.kind,
                ", which have no text to continue; name a checkpoint of a language model of texts");
  log_info("checkpoint ", loaded.path, " (step ", loaded.step, ")");
  Generation(arguments, loaded).run();
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
  CLI::Option* prompt = command->add_option("--prompt", arguments->prompt, "text to continue");
  CLI::Option* file = command->add_option("--prompt-file", arguments->prompt_file,
                                          "a file whose whole text is continued");
  command
      ->add_option("--prompts", arguments->prompts,
                   "a file of prompts, one a line; NAME.jsonl: objects with \"prompt\" and, if "
                   "wanted, \"id\"")
      ->excludes(prompt)
      ->excludes(file);
  file->excludes(prompt);
  command->add_option("--n", arguments->samples, "samples of each prompt")
      ->check(between(1, kMostSamples));
  command->add_option("--tokens", arguments->tokens, "how many to generate, at most")
      ->check(between(0, kLongestSample));
  command->add_option("--stop", arguments->stop, "end before this text; may be given several times")
      ->allow_extra_args(false);
  command->add_option("--temperature", arguments->temperature, "0 takes the most likely token");
  command->add_option("--top-k", arguments->top_k, "keep the k most likely; 0: all");
  command->add_option("--top-p", arguments->top_p, "keep the smallest set of this probability");
  command->add_option("--min-p", arguments->min_p,
                      "keep tokens with at least this share of the most likely one's probability");
  command->add_option("--repetition-penalty", arguments->repetition_penalty,
                      "divide positive logits of tokens of the text by this, multiply others");
  command->add_option("--seed", arguments->seed, "of the draws, 0 or more")->check(at_least(0));
  command->add_option("--save-state", arguments->save_state,
                      "write the decode state after the prompt to this file");
  command->add_option("--state", arguments->state,
                      "go on from a state that --save-state wrote with the same checkpoint");
  command->add_flag("--json", arguments->json, "a JSON object on stdout for each continuation");
  add_device_option(*command, arguments->device);
  add_backend_option(*command, arguments->backend);
  add_plugin_option(*command);
  add_threads_option(*command);
  command->callback([arguments, &chosen] { chosen = [arguments] { return run(*arguments); }; });
}

}  // namespace linnet::cli
