// linnet attention list | show | check | run | new: the mechanisms themselves.
#include <algorithm>
#include <CLI/CLI.hpp>
#include <filesystem>
#include <iomanip>
#include <iostream>

#include "attention/case.h"
#include "attention/conformance/conformance.h"
#include "attention/define.h"
#include "attention/explain.h"
#include "attention/new_mechanism.h"
#include "attention/registry.h"
#include "core/echo.h"
#include "core/files.h"
#include "core/progress.h"
#include "core/yaml.h"
#include "tools/cli/commands.h"

namespace linnet::cli {
namespace {

constexpr Form kForms[] = {Form::noncausal, Form::causal, Form::cross};

int list(bool json) {
  JsonValue array = JsonValue::array();
  size_t width = 0;
  for (const Mechanism& mechanism : mechanisms()) width = std::max(width, mechanism.name.size());
  for (const Mechanism& mechanism : mechanisms()) {
    JsonValue forms = JsonValue::array();
    std::string text;
    for (const Form form : kForms) {
      if (!mechanism.traits.has(form)) continue;
      forms.push(name_of(form));
      text += concat(text.empty() ? "" : " ", name_of(form));
    }
    array.push(JsonValue::object()
                   .set("name", mechanism.name)
                   .set("title", mechanism.title)
                   .set("forms", forms)
                   .set("growth", mechanism.traits.growth));
    if (json) continue;
    std::cout << std::left << std::setw(static_cast<int>(width) + 2) << mechanism.name
              << std::setw(24) << text << mechanism.title << "\n";
  }
  if (json) std::cout << JsonValue::object().set("mechanisms", array).dump() << "\n";
  return 0;
}

int check(const std::string& name, const std::string& form, Device device) {
  const Mechanism& mechanism = find_mechanism(name);
  if (!form.empty()) require_form(name, mechanism.traits, form_from_name(form));
  bool passed = true;
  for (const Form each : kForms) {
    if (!mechanism.traits.has(each) || (!form.empty() && form_from_name(form) != each)) continue;
    WorkProgress progress;
    const std::vector<CheckResult> results =
        run_conformance(mechanism, each, device, shown_by(progress));
    progress.erase();
    std::cout << name << ", " << name_of(each) << "\n" << format_results(results) << std::flush;
    for (const CheckResult& result : results) passed = passed && (result.passed || result.exempt);
  }
  return passed ? 0 : 1;
}

// Writes a mechanism and says what to do with it.
int write(const std::string& name, const std::string& plugin) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  const LinnetPlace place = plugin.empty() ? LinnetPlace{} : place_of(program);
  const std::vector<NewFile> files =
      plugin.empty() ? new_in_checkout(name, "") : new_plugin(name, plugin, place.text);
  write_new(files);
  for (const NewFile& file : files) {
    std::cout << (file.exists ? "a line in " : "wrote ") << file.path << "\n";
  }
  if (plugin.empty()) {
    std::cout << "Build, check and train it:\n  tools/linnet attention check " << name
              << "\n  tools/linnet train recipes/quickstart/compare.yaml --point attention=" << name
              << "\n";
    return 0;
  }
  const std::string folder = std::filesystem::absolute(plugin).lexically_normal().string();
  const std::string runs = concat("\n  ", shell_word(program), " ");
  const std::string loads = concat(" --plugin build/lib", name, ".so");
  std::cout
      << "Build it, check it and train with it:\n  cd " << shell_word(folder)
      << "\n  cmake -S . -B build " << shell_word(place.package)
      << " -DCMAKE_BUILD_TYPE=Release && cmake --build build" << runs << "attention check " << name
      << loads << runs << "train " << name << ".yaml" << loads
      << "\nThe recipe trains on headers of linnet; add data.path=FOLDER to train on your own "
         "text.\n";
  return 0;
}

// Whether both paths lead to one file that is there.
bool names_file(const std::string& path, const std::string& other) {
  std::error_code absent;
  return std::filesystem::equivalent(path, other, absent);
}

}  // namespace

