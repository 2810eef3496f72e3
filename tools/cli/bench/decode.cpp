// linnet bench decode.
#include "recipes/engine/bench/decode.h"

#include <algorithm>
#include <CLI/CLI.hpp>
#include <iomanip>
#include <iostream>
#include <limits>
#include <optional>
#include <utility>

#include "core/files.h"
#include "core/memory_bandwidth.h"
#include "core/row_products.h"
#include "core/threads.h"
#include "core/version.h"
#include "recipes/engine/bench/model.h"
#include "recipes/engine/environment.h"
#include "recipes/engine/generator.h"
#include "recipes/engine/packed_model.h"
#include "recipes/engine/processor.h"
#include "recipes/engine/run_state.h"
#include "tools/cli/bench/bench.h"

namespace linnet::cli {
namespace {

struct Arguments {
  std::string source, point, device = "auto", weights = "f32", json;
  std::vector<std::string> overrides;
  int64_t tokens = 256, vocabulary = 256;
  std::vector<int64_t> lengths;
  bool without_state = false, one_thread = false, vocabulary_given = false;
  std::optional<double> max_growth, max_ratio;
  DecodeBenchOptions options;
};

// A model to measure, and what its results are named by.
struct Point {
  ModelBench common;
  std::unique_ptr<Transformer> model;
};

class DecodeBench {
 public:
  explicit DecodeBench(Arguments& arguments) : arguments_(arguments), options_(arguments.options) {}

  int run() {
    options_.device = use_device(arguments_.device);
    options_.with_state = !arguments_.without_state;
    require_usage(options_.device.kind == DeviceKind::cpu || !arguments_.one_thread,
                  Cause{ErrorCode::conflict, "--one-thread"},
                  "--one-thread compares threads of the CPU; name --device cpu");
    set_lengths();
    if (!arguments_.json.empty()) file_.emplace(arguments_.json, OpenMode::append);
    if (is_directory(arguments_.source)) {
      measure(of_checkpoint());
    } else {
      const std::vector<RecipePoint> points =
          arguments_.point.empty()
              ? load_recipe_points(arguments_.source, arguments_.overrides)
              : std::vector{
                    load_recipe_point(arguments_.source, arguments_.overrides, arguments_.point)};
      for (const RecipePoint& point : points) measure(of_recipe(point));
    }
    if (file_) file_->sync();
    require_within_limits();
    return 0;
  }

 private:
  static std::string name_of_threads(int threads) {
    return concat(threads, threads == 1 ? " thread" : " threads");
  }

  static void add_to(std::string& places, const std::string& place) {
    places += concat(places.empty() ? "" : "; ", place);
  }

  // Throws Error that names each limit that was exceeded, and where.
  void require_within_limits() const {
    std::string text;
    if (!over_growth_.empty()) {
      text = concat("a token at the last length takes more than ", *arguments_.max_growth,
                    " times as long as at the first: ", over_growth_);
    }
    if (!over_ratio_.empty()) {
      add_to(text, concat("a step takes more than ", *arguments_.max_ratio,
                          " times as long as with one thread: ", over_ratio_));
    }
    require(text.empty(), text);
  }

  void set_lengths() {
    std::vector<int64_t> lengths = arguments_.lengths;
    if (lengths.empty()) lengths = doubled_lengths(options_.prompt, arguments_.tokens);
    std::sort(lengths.begin(), lengths.end());
    lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
    require_usage(lengths.front() > options_.prompt + 1,
                  Cause{ErrorCode::out_of_range, "--lengths"}, "length ", lengths.front(),
                  " leaves no step to time behind a prompt of ", options_.prompt,
                  ": the first one warms up");
    require_usage(lengths.size() > 1 || !arguments_.max_growth,
                  Cause{ErrorCode::conflict, "--max-growth"},
                  "--max-growth needs two lengths or more, e.g. --lengths 32,256");
    options_.lengths = lengths;
  }

  Point of_checkpoint() {
    require_usage(
        arguments_.overrides.empty() && arguments_.point.empty() && !arguments_.vocabulary_given,
        Cause{ErrorCode::conflict, "OVERRIDES"},
        "a checkpoint's model is what it is: overrides, --point and --vocabulary are for recipes");
    LoadedModel loaded = load_model(arguments_.source, {}, options_.device);
    // As many tokens as generate takes: its last one is not read, and so there is no step of it.
    const int64_t most =
        longest_continuation(*loaded.model, prompt_positions(*loaded.model, options_.prompt));
    if (arguments_.lengths.empty() && arguments_.tokens == most) {
      --arguments_.tokens;
      set_lengths();
    }
    return {named(loaded.recipe, arguments_.source), std::move(loaded.model)};
  }
  Point of_recipe(const RecipePoint& point) const {
    Recipe recipe = parse_recipe(point.node);
    recipe.data.context = options_.lengths.back();
    return {
        named(recipe, point.label),
        build_model(recipe, {arguments_.vocabulary, options_.lengths.back(), 0}, options_.device)};
  }

  ModelBench named(const Recipe& recipe, const std::string& label) const {
    ModelBench common = name_bench(recipe, label);
    if (arguments_.weights != "f32") common.precision = arguments_.weights + " weights";
    return common;
  }

