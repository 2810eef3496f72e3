// linnet data list | inspect | prepare: data sets without training.
#include <CLI/CLI.hpp>
#include <iomanip>
#include <iostream>

#include "core/json.h"
#include "core/log.h"
#include "data/inspect.h"
#include "tools/cli/commands.h"

namespace linnet::cli {
namespace {

void print_text(const DataReport& report) {
  std::cout << report.path << ": " << report.layout << " (kind " << report.kind << ")\n";
  if (!report.tokenizer.empty()) {
    std::cout << "tokenizer " << report.tokenizer << ", vocabulary " << report.vocabulary_size
              << "\n";
  }
  std::cout << std::left << std::setw(12) << "split" << std::right << std::setw(12) << "documents"
            << std::setw(14) << "bytes" << std::setw(14) << "words" << std::setw(14) << "tokens"
            << "\n";
  for (const SplitReport& split : report.splits) {
    std::cout << std::left << std::setw(12) << split.name << std::right;
    if (!split.missing.empty()) {
      std::cout << "  missing: " << split.missing << "\n";
      continue;
    }
    std::cout << std::setw(12) << split.documents << std::setw(14) << split.bytes << std::setw(14)
              << split.words << std::setw(14) << split.tokens << "\n";
  }
  for (const std::string& path : report.written) std::cout << "written: " << path << "\n";
}

void print_json(const DataReport& report) {
  JsonValue splits = JsonValue::array();
  for (const SplitReport& split : report.splits) {
    splits.push(JsonValue::object()
                    .set("name", split.name)
                    .set("missing", split.missing)
                    .set("documents", split.documents)
                    .set("bytes", split.bytes)
                    .set("words", split.words)
                    .set("tokens", split.tokens));
  }
  JsonValue written = JsonValue::array();
  for (const std::string& path : report.written) written.push(path);
  std::cout << JsonValue::object()
                   .set("path", report.path)
                   .set("kind", report.kind)
                   .set("layout", report.layout)
                   .set("tokenizer", report.tokenizer)
                   .set("vocabulary_size", report.vocabulary_size)
                   .set("splits", splits)
                   .set("written", written)
                   .dump()
            << "\n";
}

int show(const DataReport& report, bool json) {
  for (const std::string& warning : report.warnings) log_warning(warning);
  json ? print_json(report) : print_text(report);
  return 0;
}

}  // namespace

void add_data(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("data", "list kinds of data, look at data, prepare it");
  command->require_subcommand(1);
  auto json = std::make_shared<bool>(false);
  auto config = std::make_shared<DataConfig>();

  CLI::App* lister = command->add_subcommand("list", "the kinds that data.kind may name");
  lister->add_flag("--json", *json, "one JSON object on stdout");
  lister->callback([=, &chosen] {
    chosen = [=] {
      if (*json) {
        JsonValue kinds = JsonValue::array();
        for (const DataKind& kind : data_kinds()) {
          kinds.push(JsonValue::object().set("name", kind.name).set("help", kind.help));
        }
        std::cout << JsonValue::object().set("kinds", kinds).dump() << "\n";
        return 0;
      }
      for (const DataKind& kind : data_kinds()) {
        std::cout << std::left << std::setw(12) << kind.name << kind.help << "\n";
      }
      return 0;
    };
  });

  CLI::App* inspect = command->add_subcommand("inspect", "documents, bytes, words and tokens");
  inspect->add_option("PATH", config->path, "a file or folder")->required();
  inspect->add_flag("--json", *json, "one JSON object on stdout");
  inspect->callback(
      [=, &chosen] { chosen = [=] { return show(inspect_data(config->path), *json); }; });

  CLI::App* prepare = command->add_subcommand("prepare", "tokenize ahead of training");
  auto folder = std::make_shared<std::string>();
  prepare->add_option("KIND", config->kind, "see 'linnet data list'")->required();
  prepare->add_option("--from", config->path, "the data")->required();
  prepare->add_option("--out", *folder, "folder to write to (default: the token cache)");
  prepare->add_option("--tokenizer", config->tokenizer.kind, "byte, word or gpt2")
      ->capture_default_str();
  prepare->add_option("--tokenizer-path", config->tokenizer.path,
                      "word: vocabulary file; gpt2: folder with encoder.json and vocab.bpe");
  prepare->add_flag("--json", *json, "one JSON object on stdout");
  prepare->callback([=, &chosen] {
    chosen = [=] {
      // The same checks as for a recipe.
      return show(prepare_data(parse_config<DataConfig>(to_config_node(*config)), *folder), *json);
    };
  });
}

}  // namespace linnet::cli