void add_attention(CLI::App& app, Command& chosen) {
  CLI::App* command =
      app.add_subcommand("attention", "list, explain, check, run or begin mechanisms");
  command->require_subcommand(1);
  auto json = std::make_shared<bool>(false);
  auto name = std::make_shared<std::string>();
  auto device = std::make_shared<std::string>("auto");

  CLI::App* lister = command->add_subcommand("list", "all mechanisms with their forms");
  lister->add_flag("--json", *json, "one JSON object on stdout");
  add_plugin_option(*lister);
  lister->callback([=, &chosen] { chosen = [=] { return list(*json); }; });

  CLI::App* show = command->add_subcommand("show", "equation, parameters, forms, cost, sources");
  auto config = std::make_shared<std::string>();
  show->add_option("NAME", *name, "a mechanism")->required();
  show->add_option("--config", *config,
                   "YAML file with the mechanism's parameters, width, heads, max_length, "
                   "projection_bias and rotary_width");
  auto tokens = std::make_shared<std::optional<int64_t>>();
  show->add_option("--tokens", *tokens,
                   "length at which draws, choices and states are shown (default: 2 chunks)")
      ->check(at_least(1));
  show->add_flag("--json", *json, "one JSON object on stdout");
  add_plugin_option(*show);
  show->callback([=, &chosen] {
    chosen = [=] {
      const ConfigNode node = config->empty() ? ConfigNode::map() : load_yaml(*config);
      const JsonValue explanation = explain_mechanism(find_mechanism(*name), node, *tokens);
      std::cout << (*json ? explanation.dump() + "\n" : format_explanation(explanation));
      return 0;
    };
  });

  CLI::App* checker = command->add_subcommand("check", "the conformance suite for one mechanism");
  auto form = std::make_shared<std::string>();
  checker->add_option("NAME", *name, "a mechanism")->required();
  checker->add_option("--form", *form, "noncausal, causal or cross (default: all it has)");
  add_device_option(*checker, *device);
  add_plugin_option(*checker);
  checker->callback(
      [=, &chosen] { chosen = [=] { return check(*name, *form, use_device(*device)); }; });

  CLI::App* runner = command->add_subcommand("run", "one mechanism on the tensors of a file");
  auto in = std::make_shared<std::string>();
  auto out = std::make_shared<std::string>();
  auto dtype = std::make_shared<std::string>("f32");
  auto mode = std::make_shared<std::string>("parallel");
  auto options = std::make_shared<CaseOptions>();
  runner->add_option("CASE", *in, "CASE.h5: see attention/README.md")->required();
  runner->add_option("--out", *out, "OUT.h5")->required()->check(some_text());
  runner->add_option("--dtype", *dtype, "f64, f32 or bf16")->capture_default_str();
  runner->add_option("--mode", *mode, "parallel, or with a decode state chunked or recurrent")
      ->capture_default_str();
  runner->add_option("--chunk", options->chunk, "tokens of a call in mode chunked")
      ->capture_default_str()
      ->check(between(1, int64_t{1} << 30));
  add_device_option(*runner, *device);
  add_plugin_option(*runner);
  runner->callback([=, &chosen] {
    chosen = [=] {
      options->device = use_device(*device);
      require_usage(*dtype == "f64" || *dtype == "f32" || *dtype == "bf16",
                    Cause{ErrorCode::unknown_name, "--dtype"},
                    "--dtype is f64, f32 or bf16, found ", *dtype);
      options->dtype = dtype_from_name(*dtype);
      options->mode = case_mode_from_name(*mode);
      require_usage(!names_file(*out, *in), Cause{ErrorCode::conflict, "--out", *out},
                    "--out is the case itself, ", *out, ", which would be lost; name another file");
      write_file_atomically(*out, run_case(read_file(*in), *in, *options));
      return 0;
    };
  });

  CLI::App* writer = command->add_subcommand(
      "new", "write a mechanism that builds and passes the suite, to edit into your own");
  auto new_name = std::make_shared<std::string>();
  auto plugin = std::make_shared<std::string>();
  writer->add_option("NEW_NAME", *new_name, "lower-case letters, digits and _")->required();
  writer
      ->add_option("--plugin", *plugin,
                   "the folder of a plugin; without it, run in the root of linnet's source: "
                   "attention/NEW_NAME and the lists that name every mechanism")
      ->check(folder_to_write());
  writer->callback([=, &chosen] { chosen = [=] { return write(*new_name, *plugin); }; });
}

}  // namespace linnet::cli