  void measure(const Point& point) {
    const auto packed = pack_weights(*point.model, weight_format_from_name(arguments_.weights));
    const UsePackedWeights use(packed.get());
    if (options_.with_state) require_decode_state(*point.model, "decoding from a state");
    require_room(*point.model, options_);
    if (!std::exchange(headed_, true)) print_heading(*point.model);
    const std::string label = point.common.point.empty() ? "recipe" : point.common.point;
    for (const int64_t batch : options_.batches) {
      const std::vector<ModelBench> results = measure(point, label, batch);
      if (results.size() > 1) tell_growth(label, results);
      if (arguments_.one_thread) compare_threads(point, label, results);
    }
    const bool cpu = options_.device.kind == DeviceKind::cpu;
    if (cpu && options_.with_state) tell_bound(bytes_of_step(*point.model, packed.get()));
  }

  // Of one batch, at each length; each is printed as it is known.
  std::vector<ModelBench> measure(const Point& point, const std::string& label, int64_t batch) {
    threads_ = thread_count();  // a step may take fewer of them
    DecodeBenchOptions one = options_;
    one.batches = {batch};
    const OnPart shown = shown_by(progress_);
    std::vector<ModelBench> results = bench_decode(
        *point.model, point.common, one,
        [&](const std::string& what, int64_t done, int64_t total) {
          shown(concat(label, ", ", what), done, total);
        },
        [&](const ModelBench& bench) {
          progress_.erase();
          print_result(label, bench);
          if (file_) file_->write(to_json(line_of(bench, *point.model)).dump() + "\n");
        });
    progress_.erase();
    return results;
  }

  // Measures with one thread, with all and with one again, and compares the faster rounds with
  // `results`, those with all threads.
  void compare_threads(const Point& point, const std::string& label,
                       const std::vector<ModelBench>& results) {
    const int all = thread_count();
    const int64_t batch = results.front().batch;
    std::vector<double> one(results.size(), std::numeric_limits<double>::infinity()), own = one;
    const auto least_of = [](const std::vector<ModelBench>& round, std::vector<double>& least) {
      for (size_t i = 0; i < round.size(); ++i) least[i] = std::min(least[i], round[i].seconds);
    };
    least_of(results, own);
    for (const int threads : {1, all, 1}) {
      set_thread_count(threads);
      std::cout << "with " << name_of_threads(threads) << ":" << std::endl;
      least_of(measure(point, label, batch), threads == 1 ? one : own);
    }
    set_thread_count(all);
    for (size_t i = 0; i < results.size(); ++i) {
      const double ratio = own[i] / one[i];
      std::cout << "batch " << batch << ", length " << results[i].length << ": with "
                << name_of_threads(all) << " a step takes " << std::setprecision(2) << ratio
                << " times as long as with one" << std::endl;
      if (arguments_.max_ratio && ratio > *arguments_.max_ratio) {
        add_to(over_ratio_, concat(label, ", batch ", batch, ", length ", results[i].length));
      }
    }
  }

  ModelBenchLine line_of(const ModelBench& bench, const Transformer& model) const {
    ModelBenchLine line;
    line.bench = bench;
    line.mode = options_.with_state ? BenchMode::decode : BenchMode::recompute;
    line.overrides = arguments_.overrides;
    line.batch_given = bench.batch;
    line.vocabulary = model.vocabulary();
    line.device = name_of(options_.device);
    const bool cpu = options_.device.kind == DeviceKind::cpu;
    line.device_name =
        cpu ? processor().at("cpu").text() : device_interface(options_.device).description();
    line.threads = threads_;
    line.date = utc_now();
    line.commit = git_hash();
    return line;
  }

  void print_heading(const Transformer& model) const {
    const bool cpu = options_.device.kind == DeviceKind::cpu;
    std::cout << name_of(options_.device) << ", "
              << (cpu ? name_of_threads(thread_count())
                      : device_interface(options_.device).description())
              << ", "
              << (options_.with_state
                      ? concat("steps from the decode state, behind a prompt of ", options_.prompt)
                      : "a pass over the whole text for each token")
              << ", random tokens of " << model.vocabulary() << " words, weights in "
              << arguments_.weights << "\n"
              << std::left << std::setw(28) << "point" << std::right << std::setw(8) << "batch"
              << std::setw(9) << "length" << std::setw(12) << "tokens/s" << std::setw(12)
              << "ms, median" << std::setw(10) << "ms, p95" << std::setw(12) << "state KiB"
              << std::setw(12) << "peak MiB"
              << "\n";
  }

  static void print_result(const std::string& label, const ModelBench& bench) {
    const auto& decode = bench.decode;
    const double rate =
        decode ? decode->tokens_per_s : static_cast<double>(bench.batch) * bench.rate();
    std::cout << std::left << std::setw(28) << label << std::right << std::setw(8) << bench.batch
              << std::setw(9) << bench.length << std::fixed << std::setprecision(1) << std::setw(12)
              << rate << std::setprecision(3) << std::setw(12) << 1e3 * bench.seconds
              << std::setw(10);
    if (decode) {
      std::cout << 1e3 * decode->p95_seconds << std::setprecision(1) << std::setw(12)
                << static_cast<double>(decode->state_bytes) / 1024;
    } else {
      std::cout << "-" << std::setw(12) << "-";
    }
    std::cout << std::setprecision(1) << std::setw(12)
              << static_cast<double>(bench.peak_bytes) / kMiB << std::endl;
  }

