#include "tools/cli/generation.h"

#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <mutex>

#include "core/interrupt.h"
#include "core/json.h"
#include "core/log.h"
#include "core/progress.h"
#include "core/utf8.h"
#include "layers/models.h"
#include "recipes/engine/beam_search.h"
#include "recipes/engine/saved_state.h"
#include "recipes/engine/text_stream.h"
#include "tools/cli/commands.h"

namespace linnet::cli {
namespace {

GenerateOptions options_of(const GenerateArguments& arguments, const LoadedModel& loaded) {
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
  std::optional<Generated> result;
  double score = 0;   // with --beam
  TreeCounts counts;  // with --speculate
};

class Generation {
 public:
  Generation(const GenerateArguments& arguments, std::vector<Prompt> prompts,
             std::optional<Speculation> speculation, const LoadedModel& loaded)
      : arguments_(arguments),
        speculation_(std::move(speculation)),
        loaded_(loaded),
        options_(options_of(arguments, loaded)),
        prompts_(std::move(prompts)) {}

  void run() {
    if (speculation_) require_guesses(*loaded_.model, speculation_->tree);
    if (arguments_.beams) beam_.beams = *arguments_.beams;
    beam_.length_penalty = arguments_.length_penalty;
    beam_.validate();
    check_prompts();
    if (options_.tokens == 0) {
      for (size_t prompt = 0; prompt < prompts_.size(); ++prompt) read(prompt);
      log_info("no tokens were asked for: nothing is printed");
    } else if (prompts_.size() == 1 && arguments_.samples == 1 && !arguments_.json) {
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
    // Stop strings that are none.
    of_argument("", [&] { return TextStream(*loaded_.tokenizer, 0, arguments_.stop); });
    if (arguments_.state) before_ = load_state(*arguments_.state, *loaded_.model);
    for (const Prompt& prompt : prompts_) {
      ids_.push_back(of_argument(prompt.place, [&] { return ids_of(prompt.text); }));
    }
  }

  std::vector<int32_t> ids_of(const std::string& prompt) const {
    std::vector<int32_t> ids;
    if (!prompt.empty() || !arguments_.state) ids = encode_prompt(*loaded_.tokenizer, prompt);
    if (reads_source_) require_source(*loaded_.model, std::ssize(ids));
    require_room(*loaded_.model, before_.state.length + positions(ids), options_.tokens);
    return ids;
  }

  // That a prompt takes in the decoder.
  int64_t positions(const std::vector<int32_t>& prompt) const {
    return prompt.empty() ? 0 : prompt_positions(*loaded_.model, std::ssize(prompt));
  }
  // Of a text that is continued, and not of one that an encoder reads.
  std::string shown_prompt(size_t prompt) const {
    return reads_source_ ? "" : prompts_[prompt].text;
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
      log_info("the state after ", what_was_read(ids), " is in ", *arguments_.save_state, ": ",
               read_.state.bytes(), " bytes and a header");
    }
    return read_;
  }

  // A state behind an encoder does not tell how long its source was.
  std::string what_was_read(const std::vector<int32_t>& ids) const {
    if (!reads_source_) return counted(read_.state.length, "token");
    return ids.empty() ? "the source of that state"
                       : "a source of " + counted(std::ssize(ids), "token");
  }

  static std::string counted(int64_t count, const char* what) {
    return concat(count, " ", what, count == 1 ? "" : "s");
  }

  // With --beam: the best text, token by token.
  static void tell(const BeamText& found, const OnToken& on_token) {
    for (const int32_t token : found.text.tokens) {
      if (!on_token(token)) break;
    }
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
        std::cout << shown_prompt(0);
      }
      begun = true;
      printer.print(stream.add(token));
      if (!to_terminal) show_progress(options_.tokens);
      return !stream.stopped();
    };
    Speculated result;
    if (speculation_) {
      result = speculate(*loaded_.model, text, options_, *speculation_, on_token);
    } else if (arguments_.beams) {
      BeamText found = beam_search(*loaded_.model, text, options_, beam_);
      tell(found, on_token);
      result.text = std::move(found.text);
    } else {
      result.text = generate(*loaded_.model, text, options_, on_token);
    }
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
      const int32_t last = ids_[prompt].empty() ? before_.last
                           : reads_source_      ? start_
                                                : ids_[prompt].back();
      for (int64_t sample = 0; sample < arguments_.samples; ++sample) {
        Job& job = jobs.emplace_back(
            Job{prompt, sample, {*loaded_.tokenizer, last, arguments_.stop}, "", {}, 0, {}});
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
    BatchCounts counts;
    if (speculation_) {
      counts = speculate(*loaded_.model, texts, *speculation_, done_by_trees);
    } else if (arguments_.beams) {
      std::vector<ReadTurn> turns;
      for (const Continuation& text : texts) turns.push_back(text.read);
      counts = beam_search_batch(*loaded_.model, turns, options_, beam_, arguments_.batch,
                                 [&](size_t index, BeamText found) {
                                   tell(found, texts[index].on_token);
                                   jobs[index].score = found.score;
                                   done(index, std::move(found.text));
                                 });
    } else {
      counts = generate_batch(*loaded_.model, texts, arguments_.batch, done);
    }
    progress_.erase();
    log_rate(counts.tokens, counts.seconds,
             concat(counted(static_cast<int64_t>(count), "text"), " in ", counts.passes,
                    counts.passes == 1 ? " pass" : " passes", " of the model", rate_of(trees)));
  }

