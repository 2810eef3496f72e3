// linnet data list | inspect | prepare: data sets without training.
#include <algorithm>
#include <CLI/CLI.hpp>
#include <iomanip>
#include <iostream>
#include <sstream>

#include "core/echo.h"
#include "core/files.h"
#include "core/json.h"
#include "core/log.h"
#include "data/archive.h"
#include "data/inspect.h"
#include "data/registry.h"
#include "data/token_cache.h"
#include "data/tokenizer_kinds.h"
#include "recipes/engine/recipe_merge.h"
#include "tools/cli/commands.h"

namespace linnet::cli {
namespace {

constexpr size_t kShownClasses = 20;

// Names of classes are data, whoever wrote them.
std::string class_shown(const std::string& name) {
  return printable(shortened(name, 80));
}

// "yes, 56.34 %": what guessing the most frequent class would score.
std::string largest_class(const DataReport& report, const SplitReport& split) {
  if (split.of_class.empty()) return report.classes.empty() ? "" : "no labels";
  const auto most = std::max_element(split.of_class.begin(), split.of_class.end());
  std::ostringstream text;
  text << class_shown(report.classes[static_cast<size_t>(most - split.of_class.begin())]) << ", "
       << std::fixed << std::setprecision(2)
       << 100 * static_cast<double>(*most) / static_cast<double>(split.documents) << " %";
  return text.str();
}

void print_text(const DataReport& report) {
  const bool text = !report.labelled;
  std::cout << report.path << (report.path.empty() ? "" : ": ") << report.layout << " (kind "
            << report.kind << ")\n";
  if (!report.tokenizer.empty()) {
    std::cout << "tokenizer " << report.tokenizer << ", vocabulary " << report.vocabulary_size
              << "\n";
  }
  if (report.labelled && report.classes.empty()) std::cout << "a value to predict each\n";
  if (report.labelled && !report.classes.empty()) {
    std::cout << report.classes.size() << " classes: ";
    for (size_t i = 0; i < report.classes.size() && i < kShownClasses; ++i)
      std::cout << (i > 0 ? ", " : "") << class_shown(report.classes[i]);
    std::cout << (report.classes.size() > kShownClasses ? ", ...\n" : "\n");
  }
  std::cout << std::left << std::setw(12) << "split" << std::right << std::setw(12)
            << (text ? "documents" : "examples");
  if (text) std::cout << std::setw(14) << "bytes" << std::setw(14) << "words";
  std::cout << std::setw(14) << "tokens" << (text ? "\n" : "   largest class\n");
  for (const SplitReport& split : report.splits) {
    std::cout << std::left << std::setw(12) << split.name << std::right;
    if (!split.missing.empty()) {
      std::cout << "  missing: " << split.missing << "\n";
      continue;
    }
    std::cout << std::setw(12) << split.documents;
    if (text) std::cout << std::setw(14) << split.bytes << std::setw(14) << split.words;
    std::cout << std::setw(14) << split.tokens;
    if (!text) std::cout << "   " << largest_class(report, split);
    std::cout << "\n";
  }
  for (const std::string& path : report.written) std::cout << "written: " << path << "\n";
}

void print_json(const DataReport& report) {
  JsonValue splits = JsonValue::array();
  for (const SplitReport& split : report.splits) {
    JsonValue of_class = JsonValue::array();
    for (const int64_t count : split.of_class) of_class.push(count);
    splits.push(JsonValue::object()
                    .set("name", split.name)
                    .set("missing", split.missing)
                    .set("documents", split.documents)
                    .set("bytes", split.bytes)
                    .set("words", split.words)
                    .set("tokens", split.tokens)
                    .set("of_class", of_class));
  }
  JsonValue classes = JsonValue::array();
  for (const std::string& name : report.classes) classes.push(name);
  JsonValue written = JsonValue::array();
  for (const std::string& path : report.written) written.push(path);
  std::cout << JsonValue::object()
                   .set("path", report.path)
                   .set("kind", report.kind)
                   .set("layout", report.layout)
                   .set("tokenizer", report.tokenizer)
                   .set("vocabulary_size", report.vocabulary_size)
                   .set("classes", classes)
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

// What is prepared, as the command line names it.
struct Wanted {
  std::string kind, path, tokenizer = "byte", tokenizer_path;
  std::vector<std::string> overrides;  // of the section data
};

// Adds the overrides to a section.
ConfigNode with_overrides(ConfigNode section, const std::vector<std::string>& overrides) {
  ConfigNode root = ConfigNode::map();
  root.set("data", std::move(section));
  std::vector<Override> changes;
  for (const std::string& text : overrides) {
    changes.push_back(parse_override(text));
    require_usage(changes.back().path[0] == "data" && changes.back().path.size() > 1,
                  Cause{ErrorCode::conflict, "--set"}, "--set ", text,
                  ": only keys of data can be set here, as in data.text=sentence");
  }
  apply_overrides(root, std::move(changes));
  return *root.find("data");
}

// The data of a path, of the kind that it is like unless one is set.
DataReport inspected(const Wanted& wanted) {
  if (wanted.overrides.empty()) return inspect_data(wanted.path);
  ConfigNode section = ConfigNode::map();
  // The kind comes first: as an override of another one it would drop the path.
  std::vector<std::string> others = wanted.overrides;
  const auto kind = std::find_if(others.begin(), others.end(), [](const std::string& text) {
    return text.starts_with("data.kind=");
  });
  if (kind == others.end()) {
    section.set("kind",
                ConfigNode::text(detect_data_kind(unpacked(wanted.path, token_cache_folder()))));
  } else {
    section.set("kind", parse_override(*kind).value);
    others.erase(kind);
  }
  section.set("path", ConfigNode::text(wanted.path));
  section.set_location_everywhere({std::make_shared<const std::string>("command line"), 0, 0});
  return inspect_data(parse_config<DataConfig>(with_overrides(std::move(section), others)));
}

// A recipe's section of these options. A tokenizer that nobody chose is left out where the kind has
// none.
ConfigNode section_of(const Wanted& wanted, const DataKind& kind) {
  ConfigNode section = ConfigNode::map();
  section.set("kind", ConfigNode::text(wanted.kind));
  section.set("path", ConfigNode::text(wanted.path));
  const Wanted none;
  const bool chosen =
      wanted.tokenizer != none.tokenizer || wanted.tokenizer_path != none.tokenizer_path;
  if (chosen || kind.options.find<TokenizerOption>() != nullptr) {
    ConfigNode tokenizer = ConfigNode::map();
    tokenizer.set("kind", ConfigNode::text(wanted.tokenizer));
    tokenizer.set("path", ConfigNode::text(wanted.tokenizer_path));
    section.set("tokenizer", std::move(tokenizer));
  }
  section.set_location_everywhere({std::make_shared<const std::string>("command line"), 0, 0});
  return section;
}

// Options are checked as a recipe's section is, after what only a command line gets wrong.
int prepare(const Wanted& wanted, const std::string& folder, bool json) {
  std::string kinds;
  const DataKind* kind = nullptr;
  for (const DataKind& each : data_kinds()) {
    std::ostringstream line;
    line << "\n  " << std::left << std::setw(16) << each.name << each.help;
    if (each.form() != DataForm::sequences) kinds += line.str();
    if (each.name == wanted.kind) kind = &each;
  }
  require_usage(kind != nullptr, Cause{ErrorCode::unknown_name, "KIND"}, "'", wanted.kind,
                "' is no kind of data; what can be prepared is", kinds);
  require_usage(!wanted.path.empty() || !kind->without_path.empty(),
                Cause{ErrorCode::missing_key, "--from"}, "--from is required for kind ",
                wanted.kind, ": the file or folder to prepare");
  const TokenizerKind* tokenizer = find_tokenizer_kind(wanted.tokenizer);
  require_usage(tokenizer == nullptr || tokenizer->path != TokenizerKind::Path::required ||
                    !wanted.tokenizer_path.empty(),
                Cause{ErrorCode::missing_key, "--tokenizer-path"}, "--tokenizer ", wanted.tokenizer,
                " needs --tokenizer-path: ", tokenizer == nullptr ? "" : tokenizer->path_help);
  require(wanted.path.empty() || exists(wanted.path),
          Cause{ErrorCode::not_found, "--from", wanted.path}, "--from ", wanted.path,
          " does not exist");
  const ConfigNode section = with_overrides(section_of(wanted, *kind), wanted.overrides);
  return show(prepare_data(parse_config<DataConfig>(section), folder), json);
}

}  // namespace

void add_data(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("data", "list kinds of data, look at data, prepare it");
  command->require_subcommand(1);
  auto json = std::make_shared<bool>(false);
  auto wanted = std::make_shared<Wanted>();

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
        std::cout << std::left << std::setw(16) << kind.name << kind.help << "\n";
      }
      return 0;
    };
  });

  CLI::App* inspect = command->add_subcommand(
      "inspect", "documents, bytes, words and tokens; examples and classes");
  inspect->add_option("PATH", wanted->path, "a file or folder")->required();
  const auto add_set = [&wanted](CLI::App& to) {
    to.add_option("--set", wanted->overrides,
                  "a key of a recipe's data section, e.g. data.text=sentence; may be given several "
                  "times")
        ->allow_extra_args(false);
  };
  add_set(*inspect);
  inspect->add_flag("--json", *json, "one JSON object on stdout");
  inspect->callback([=, &chosen] { chosen = [=] { return show(inspected(*wanted), *json); }; });

  CLI::App* preparer = command->add_subcommand("prepare", "tokenize ahead of training");
  auto folder = std::make_shared<std::string>();
  preparer->add_option("KIND", wanted->kind, "see 'linnet data list'")->required();
  preparer->add_option("--from", wanted->path, concat("the data", paths_left_out()));
  preparer->add_option("--out", *folder, "folder to write to (default: the token cache)")
      ->check(folder_to_write());
  preparer->add_option("--tokenizer", wanted->tokenizer, tokenizer_kinds_text())
      ->capture_default_str();
  preparer->add_option("--tokenizer-path", wanted->tokenizer_path, tokenizer_paths_text());
  add_set(*preparer);
  preparer->add_flag("--json", *json, "one JSON object on stdout");
  preparer->callback([=, &chosen] { chosen = [=] { return prepare(*wanted, *folder, *json); }; });
}

}  // namespace linnet::cli
