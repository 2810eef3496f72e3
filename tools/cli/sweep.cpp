// linnet sweep: all points of a recipe, each a process.
#include <CLI/CLI.hpp>
#include <iostream>

#include "attention/plugin_loader.h"
#include "core/log.h"
#include "recipes/engine/sweep_run.h"
#include "tools/cli/commands.h"

namespace linnet::cli {

void add_sweep(CLI::App& app, Command& chosen) {
  struct Arguments {
    SweepOptions options;
    std::string device = "auto";
    bool dry_run = false, json = false;
  };
  auto arguments = std::make_shared<Arguments>();
  SweepOptions& options = arguments->options;
  CLI::App* command = app.add_subcommand("sweep", "train all points of a recipe's sweep");
  command->add_option("RECIPE", options.recipe, "a YAML file with a section sweep")->required();
  command->add_option("OVERRIDES", options.overrides,
                      "key.path=value ..., for all points; of a swept key, it takes that key out "
                      "of the sweep");
  command
      ->add_option("--only", options.only,
                   "the label of a point to train, such as attention=lavo,lr=0.001; may be given "
                   "several times (default: all)")
      ->allow_extra_args(false);
  command
      ->add_option("--parallel", options.parallel,
                   "runs at a time, among which the threads are divided; more threads or fewer "
                   "change the last bits of results")
      ->check(between(1, 256))
      ->capture_default_str();
  command
      ->add_option("--out", options.out,
                   "folder of the points' run directories (default runs/<recipe>)")
      ->check(folder_to_write());
  command->add_flag("--dry-run", arguments->dry_run,
                    "one update of every point: print its parameters, tokens, the memory that its "
                    "tensors will take and the estimated time, write nothing");
  command->add_flag("--json", arguments->json, "the outcome as one JSON object");
  add_device_option(*command, arguments->device);
  add_plugin_option(*command);
  add_threads_option(*command);
  command->callback([arguments, &chosen] {
    chosen = [arguments] {
      SweepOptions& asked = arguments->options;
      const Device device = use_device(arguments->device);
      if (arguments->dry_run) {
        require_usage(!arguments->json, Cause{ErrorCode::conflict, "--json"},
                      "--dry-run prints a table and --json the outcome of a sweep; give one");
        std::cout << preview_sweep(asked, device);
        return 0;
      }
      asked.train_options = {"--device", arguments->device};
      for (const Plugin& plugin : loaded_plugins()) {
        asked.train_options.insert(asked.train_options.end(), {"--plugin", plugin.path});
      }
      const SweepOutcome outcome = run_sweep(asked);
      std::cout << (arguments->json ? outcome.json().dump() + "\n" : outcome.text());
      if (outcome.exit_code() == 0) {
        log_info("tables and curves of all: linnet report ", outcome.directory);
      } else {
        log_info("run the sweep again to go on with what is not done");
      }
      return outcome.exit_code();
    };
  });
}

}  // namespace linnet::cli
