// linnet evaluate: perplexity or accuracy of a checkpoint.
#include "recipes/engine/evaluate.h"

#include <CLI/CLI.hpp>
#include <iostream>

#include "core/kernel_choice.h"
#include "core/log.h"
#include "recipes/engine/later_evaluations.h"
#include "tools/cli/commands.h"

namespace linnet::cli {

void add_evaluate(CLI::App& app, Command& chosen) {
  struct Arguments {
    std::string path, device = "auto", backend = "auto", weights = "f32";
    EvaluateRequest request;
    bool json = false;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("evaluate", "score a checkpoint on held-out data");
  command
      ->add_option("RUN_OR_CHECKPOINT", arguments->path,
                   "a run directory (its best checkpoint) or a checkpoint directory")
      ->required();
  EvaluateRequest& request = arguments->request;
  command->footer(
      "What is not given is as the recipe's 'evaluate' section says, but the whole split is "
      "scored. Any of --context, --stride and --carry-state takes the place of its 'protocols'.");
  command->add_option("--split", request.split, "validation, test or train");
  command
      ->add_option("--context", request.contexts,
                   "lengths of windows, with --carry-state of chunks, e.g. 512,1024")
      ->delimiter(',')
      ->check(between(1, kMaxTokensAtOnce));
  command->add_option("--stride", request.stride,
                      "overlapping windows that score this many new tokens each: 1 to the context");
  command->add_flag("--carry-state", request.carry_state,
                    "stream whole documents with the mechanism's state, in constant memory");
  command->add_option("--batch", request.batch, "windows or examples scored together")
      ->check(between(1, kMaxTokensAtOnce));
  command->add_option("--max-tokens", request.max_tokens,
                      "score only the first so many, of a classifier so many examples");
  command->add_flag("--baselines", request.baselines,
                    "unigram and bigram models of the training split beside it");
  command->add_option(
      "--predictions", request.predictions,
      "write what a classifier says of each example to this file, as GLUE takes it");
  command->add_option("--per-token", request.per_token,
                      "write id, loss, document and position of each scored token of a language "
                      "model to this file: HDF5, or safetensors where it is called so");
  command
      ->add_option("--weights", arguments->weights,
                   "score the weights rounded to bf16 or int8 (with a scale per row), as 'linnet "
                   "generate --weights' reads them, beside those in f32")
      ->capture_default_str()
      ->check(CLI::IsMember({"f32", "bf16", "int8"}));
  command
      ->add_option("--set", request.overrides,
                   "change the recipe's data or evaluate section, e.g. data.path=DIR; may be given "
                   "several times")
      ->allow_extra_args(false);
  command->add_flag("--json", arguments->json, "one JSON object on stdout");
  add_device_option(*command, arguments->device);
  add_backend_option(*command, arguments->backend);
  add_plugin_option(*command);
  add_threads_option(*command);
  command->callback([arguments, &chosen] {
    chosen = [arguments] {
      const std::unique_ptr<Communicator> ranks = join_ranks();
      arguments->request.ranks = ranks.get();
      arguments->request.weights = weight_format_from_name(arguments->weights);
      arguments->request.device = use_device(arguments->device);
      const UseKernels kernels(kernel_choice_from_name(arguments->backend),
                               arguments->request.device);
      const EvaluateReport report = evaluate(arguments->path, arguments->request);
      if (ranks->rank() != 0) return 0;
      std::cout << (arguments->json ? report.json().dump() + "\n" : report.text());
      try {
        keep_evaluation(report);
      } catch (const Error& error) {  // the scores are told
        log_warning("'linnet report' will not know these scores: ", error.what());
      }
      return 0;
    };
  });
}

}  // namespace linnet::cli