  void show_progress(int64_t total) {
    ++done_;
    if (!progress_.due()) return;
    const double rate = static_cast<double>(done_) / std::max(progress_.seconds(), 1e-9);
    progress_.show(concat(counted(done_, "token"), ", ", std::llround(rate), " per second"),
                   static_cast<double>(done_), static_cast<double>(total));
  }

  static void log_rate(int64_t tokens, double seconds, const std::string& more) {
    const double rate = static_cast<double>(tokens) / std::max(seconds, 1e-9);
    log_info(counted(tokens, "token"), ", ", std::llround(rate), " per second; ", more);
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
      const int64_t line = prompts_[job.prompt].line;
      std::cout << "--- prompt " << job.prompt + 1 << " of " << prompts_.size()
                << (line > 0 ? concat(" (line ", line, ")") : "") << ", sample " << job.sample + 1
                << " of " << arguments_.samples << " ---\n"
                << shown_prompt(job.prompt) << job.words << std::endl;
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
    if (prompt.line > 0) line.set("line", prompt.line);
    line.set("prompt", prompt.text)
        .set("prompt_tokens", static_cast<int64_t>(ids_[job.prompt].size()));
    // Behind an encoder a state has no tokens of a text.
    if (arguments_.state && !reads_source_) line.set("state_tokens", before_.state.length);
    line.set("sample", job.sample)
        .set("text", job.words)
        .set("tokens", tokens)
        .set("log_probabilities", log_probabilities)
        .set("seconds", job.result->seconds)
        .set("state_bytes", static_cast<int64_t>(job.result->state_bytes));
    if (arguments_.beams) line.set("score", job.score);
    if (speculation_) {
      JsonValue accepted = JsonValue::array();
      for (const int64_t passes : job.counts.accepted) accepted.push(passes);
      line.set("passes", job.counts.passes())
          .set("tokens_per_pass", job.counts.tokens_per_pass())
          .set("accepted", accepted);
    }
    std::cout << line.dump() << "\n";
  }

  const GenerateArguments& arguments_;
  std::optional<Speculation> speculation_;
  const LoadedModel& loaded_;
  const bool reads_source_ = kind_has_encoder(loaded_.recipe.model.kind);
  const int32_t start_ = static_cast<int32_t>(loaded_.recipe.model.decoder_start);
  BeamOptions beam_;
  GenerateOptions options_;
  std::vector<Prompt> prompts_;
  std::vector<std::vector<int32_t>> ids_;  // of each prompt
  ReadText before_;                        // the state that was given
  ReadText read_;                          // after prompt number read_prompt_
  size_t read_prompt_ = SIZE_MAX;
  WorkProgress progress_;
  int64_t done_ = 0;  // tokens generated
};

}  // namespace

std::vector<Prompt> prompts_of(const GenerateArguments& arguments) {
  if (arguments.prompts) return read_prompts(*arguments.prompts);
  if (arguments.prompt_file)
    return {{.text = read_prompt(*arguments.prompt_file), .place = *arguments.prompt_file}};
  require_usage(arguments.prompt || arguments.state, Cause{ErrorCode::missing_key, "--prompt"},
                "--prompt, --prompt-file or --prompts is required");
  const std::string text = arguments.prompt.value_or("");
  const size_t invalid = find_invalid_utf8(text);
  require_usage(invalid == std::string::npos, Cause{ErrorCode::malformed, "--prompt"},
                "--prompt is not valid UTF-8 at its byte ", invalid);
  return {{.text = text}};
}

void generate_texts(const GenerateArguments& arguments, std::vector<Prompt> prompts,
                    std::optional<Speculation> speculation, const LoadedModel& loaded) {
  Generation(arguments, std::move(prompts), std::move(speculation), loaded).run();
}

}  // namespace linnet::cli
