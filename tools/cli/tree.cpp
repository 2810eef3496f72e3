// linnet tree: trees of guesses for generate --speculate.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>

#include "core/files.h"
#include "core/json.h"
#include "core/log.h"
#include "recipes/engine/evaluate.h"
#include "recipes/engine/run_state.h"
#include "recipes/engine/tree_fit.h"
#include "tools/cli/commands.h"

namespace linnet::cli {
namespace {

// Tokens of the text behind which passes are timed.
constexpr int64_t kTimedText = 64;

struct Arguments {
  std::string path, device = "auto", out;
  EvaluateRequest request;
  int64_t guesses = 16, runs = 20;
  bool json = false;
};

std::string number(double value, int digits) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.*f", digits, value);
  return text;
}

ReadText some_text_of(const Transformer& model) {
  std::vector<int32_t> tokens;
  const int64_t limit = model.length_limit() > 0 ? model.length_limit() / 2 : kTimedText;
  for (int64_t i = 0; i < std::min(std::max<int64_t>(limit, 1), kTimedText); ++i) {
    tokens.push_back(static_cast<int32_t>(i % model.vocabulary()));
  }
  ReadText text;
  read_text(model, tokens, text);
  return text;
}

int fit(const Arguments& arguments) {
  EvaluateRequest request = arguments.request;
  request.device = use_device(arguments.device);
  const EvaluateReport report = evaluate(arguments.path, request);
  const auto shares = shares_of(report.scores.at(0).guesses);
  const LoadedModel loaded = load_model(report.checkpoint, {}, request.device);
  const ReadText text = some_text_of(*loaded.model);
  const auto seconds = [&](const TokenTree& tree) {
    return pass_seconds(*loaded.model, text, tree, TreeStates::shared, arguments.runs);
  };
  const FittedTree fitted = fit_tree(shares, arguments.guesses, seconds);
  std::string first_guesses;
  for (const auto& head : shares) {
    first_guesses += concat(first_guesses.empty() ? "" : ", ", number(100 * head[0], 1), " %");
  }
  const int64_t count = fitted.tree.size() - 1;
  const std::string guesses = concat(count, count == 1 ? " guess" : " guesses");
  const std::string yaml = tree_yaml(
      fitted.tree,
      {concat("A tree for ", report.checkpoint, ": ", guesses, ", ", number(fitted.tokens, 2),
              " tokens a pass expected,"),
       concat(number(fitted.speed_up, 2), " times the speed without guesses. The heads' first ",
              "guesses are right in ", first_guesses, ".")});
  if (!arguments.out.empty()) write_file_atomically(arguments.out, yaml);
  if (arguments.json) {
    JsonValue paths = JsonValue::array();
    for (int64_t node = 1; node < fitted.tree.size(); ++node) {
      JsonValue path = JsonValue::array();
      for (const int64_t rank : fitted.tree.path(node)) path.push(rank);
      paths.push(std::move(path));
    }
    std::cout << JsonValue::object()
                     .set("checkpoint", report.checkpoint)
                     .set("shares", guess_shares(report.scores[0].guesses))
                     .set("paths", std::move(paths))
                     .set("tokens_per_pass", fitted.tokens)
                     .set("pass_seconds", fitted.seconds)
                     .set("speed_up", fitted.speed_up)
                     .dump()
              << "\n";
  } else if (arguments.out.empty()) {
    std::cout << yaml;
  }
  log_info(guesses, ", ", number(fitted.tokens, 2), " tokens a pass expected, ",
           number(fitted.speed_up, 2), " times the speed without guesses",
           arguments.out.empty() ? "" : concat("; the tree is in ", arguments.out));
  return 0;
}

}  // namespace

void add_tree(CLI::App& app, Command& chosen) {
  CLI::App* tree = app.add_subcommand("tree", "trees of guesses for generate --speculate");
  tree->require_subcommand(1);
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = tree->add_subcommand(
      "fit",
      "the tree with the most expected tokens per second, from how often the Medusa heads of a "
      "checkpoint are right on held-out text and how long passes over trees take here");
  command
      ->add_option("RUN_OR_CHECKPOINT", arguments->path,
                   "a run directory (its best checkpoint) or a checkpoint directory")
      ->required();
  command->add_option("--guesses", arguments->guesses, "of the tree, at most")
      ->capture_default_str()
      ->check(between(1, kMaxNodes - 1));
  command->add_option("--out", arguments->out, "write the tree to this file, else to stdout");
  command->add_option("--split", arguments->request.split, "validation, test or train");
  command
      ->add_option("--max-tokens", arguments->request.max_tokens,
                   "of the split that are scored; guesses are counted in the first 32768")
      ->check(at_least(1));
  command
      ->add_option("--set", arguments->request.overrides,
                   "change the recipe's data or evaluate section, e.g. data.path=DIR; may be given "
                   "several times")
      ->allow_extra_args(false);
  command
      ->add_option("--runs", arguments->runs, "passes over each tree, of which the fastest counts")
      ->capture_default_str()
      ->check(between(1, 10'000));
  command->add_flag("--json", arguments->json, "one JSON object on stdout");
  add_device_option(*command, arguments->device);
  add_plugin_option(*command);
  add_threads_option(*command);
  command->callback([arguments, &chosen] {
    if (!arguments->request.max_tokens) arguments->request.max_tokens = kGuessedTokens;
    chosen = [arguments] { return fit(*arguments); };
  });
}

}  // namespace linnet::cli
