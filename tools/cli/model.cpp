// linnet model import | export: pretrained models of other programs.
#include <CLI/CLI.hpp>
#include <iostream>

#include "core/files.h"
#include "core/log.h"
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

}  // namespace

void add_model(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("model", "pretrained models of other programs");
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
}

}  // namespace linnet::cli
