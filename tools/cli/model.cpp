// linnet model import | export | run: models for other programs, and from them.
#include <CLI/CLI.hpp>
#include <iostream>

#include "core/files.h"
#include "core/log.h"
#include "recipes/engine/model_run.h"
#include "recipes/engine/pretrained_export.h"
#include "recipes/engine/pretrained_import.h"
#include "tools/cli/commands.h"

namespace linnet::cli {
namespace {

int import_model(const std::string& folder, const std::string& out) {
  const std::string text = import_recipe(folder);
  if (out.empty()) {
    std::cout << text;
    return 0;
  }
  require_usage(!exists(out), Cause{ErrorCode::conflict, "--out", out}, out,
                " exists; name a file that does not");
  write_file_atomically(out, text);
  return 0;
}

int export_run(const std::string& run, const std::string& folder) {
  for (const std::string& line : export_model(load_model(run), folder)) log_info(line);
  return 0;
}

void add_run(CLI::App& command, Command& chosen) {
  struct Arguments {
    std::string run, device = "auto";
    ModelRunRequest request;
  };
  auto arguments = std::make_shared<Arguments>();
  ModelRunRequest& request = arguments->request;
  CLI::App* running = command.add_subcommand(
      "run", "write what a checkpoint computes of one text: logits, vectors, attention weights");
  running
      ->add_option("RUN_OR_CHECKPOINT", arguments->run,
                   "a run directory (its best checkpoint, else the newest) or a checkpoint")
      ->required();
  CLI::Option* text = running->add_option(
      "--text", request.text, "a text that the model reads, as the run's tokenizer encodes it");
  running->add_option("--ids", request.ids, "or its ids, e.g. 101,7592,102")
      ->delimiter(',')
      ->excludes(text);
  running
      ->add_option("--out", request.out,
                   "the file to write: HDF5, or safetensors where it is called so")
      ->required()
      ->check(some_text());
  running->add_option("--layers", request.layers,
                      "layers whose vectors are written, e.g. 0,4-5 (default: all)");
  running->add_option("--attention", request.attention,
                      "layers, and after ':' heads, whose attention weights are written, e.g. "
                      "0-3:1 or all (default: none)");
  add_device_option(*running, arguments->device);
  add_plugin_option(*running);
  add_threads_option(*running);
  running->callback([arguments, &chosen] {
    chosen = [arguments] {
      arguments->request.device = use_device(arguments->device);
      for (const std::string& line : run_model(arguments->run, arguments->request)) log_info(line);
      return 0;
    };
  });
}

}  // namespace

void add_model(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("model", "models in files of other programs");
  command->require_subcommand(1);
  struct Import {
    std::string folder, out;
  };
  auto import = std::make_shared<Import>();
  CLI::App* importing = command->add_subcommand(
      "import", "write a recipe that begins with a pretrained BERT, RoBERTa or GPT-2");
  importing->add_option("DIR", import->folder, "the folder with config.json and model.safetensors")
      ->required();
  importing->add_option("--out", import->out, "the recipe file to write (default: stdout)")
      ->check(some_text());
  importing->callback([import, &chosen] {
    chosen = [import] { return import_model(import->folder, import->out); };
  });
  struct Export {
    std::string run, to;
  };
  auto written = std::make_shared<Export>();
  CLI::App* exporting = command->add_subcommand(
      "export", "write the model of a run as config.json, model.safetensors and tokenizer");
  exporting
      ->add_option("RUN_OR_CHECKPOINT", written->run,
                   "a run directory (its best checkpoint, else the newest) or a checkpoint")
      ->required();
  exporting->add_option("--to", written->to, "the folder to write to, without a model")
      ->required()
      ->check(folder_to_write());
  add_plugin_option(*exporting);
  exporting->callback(
      [written, &chosen] { chosen = [written] { return export_run(written->run, written->to); }; });
  add_run(*command, chosen);
}

}  // namespace linnet::cli
