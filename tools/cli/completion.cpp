// linnet completion bash | zsh | fish: a script that completes commands, options and their values.
#include <algorithm>
#include <CLI/CLI.hpp>
#include <iostream>
#include <map>

#include "attention/registry.h"
#include "core/error.h"
#include "data/registry.h"
#include "data/tokenizer_kinds.h"
#include "tools/cli/commands.h"

namespace linnet::cli {
namespace {

struct OptionEntry {
  std::string name;  // "--device"
  std::string help;
  bool takes_value = false;
  std::vector<std::string> values;  // empty: a file, or anything
};

struct CommandEntry {
  std::string path;                                           // "linnet attention check"
  std::vector<std::pair<std::string, std::string>> commands;  // below it, with their help
  std::vector<OptionEntry> options;
  std::vector<std::string> arguments;  // values of its positional arguments; empty: files
};

// Values of options and arguments that are one of a few words: those that the help names too.
std::vector<std::string> values_of(const std::string& name, const std::string& help) {
  static const std::map<std::string, std::vector<std::string>> kValues = {
      {"--backend", {"auto", "plain", "tensor_cores"}},
      {"--device", {"auto", "cpu", "cuda"}},
      {"--dtype", {"f32", "bf16", "f64"}},
      {"--form", {"causal", "noncausal", "cross"}},
      {"--mode", {"parallel", "chunked", "recurrent"}},
      {"--resume", {"auto", "never"}},
      {"--split", {"validation", "test", "train"}},
      {"--tokenizer", tokenizer_kind_names()},
      {"SHELL", {"bash", "zsh", "fish"}},
  };
  std::vector<std::string> values;
  if (name == "NAME" || name == "MECHANISM") {
    for (const Mechanism& mechanism : mechanisms()) values.push_back(mechanism.name);
  } else if (name == "KIND") {
    for (const DataKind& kind : data_kinds()) values.push_back(kind.name);
  } else if (const auto found = kValues.find(name); found != kValues.end()) {
    for (const std::string& value : found->second) {
      if (help.find(value) != std::string::npos) values.push_back(value);
    }
  }
  return values;
}

void add_entries(const CLI::App& app, const std::string& path, std::vector<CommandEntry>& entries) {
  CommandEntry entry{path, {}, {}, {}};
  for (const CLI::App* below : app.get_subcommands({})) {
    entry.commands.emplace_back(below->get_name(), below->get_description());
  }
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) {
      const std::vector<std::string> values =
          values_of(option->get_name(true), option->get_description());
      entry.arguments.insert(entry.arguments.end(), values.begin(), values.end());
    }
    for (const std::string& name : option->get_lnames()) {
      entry.options.push_back({"--" + name, option->get_description(),
                               option->get_items_expected_max() > 0,
                               values_of("--" + name, option->get_description())});
    }
  }
  entries.push_back(std::move(entry));
  for (const CLI::App* below : app.get_subcommands({})) {
    add_entries(*below, path + " " + below->get_name(), entries);
  }
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

// A text in single quotes; `escaped` stands for a quote in it.
std::string quoted(std::string text, const std::string& escaped) {
  for (size_t at = 0; (at = text.find('\'', at)) != std::string::npos; at += escaped.size()) {
    text.replace(at, 1, escaped);
  }
  return "'" + text + "'";
}

// "'linnet train' | 'linnet evaluate' ...": all commands but linnet itself.
std::string all_paths(const std::vector<CommandEntry>& entries, const char* separator) {
  std::string text;
  for (size_t i = 1; i < entries.size(); ++i) {
    text += concat(text.empty() ? "" : separator, "'", entries[i].path, "'");
  }
  return text;
}

void print_bash(const std::vector<CommandEntry>& entries) {
  std::cout << "# Completion of linnet for bash: source this, or keep it as\n"
               "# ~/.local/share/bash-completion/completions/linnet\n"
               "_linnet() {\n"
               "  local current=${COMP_WORDS[COMP_CWORD]} at=linnet words= options= i\n"
               "  COMPREPLY=()\n"
               "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
               "    case \"$at ${COMP_WORDS[i]}\" in\n"
               "      "
            << all_paths(entries, " | ")
            << ")\n        at+=\" ${COMP_WORDS[i]}\" ;;\n    esac\n  done\n"
               "  case \"$at ${COMP_WORDS[COMP_CWORD - 1]}\" in\n";
  for (const CommandEntry& entry : entries) {
    for (const OptionEntry& option : entry.options) {
      if (!option.takes_value) continue;
      std::cout << "    '" << entry.path << " " << option.name << "') ";
      if (!option.values.empty()) {
        std::cout << "COMPREPLY=($(compgen -W '" << joined(option.values)
                  << "' -- \"$current\")); ";
      }
      std::cout << "return ;;\n";
    }
  }
  std::cout << "  esac\n  case \"$at\" in\n";
  for (const CommandEntry& entry : entries) {
    std::vector<std::string> words = entry.arguments, options;
    for (const auto& command : entry.commands) words.push_back(command.first);
    for (const OptionEntry& option : entry.options) options.push_back(option.name);
    std::cout << "    '" << entry.path << "') words='" << joined(words) << "' options='"
              << joined(options) << "' ;;\n";
  }
  std::cout << "  esac\n"
               "  [[ $current == -* ]] && words=$options\n"
               "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
               "}\n"
               "complete -o default -F _linnet linnet\n";
}

void print_zsh(const std::vector<CommandEntry>& entries) {
  // A description that _describe shows; the first colon ends the word.
  const auto described = [](const std::string& word, const std::string& help) {
    return quoted(word + ":" + help, "'\\''");
  };
  std::cout << "#compdef linnet\n"
               "# Completion of linnet for zsh: keep it as _linnet in a folder of $fpath.\n"
               "_linnet() {\n"
               "  local at=linnet i\n"
               "  local -a choices options\n"
               "  for ((i = 2; i < CURRENT; ++i)); do\n"
               "    case \"$at $words[i]\" in\n"
               "      ("
            << all_paths(entries, " | ")
            << ") at+=\" $words[i]\" ;;\n    esac\n  done\n"
               "  case \"$at $words[CURRENT-1]\" in\n";
  for (const CommandEntry& entry : entries) {
    for (const OptionEntry& option : entry.options) {
      if (!option.takes_value) continue;
      std::cout << "    ('" << entry.path << " " << option.name << "') "
                << (option.values.empty() ? "_files" : "compadd -- " + joined(option.values))
                << "; return ;;\n";
    }
  }
  std::cout << "  esac\n  case \"$at\" in\n";
  for (const CommandEntry& entry : entries) {
    std::cout << "    ('" << entry.path << "')\n      choices=(";
    for (const auto& [name, help] : entry.commands) std::cout << described(name, help) << " ";
    std::cout << joined(entry.arguments) << ")\n      options=(";
    for (const OptionEntry& option : entry.options) {
      std::cout << described(option.name, option.help) << " ";
    }
    std::cout << ") ;;\n";
  }
  std::cout << "  esac\n"
               "  if [[ $words[CURRENT] == -* ]]; then\n"
               "    _describe option options\n"
               "  elif (( $#choices )); then\n"
               "    _describe word choices\n"
               "  else\n"
               "    _files\n"
               "  fi\n"
               "}\n"
               // zsh runs an installed file as the function itself at the first completion.
               "if [[ $funcstack[1] == _linnet ]]; then\n"
               "  _linnet \"$@\"\n"
               "else\n"
               "  compdef _linnet linnet\n"
               "fi\n";
}

void print_fish(const std::vector<CommandEntry>& entries) {
  const auto text = [](const std::string& words) { return quoted(words, "\\'"); };
  std::cout << "# Completion of linnet for fish: keep it as\n"
               "# ~/.config/fish/completions/linnet.fish\n"
               "function __linnet_at\n"
               "  set -l at linnet\n"
               "  for word in (commandline -opc)[2..-1]\n"
               "    switch \"$at $word\"\n"
               "      case "
            << all_paths(entries, " ")
            << "\n        set at \"$at $word\"\n    end\n  end\n"
               "  test \"$at\" = \"$argv\"\n"
               "end\n";
  for (const CommandEntry& entry : entries) {
    const std::string begin = "complete -c linnet -n '__linnet_at " + entry.path + "'";
    for (const auto& [name, help] : entry.commands) {
      std::cout << begin << " -f -a " << name << " -d " << text(help) << "\n";
    }
    if (!entry.arguments.empty()) {
      std::cout << begin << " -f -a " << text(joined(entry.arguments)) << "\n";
    }
    for (const OptionEntry& option : entry.options) {
      std::cout << begin << " -l " << option.name.substr(2);
      if (option.takes_value) std::cout << " -r";
      if (!option.values.empty()) std::cout << " -f -a " << text(joined(option.values));
      std::cout << " -d " << text(option.help) << "\n";
    }
  }
}

int print_completion(const CLI::App& app, const std::string& shell) {
  require_usage(shell == "bash" || shell == "zsh" || shell == "fish",
                Cause{ErrorCode::unknown_name, "SHELL"}, "there is no completion for '", shell,
                "'; expected bash, zsh or fish");
  std::vector<CommandEntry> entries;
  add_entries(app, "linnet", entries);
  if (shell == "bash") print_bash(entries);
  if (shell == "zsh") print_zsh(entries);
  if (shell == "fish") print_fish(entries);
  return 0;
}

}  // namespace

void add_completion(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("completion", "a script for the shell's completion");
  auto shell = std::make_shared<std::string>();
  command->add_option("SHELL", *shell, "bash, zsh or fish")->required();
  command->footer("For bash: source <(linnet completion bash)");
  command->callback(
      [=, &app, &chosen] { chosen = [=, &app] { return print_completion(app, *shell); }; });
}

}  // namespace linnet::cli