  void tell_growth(const std::string& label, const std::vector<ModelBench>& results) {
    const double growth = growth_of(results);
    std::cout << "a token at length " << results.back().length << " takes " << std::setprecision(2)
              << growth << " times as long as at " << results.front().length << std::endl;
    if (arguments_.max_growth && growth > *arguments_.max_growth) {
      add_to(over_growth_, concat(label, ", batch ", results.front().batch));
    }
  }

  static void tell_bound(size_t bytes) {
    const double rate = read_bandwidth(bytes);
    std::cout << "a step reads " << std::setprecision(1) << static_cast<double>(bytes) / 1e6
              << " MB of weights, which takes " << std::setprecision(3)
              << 1e3 * static_cast<double>(bytes) / rate << " ms at the " << std::setprecision(1)
              << rate / 1e9 << " GB/s that this machine reads them at" << std::endl;
  }

  Arguments& arguments_;
  DecodeBenchOptions& options_;
  std::optional<File> file_;
  WorkProgress progress_;
  int threads_ = 1;
  bool headed_ = false;
  std::string over_growth_, over_ratio_;  // where a limit was exceeded
};

}  // namespace

void add_bench_decode(CLI::App& bench, Command& chosen) {
  auto arguments = std::make_shared<Arguments>();
  DecodeBenchOptions& options = arguments->options;
  CLI::App* command = bench.add_subcommand(
      "decode", "generation with models of a recipe and its sweep, or with a checkpoint");
  command
      ->add_option(
          "RECIPE_OR_RUN", arguments->source,
          "a YAML file, whose data are not read and whose weights are fresh ones, or a run "
          "or checkpoint directory")
      ->required();
  command->add_option("OVERRIDES", arguments->overrides, "key.path=value ...");
  command
      ->add_option("--prompt", options.prompt,
                   "random tokens before the first step; of an encoder_decoder the source")
      ->capture_default_str()
      ->check(between(1, kMaxTokensAtOnce));
  CLI::Option* tokens =
      command->add_option("--tokens", arguments->tokens, "to generate behind the prompt")
          ->capture_default_str()
          ->check(between(2, kMaxTokensAtOnce));
  command
      ->add_option("--lengths", arguments->lengths,
                   "lengths of prompt and tokens so far at which figures are told, the last one "
                   "where it ends (default: the end, its half, its quarter, ...)")
      ->delimiter(',')
      ->excludes(tokens)
      ->check(between(3, kMaxTokensAtOnce));
  command->add_option("--batch", options.batches, "rows continued together, e.g. 1,8")
      ->delimiter(',')
      ->check(between(1, kMaxProductRows));
  command->add_flag("--without-state", arguments->without_state,
                    "let a pass over the whole text make each token, as without a decode state");
  command->add_option("--point", arguments->point, "one point of the sweep (default: all)");
  const CLI::Option* vocabulary =
      command->add_option("--vocabulary", arguments->vocabulary, "words of a recipe's model")
          ->capture_default_str()
          ->check(between(2, 1 << 30));
  command
      ->add_option("--max-growth", arguments->max_growth,
                   "exit with 1 where a token at the last length takes more than so many times as "
                   "long as at the first")
      ->check(CLI::Range(1e-3, 1e6));
  CLI::Option* one_thread = command->add_flag("--one-thread", arguments->one_thread,
                                              "measure in turns with one thread too, and tell how "
                                              "many times as long a step takes with all");
  command
      ->add_option("--max-ratio", arguments->max_ratio,
                   "exit with 1 where that is more than so many times, e.g. 1.05")
      ->needs(one_thread)
      ->check(CLI::Range(1e-3, 1e6));
  command->add_option("--json", arguments->json,
                      "append a line for each point, batch and length to this file "
                      "(recipes/engine/README.md)");
  command->footer(
      "Tokens are random words at first, then the likeliest ones. tokens/s counts all rows from "
      "the "
      "prompt to that length (without the state: at that length); ms are those of a step of all "
      "rows, since the length before. The state is that of all rows; peak memory is what tensors "
      "hold, with weights.");
  command
      ->add_option("--weights", arguments->weights,
                   "what steps on the CPU read them in: f32, bf16 or int8 (with a scale per row)")
      ->capture_default_str()
      ->check(CLI::IsMember({"f32", "bf16", "int8"}));
  add_device_option(*command, arguments->device);
  add_plugin_option(*command);
  add_threads_option(*command);
  command->callback([arguments, vocabulary, &chosen] {
    arguments->vocabulary_given = vocabulary->count() > 0;
    chosen = [arguments] { return DecodeBench(*arguments).run(); };
  });
}

}  // namespace linnet::cli
