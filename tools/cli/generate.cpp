// linnet generate: text from a checkpoint.
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <mutex>
#include <optional>

#include "core/interrupt.h"
#include "core/json.h"
#include "core/kernel_choice.h"
#include "core/log.h"
#include "core/progress.h"
#include "core/row_products.h"
#include "core/utf8.h"
#include "recipes/engine/generator.h"
#include "recipes/engine/packed_model.h"
#include "recipes/engine/run_state.h"
#include "recipes/engine/saved_state.h"
#include "recipes/engine/speculation.h"
#include "recipes/engine/text_stream.h"
#include "tools/cli/commands.h"
#include "tools/cli/prompts.h"

namespace linnet::cli {
namespace {

constexpr int64_t kMaxSamples = 100'000;

// Options that the command line lacks are those of the recipe's generate section.
struct Arguments {
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

// nullopt: no guesses.
std::optional<Speculation> speculation_of(const Arguments& arguments) {
  if (!arguments.tree) return {};
  require_usage(arguments.accept == "typical" || arguments.accept == "exact",
                Cause{ErrorCode::unknown_name, "--accept"}, "--accept is typical or exact, got '",
                arguments.accept, "'");
  Speculation speculation{load_tree(*arguments.tree)};
  speculation.acceptance = arguments.accept == "exact" ? Acceptance::exact : Acceptance::typical;
  return speculation;
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

// One continuation of one prompt.
struct Job {
  size_t prompt;
  int64_t sample;
  TextStream stream;
  std::string words;
  int64_t prompt_tokens;
  std::optional<Generated> result;
  TreeCounts counts;  // with --speculate
};

class Generation {
 public:
  Generation(const Arguments& arguments, std::optional<Speculation> speculation,
             const LoadedModel& loaded)
      : arguments_(arguments),
        speculation_(std::move(speculation)),
        loaded_(loaded),
        options_(options_of(arguments, loaded)),
        prompts_(prompts_of(arguments)) {}

  void run() {
    if (speculation_) require_guesses(*loaded_.model, speculation_->tree);
    check_prompts();
    if (prompts_.size() == 1 && arguments_.samples == 1 && !arguments_.json) {
      stream_text();
    } else {
      continue_all();
    }
  }

 private:
  // Whatever is wrong with a prompt is said before anything is generated.
  void check_prompts() {
    require_usage(prompts_.size() == 1 || !arguments_.save_state,
                  Cause{ErrorCode::conflict, "--save-state"},
                  "--save-state keeps the state of one prompt, and there are ", prompts_.size());
    const TextStream refuses(*loaded_.tokenizer, 0, arguments_.stop);  // stop strings that are none
    if (arguments_.state) before_ = load_state(*arguments_.state, *loaded_.model);
    for (const Prompt& prompt : prompts_) {
      const bool nothing = prompt.text.empty() && arguments_.state;
      ids_.push_back(nothing ? std::vector<int32_t>()
                             : encode_prompt(*loaded_.tokenizer, prompt.text));
      const auto count = static_cast<int64_t>(ids_.back().size());
      require_room(*loaded_.model, before_.state.length + count, options_.tokens);
    }
  }

  // A prompt behind the state that was given, read once for all its samples, which follow each
  // other.
  const ReadText& read(size_t prompt) {
    if (prompt == read_prompt_) return read_;
    read_ = before_;
    const std::vector<int32_t>& ids = ids_[prompt];
    read_text(*loaded_.model, ids, read_, [&](int64_t done) {
      if (!progress_.due()) return;
      progress_.show("reading the prompt", static_cast<double>(done),
                     static_cast<double>(ids.size()));
    });
    progress_.erase();
    read_prompt_ = prompt;
    if (arguments_.save_state) {
      save_state(*arguments_.save_state, *loaded_.model, read_);
      log_info("the state after ", read_.state.length, " tokens is in ", *arguments_.save_state,
               ": ", read_.state.bytes(), " bytes and a header");
    }
    return read_;
  }

  void stream_text() {
    const ReadText& text = read(0);
    TextStream stream(*loaded_.tokenizer, text.last, arguments_.stop);
    const bool to_terminal = ::isatty(STDOUT_FILENO) == 1;
    // The prompt appears with the first token: never before a message that nothing can be
    // generated.
    bool begun = false;
    Printer printer;
    std::optional<StopCleanup> line_end;
    const OnToken on_token = [&](int32_t token) {
      if (!begun) {
        line_end.emplace([&printer] { printer.end_line(); });
        std::cout << prompts_[0].text;
      }
      begun = true;
      printer.print(stream.add(token));
      if (!to_terminal) show_progress(options_.tokens);
      return !stream.stopped();
    };
    Speculated result;
    if (speculation_) {
      result = speculate(*loaded_.model, text, options_, *speculation_, on_token);
    } else {
      result.text = generate(*loaded_.model, text, options_, on_token);
    }
    if (!begun) std::cout << prompts_[0].text;
    progress_.erase();
    printer.print(stream.finish());
    line_end.reset();
    std::cout << std::endl;
    log_rate(std::ssize(result.text.tokens), result.text.seconds,
             concat("decode state ", result.text.state_bytes, " bytes", rate_of(result.counts)));
  }

  // Several texts, or JSON: printed whole, in order.
  void continue_all() {
    std::vector<Job> jobs;
    std::vector<Continuation> texts;
    const size_t count = prompts_.size() * static_cast<size_t>(arguments_.samples);
    jobs.reserve(count);
    for (size_t prompt = 0; prompt < prompts_.size(); ++prompt) {
      const int32_t last = ids_[prompt].empty() ? before_.last : ids_[prompt].back();
      const auto tokens = before_.state.length + static_cast<int64_t>(ids_[prompt].size());
      for (int64_t sample = 0; sample < arguments_.samples; ++sample) {
        Job& job = jobs.emplace_back(
            Job{prompt, sample, {*loaded_.tokenizer, last, arguments_.stop}, "", tokens, {}, {}});
        Continuation& text = texts.emplace_back();
        text.read = [this, prompt] { return read(prompt); };
        text.options = options_;
        text.options.sample = static_cast<uint64_t>(sample);
        text.on_token = [this, &job, count](int32_t token) {
          job.words += job.stream.add(token);
          show_progress(options_.tokens * static_cast<int64_t>(count));
          return !job.stream.stopped();
        };
      }
    }
    size_t printed = 0;
    TreeCounts trees;
    const auto done = [&](size_t index, Generated result) {
      jobs[index].words += jobs[index].stream.finish();
      jobs[index].result = std::move(result);
      for (; printed < jobs.size() && jobs[printed].result; ++printed) print(jobs[printed]);
    };
    const auto done_by_trees = [&](size_t index, Generated result, const TreeCounts& of_text) {
      trees.add(of_text);
      jobs[index].counts = of_text;
      done(index, std::move(result));
    };
    const BatchCounts counts = speculation_
                                   ? speculate(*loaded_.model, texts, *speculation_, done_by_trees)
                                   : generate_batch(*loaded_.model, texts, arguments_.batch, done);
    progress_.erase();
    log_rate(counts.tokens, counts.seconds,
             concat(count, " texts in ", counts.passes, " passes of the model", rate_of(trees)));
  }

  void show_progress(int64_t total) {
    ++done_;
    if (!progress_.due()) return;
    const double rate = static_cast<double>(done_) / std::max(progress_.seconds(), 1e-9);
    progress_.show(concat(done_, " tokens, ", std::llround(rate), " per second"),
                   static_cast<double>(done_), static_cast<double>(total));
  }

  static void log_rate(int64_t tokens, double seconds, const std::string& more) {
    const double rate = static_cast<double>(tokens) / std::max(seconds, 1e-9);
    log_info(tokens, " tokens, ", std::llround(rate), " per second; ", more);
  }

  // "; 2.31 tokens a pass" of passes over trees.
  static std::string rate_of(const TreeCounts& counts) {
    if (counts.passes() == 0) return "";
    char text[32];
    std::snprintf(text, sizeof(text), "; %.2f tokens a pass", counts.tokens_per_pass());
    return text;
  }

  void print(const Job& job) {
    progress_.erase();
    if (arguments_.json) {
      print_json(job);
    } else {
      std::cout << "--- prompt " << job.prompt + 1 << " of " << prompts_.size() << ", sample "
                << job.sample + 1 << " of " << arguments_.samples << " ---\n"
                << prompts_[job.prompt].text << job.words << std::endl;
    }
    require_output();
  }

  void print_json(const Job& job) const {
    JsonValue tokens = JsonValue::array(), log_probabilities = JsonValue::array();
    for (const int32_t token : job.result->tokens) tokens.push(token);
    for (const double nats : job.result->log_probabilities) log_probabilities.push(nats);
    const Prompt& prompt = prompts_[job.prompt];
    JsonValue line = JsonValue::object();
    line.set("checkpoint", loaded_.path).set("step", loaded_.step);
    if (!prompt.id.is_null()) line.set("id", prompt.id);
    line.set("prompt", prompt.text)
        .set("prompt_tokens", job.prompt_tokens)
        .set("sample", job.sample)
        .set("text", job.words)
        .set("tokens", tokens)
        .set("log_probabilities", log_probabilities)
        .set("seconds", job.result->seconds)
        .set("state_bytes", static_cast<int64_t>(job.result->state_bytes));
    if (speculation_) {
      JsonValue accepted = JsonValue::array();
      for (const int64_t passes : job.counts.accepted) accepted.push(passes);
      line.set("passes", job.counts.passes())
          .set("tokens_per_pass", job.counts.tokens_per_pass())
          .set("accepted", accepted);
    }
    std::cout << line.dump() << "\n";
  }

  const Arguments& arguments_;
  std::optional<Speculation> speculation_;
  const LoadedModel& loaded_;
  GenerateOptions options_;
  std::vector<Prompt> prompts_;
  std::vector<std::vector<int32_t>> ids_;  // of each prompt
  ReadText before_;                        // the state that was given
  ReadText read_;                          // after prompt number read_prompt_
  size_t read_prompt_ = SIZE_MAX;
  WorkProgress progress_;
  int64_t done_ = 0;  // tokens generated
};

int run(const Arguments& arguments) {
  // Before a model is loaded.
  if (!arguments.prompts) prompts_of(arguments);
  std::optional<Speculation> speculation = speculation_of(arguments);
  const Device device = use_device(arguments.device);
  const UseKernels kernels(kernel_choice_from_name(arguments.backend), device);
  const LoadedModel loaded = load_model(arguments.path, {}, device);
  loaded.model->token_head();  // classifiers are refused before they are asked for a tokenizer
  require_usage(loaded.tokenizer != nullptr, Cause{ErrorCode::conflict, "", loaded.path},
                "checkpoint ", loaded.path, " is of data of kind ", loaded.recipe.data.kind,
                ", which have no text to continue; name a checkpoint of a language model of texts");
  log_info("checkpoint ", loaded.path, " (step ", loaded.step, ")");
  const auto packed = pack_weights(*loaded.model, weight_format_from_name(arguments.weights));
  const UsePackedWeights use(packed.get());
  Generation(arguments, std::move(speculation), loaded).run();
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
      ->check(between(1, kMaxSamples));
  command
      ->add_option("--batch", arguments->batch,
                   "texts that share a pass of the model, 1 to 64; none changes another")
      ->capture_default_str()
      ->check(between(1, kMaxProductRows));
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
                      "go on from a state that --save-state wrote with the same checkpoint and "
                      "--weights");
  CLI::Option* tree = command->add_option(
      "--speculate", arguments->tree,
      "guess later tokens by the checkpoint's Medusa heads and take those that the model agrees "
      "with: a YAML file with 'chain: 4', or 'paths: [[0], [1], [0, 0]]', ranks of the heads' "
      "guesses behind each other, as 'linnet tree fit' writes it; or mc_sim_7b_63, Medusa's tree "
      "of "
      "63. Texts follow each other, and at temperature 0 are those without guesses");
  command
      ->add_option("--accept", arguments->accept,
                   "guesses that are taken at other temperatures: typical: those that the model "
                   "finds likely enough; exact: those that it draws, so that texts have the "
                   "distribution that they have without guesses")
      ->capture_default_str()
      ->needs(tree);
  command->add_flag("--json", arguments->json, "a JSON object on stdout for each continuation");
  command
      ->add_option("--weights", arguments->weights,
                   "what steps on the CPU read the weights in: f32, bf16 or int8 (with a scale per "
                   "row); they are rounded to it")
      ->capture_default_str()
      ->check(CLI::IsMember({"f32", "bf16", "int8"}));
  add_device_option(*command, arguments->device);
  add_backend_option(*command, arguments->backend);
  add_plugin_option(*command);
  add_threads_option(*command);
  command->callback([arguments, &chosen] { chosen = [arguments] { return run(*arguments); }; });
}

}  // namespace linnet::cli
