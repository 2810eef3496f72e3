// linnet train: one run of a recipe.
#include <CLI/CLI.hpp>

#include "core/json.h"
#include "recipes/engine/run_directory.h"
#include "recipes/engine/trainer.h"
#include "tools/cli/commands.h"

namespace linnet::cli {

void add_train(CLI::App& app, Command& chosen) {
  struct Arguments {
    std::string recipe, point, from, device = "auto";
    std::vector<std::string> overrides;
    TrainOptions options;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("train", "train the model of a recipe");
  command->add_option("RECIPE", arguments->recipe, "a YAML file, or a pipe such as /dev/stdin")
      ->required();
  command->add_option(
      "OVERRIDES", arguments->overrides,
      "key.path=value ..., e.g. model.attention='{name: lavo}' train.max_steps=100; a new kind or "
      "name resets its section; 'linnet recipe schema' lists the keys");
  command->add_option("--point", arguments->point,
                      "the point of the recipe's sweep to train, e.g. attention=lavo,lr=0.001; "
                      "without it, a recipe with a sweep is refused and its points are listed");
  command
      ->add_option("--from", arguments->from,
                   "begin a new run with the weights of this checkpoint or run directory (its "
                   "best checkpoint, else the newest): short for the recipe's section init: "
                   "{from: CHECKPOINT, map: linnet}; with init.state=all, with its optimizer "
                   "and position, too; continuing that run does not need it again")
      ->check(some_text());
  add_device_option(*command, arguments->device);
  command
      ->add_option("--out", arguments->options.out,
                   "run directory: new, empty or of a run (default runs/<recipe>, of a point "
                   "runs/<recipe>/<point>; a recipe without a name that comes out of a pipe has "
                   "none)")
      ->check(folder_to_write());
  command
      ->add_option("--resume", arguments->options.resume,
                   "auto: continue the run directory if it holds a checkpoint; never; or the run "
                   "directory to continue")
      ->capture_default_str();
  command->add_flag("--dry-run", arguments->options.dry_run,
                    "check everything, say what would be trained and where --out and --resume "
                    "lead, do one update, tell the memory that the run will take, write nothing");
  add_plugin_option(*command);
  add_threads_option(*command);
  command->callback([arguments, &chosen] {
    chosen = [arguments] {
      arguments->options.device = use_device(arguments->device);
      const std::unique_ptr<Communicator> ranks = join_ranks(arguments->options.device);
      arguments->options.ranks = ranks.get();
      if (!arguments->from.empty()) {
        // Quoted, so that no path reads as YAML.
        arguments->overrides.push_back("init.from=" + JsonValue(arguments->from).dump());
        arguments->overrides.emplace_back("init.map=linnet");
      }
      const Recipe recipe =
          load_recipe_of_run(arguments->recipe, arguments->overrides, arguments->point,
                             arguments->options.out, arguments->options.resume);
      return train(recipe, arguments->options).exit_code;
    };
  });
}

}  // namespace linnet::cli
