// linnet bench tree.
#include <algorithm>
#include <CLI/CLI.hpp>
#include <iomanip>
#include <iostream>
#include <limits>
#include <optional>

#include "core/device.h"
#include "core/json.h"
#include "core/log.h"
#include "core/threads.h"
#include "recipes/engine/run_state.h"
#include "recipes/engine/speculation.h"
#include "recipes/engine/tree_memory.h"
#include "tools/cli/bench/bench.h"
#include "tools/cli/prompts.h"

namespace linnet::cli {
namespace {

struct Arguments {
  std::string path, tree, prompt_file, device = "auto";
  int64_t tokens = 200, rounds = 3;
  bool json = false;
};

std::string counted(int64_t count, const char* one, const char* ending = "s") {
  return concat(count, " ", one, count == 1 ? "" : ending);
}

// One way to continue the prompt.
struct Way {
  const char* name;
  std::optional<Speculation> speculation;  // none: token by token
  double seconds = std::numeric_limits<double>::infinity();
  std::vector<int32_t> text = {};
  TreeCounts counts = {};
  size_t pass_bytes = 0;  // of tensors that a pass makes, the state after it included

  void run(const Transformer& model, const ReadText& prompt, const GenerateOptions& options) {
    Speculated result;
    if (speculation) {
      result = speculate(model, prompt, options, *speculation);
    } else {
      result.text = generate(model, prompt, options);
    }
    seconds = std::min(seconds, result.text.seconds);
    text = std::move(result.text.tokens);
    counts = std::move(result.counts);
  }
  void measure_pass(const Transformer& model, const ReadText& prompt) {
    const NoGrad off;
    const TokenTree tree =
        speculation ? tree_with_room(model, prompt.state, speculation->tree) : TokenTree();
    const TreeStates states = speculation ? speculation->states : TreeStates::copied;
    const Tensor tokens =
        Tensor::from(std::vector<int32_t>(static_cast<size_t>(tree.size()), prompt.last),
                     {tree.size(), 1}, model.device());
    reset_peak_memory(model.device());
    const size_t before = allocated_bytes(model.device());
    const TreeReading reading = model.encode_tree(tokens, tree.parents, prompt.state, states);
    const ModelState after = reading.after(std::vector<int64_t>{0});
    pass_bytes = peak_allocated_bytes(model.device()) - before;
  }
};

// Bytes of q, k and v of a token in every layer.
double temporaries_of_token(const ModelConfig& model) {
  const int64_t key_heads = model.kv_heads > 0 ? model.kv_heads : model.heads;
  const int64_t channels = model.width + 2 * key_heads * (model.width / model.heads);
  return static_cast<double>(model.layers * channels) * sizeof(float);
}

int run(const Arguments& arguments) {
  const TokenTree tree = load_tree(arguments.tree);
  const std::string words = read_prompt(arguments.prompt_file);
  const LoadedModel loaded = load_model(arguments.path, {}, use_device(arguments.device));
  const Transformer& model = *loaded.model;
  model.token_head();
  require_usage(loaded.tokenizer != nullptr, Cause{ErrorCode::conflict, "", loaded.path},
                "checkpoint ", loaded.path, " is of data without text");
  require_guesses(model, tree);
  ReadText prompt;
  read_text(model, encode_prompt(*loaded.tokenizer, words), prompt);
  GenerateOptions options;
  options.tokens = arguments.tokens;
  options.sampling.temperature = 0;
  std::vector<Way> ways = {{"token by token", {}},
                           {"tree, shared state", Speculation{tree, {}, TreeStates::shared}},
                           {"tree, copied states", Speculation{tree, {}, TreeStates::copied}}};
  for (Way& way : ways) way.measure_pass(model, prompt);
  for (int64_t round = 0; round < arguments.rounds; ++round) {
    for (Way& way : ways) way.run(model, prompt, options);
  }
  for (const Way& way : ways) {
    if (way.text != ways[0].text) log_warning(way.name, ": another text than token by token");
  }
  const auto rate = [](const Way& way) {
    return static_cast<double>(way.text.size()) / std::max(way.seconds, 1e-9);
  };
  const TreeMemory memory = tree_memory(tree, static_cast<double>(prompt.state.bytes()),
                                        temporaries_of_token(model.config()));
  JsonValue lines = JsonValue::array();
  if (!arguments.json) {
    std::cout << name_of(model.device()) << ", " << counted(thread_count(), "thread") << ", "
              << counted(tree.size() - 1, "guess", "es") << " of " << counted(tree.depth(), "head")
              << ", " << counted(prompt.state.length, "token") << " of prompt, state "
              << prompt.state.bytes() << " bytes\n"
              << std::left << std::setw(22) << "" << std::right << std::setw(12) << "tokens/s"
              << std::setw(10) << "ratio" << std::setw(16) << "tokens a pass" << std::setw(18)
              << "MiB of a pass"
              << "\n";
  }
  for (const Way& way : ways) {
    const double ratio = rate(way) / rate(ways[0]);
    const double per_pass = way.speculation ? way.counts.tokens_per_pass() : 1;
    lines.push(JsonValue::object()
                   .set("way", way.name)
                   .set("tokens_per_s", rate(way))
                   .set("ratio", ratio)
                   .set("tokens_per_pass", per_pass)
                   .set("pass_bytes", static_cast<int64_t>(way.pass_bytes)));
    if (arguments.json) continue;
    std::cout << std::left << std::setw(22) << way.name << std::right << std::fixed
              << std::setprecision(0) << std::setw(12) << rate(way) << std::setprecision(2)
              << std::setw(10) << ratio << std::setw(16) << per_pass << std::setprecision(3)
              << std::setw(18) << static_cast<double>(way.pass_bytes) / kMiB << "\n";
  }
  if (!arguments.json) {
    std::cout << "by shapes, states and the tree's q, k and v: " << std::setprecision(3)
              << memory.shared / kMiB << " MiB with a shared state, " << memory.copied / kMiB
              << " MiB with one for each of " << counted(tree.leaves(), "candidate") << ", "
              << std::setprecision(1) << memory.ratio() << " times as much\n";
  } else {
    std::cout << JsonValue::object()
                     .set("device", name_of(model.device()))
                     .set("threads", thread_count())
                     .set("nodes", tree.size())
                     .set("state_bytes", static_cast<int64_t>(prompt.state.bytes()))
                     .set("shared_bytes", memory.shared)
                     .set("copied_bytes", memory.copied)
                     .set("ways", std::move(lines))
                     .dump()
              << "\n";
  }
  return 0;
}

}  // namespace

void add_bench_tree(CLI::App& bench, Command& chosen) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = bench.add_subcommand(
      "tree",
      "greedy text by a tree of guesses beside token by token; and with the state copied for each "
      "node, as implementations without a shared one do");
  command
      ->add_option("RUN_OR_CHECKPOINT", arguments->path,
                   "a run directory (its best checkpoint) or a checkpoint directory")
      ->required();
  command->add_option("--tree", arguments->tree, "a file or a name, as generate takes it")
      ->required();
  command
      ->add_option("--prompt-file", arguments->prompt_file, "a file whose whole text is continued")
      ->required();
  command->add_option("--tokens", arguments->tokens, "how many to generate")
      ->capture_default_str()
      ->check(between(2, int64_t{1} << 20));
  command
      ->add_option("--rounds", arguments->rounds,
                   "texts of each way, by turns, of which the fastest counts")
      ->capture_default_str()
      ->check(between(1, kMaxRuns));
  command->add_flag("--json", arguments->json, "one JSON object on stdout");
  add_device_option(*command, arguments->device);
  add_plugin_option(*command);
  add_threads_option(*command);
  command->callback([arguments, &chosen] { chosen = [arguments] { return run(*arguments); }; });
}

}  // namespace linnet::cli
