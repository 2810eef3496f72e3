// The program `linnet`: reads the command line, runs one subcommand, turns errors into exit codes.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <new>
#include <stdexcept>
#include <string_view>
#include <system_error>

#include "core/error.h"
#include "core/interrupt.h"
#include "core/log.h"
#include "core/suggest.h"
#include "tools/cli/commands.h"

namespace linnet::cli {
namespace {

// OpenMP reads its wait policy when it is loaded, before main: idle threads that spin slow every
// other process down (and this one, by a factor of a hundred, when cores are shared). Set it and
// start again, once.
void use_passive_waiting(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  setenv("OMP_WAIT_POLICY", "passive", 1);
  execv("/proc/self/exe", argv);
}

// A closed standard stream stays one that cannot be written: else the first file that is opened
// would get its number, and what is printed.
void hold_closed_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) < 0) ::open("/dev/null", O_RDONLY);
  }
}

// The deepest subcommand that the arguments name, how it is called ("linnet attention check"), and
// the index of the first argument after it.
struct NamedCommand {
  const CLI::App* app;
  std::string path;
  int next;
};

NamedCommand named_command(const CLI::App& root, int argc, char** argv) {
  NamedCommand found{&root, "linnet", 1};
  for (; found.next < argc; ++found.next) {
    const std::string name = argv[found.next];
    const auto below =
        found.app->get_subcommands([&](const CLI::App* sub) { return sub->get_name() == name; });
    if (below.empty()) break;
    found.app = below.front();
    found.path += " " + name;
  }
  return found;
}

// CLI11's error, in words that name the nearest thing that exists.
std::string explain(const NamedCommand& named, const CLI::ParseError& error, int argc,
                    char** argv) {
  const int next = named.next;
  std::vector<std::string> commands;
  for (const CLI::App* below : named.app->get_subcommands({})) {
    commands.push_back(below->get_name());
  }
  if (!commands.empty() && (next == argc || argv[next][0] != '-')) {
    std::string all;
    for (const std::string& name : commands) all += (all.empty() ? "" : ", ") + name;
    if (next == argc) return concat("expected a command: one of ", all);
    return concat("unknown command '", argv[next], "': ", suggestion(argv[next], commands));
  }
  std::vector<std::string> options;
  for (const CLI::Option* option : named.app->get_options()) {
    for (const std::string& name : option->get_lnames()) options.push_back("--" + name);
  }
  for (int i = next; i < argc; ++i) {
    const std::string argument(argv[i], std::strcspn(argv[i], "="));
    if (argument == "--") break;
    if (!argument.starts_with("--") ||
        std::find(options.begin(), options.end(), argument) != options.end())
      continue;
    const bool of_ranks = named.path == "linnet launch" &&
                          std::find(argv + i, argv + argc, std::string_view("--")) == argv + argc;
    return concat("unknown option '", argument, "'",
                  of_ranks ? " of launch (what it runs, with its own options, comes after --)" : "",
                  ": ", suggestion(argument, options));
  }
  const std::string message = error.what(), conversion = "Could not convert: ";
  if (!message.starts_with(conversion)) return message;
  return concat("not a number that this option takes: ", message.substr(conversion.size()));
}

int run(int argc, char** argv) {
  CLI::App app{
      "linnet: train, evaluate and compare linearized transformers from one YAML recipe.\n"
      "Start with: linnet train recipes/quickstart/lm.yaml; every command has --help.",
      "linnet"};
  app.require_subcommand(1);
  app.set_version_flag("--version", LINNET_VERSION);
  app.footer(
      "Exit codes: 0 done, 1 failed while running (data missing or unusable, too),\n"
      "2 unusable arguments or recipe,\n"
      "3 stopped by a signal (train has saved: run again with --resume auto),\n"
      "128 + n ended by a second signal n, 141 the reader of the output has left.");
  Command chosen;
  add_train(app, chosen);
  add_sweep(app, chosen);
  add_evaluate(app, chosen);
  add_generate(app, chosen);
  add_tree(app, chosen);
  add_attention(app, chosen);
  add_data(app, chosen);
  add_recipe(app, chosen);
  add_model(app, chosen);
  add_bench(app, chosen);
  add_launch(app, chosen);
  add_report(app, chosen);
  add_doctor(app, chosen);
  add_completion(app, chosen);
  check_numbers(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::CallForVersion& version) {
    return app.exit(version);
  } catch (const CLI::ParseError& error) {
    const NamedCommand named = named_command(app, argc, argv);
    log_error(explain(named, error, argc, argv));
    std::cerr << "Run '" << named.path << " --help'.\n";
    return kUnusable;
  }
  return chosen();
}

}  // namespace
}  // namespace linnet::cli

int main(int argc, char** argv) {
  using namespace linnet;
  cli::hold_closed_streams();
  block_stop_signals();
  cli::use_passive_waiting(argv);
  try {
    watch_stop_signals();
    // A closed pipe and a limit of file sizes fail like a full disk: temporaries are removed.
    std::signal(SIGPIPE, SIG_IGN);
    std::signal(SIGXFSZ, SIG_IGN);
    const int code = cli::run(argc, argv);
    if (code == 0) cli::require_output();
    return code;
  } catch (const cli::ReaderLeft&) {
    // The reader has what it wanted: no message, and the end that other programs have.
    std::signal(SIGPIPE, SIG_DFL);
    std::raise(SIGPIPE);
    return 128 + SIGPIPE;
  } catch (const UsageError& error) {
    log_error(error.what());
    return cli::kUnusable;
  } catch (const Error& error) {
    log_error(error.what());
    return cli::kFailed;
  } catch (const std::bad_alloc&) {
    log_error(
        "out of memory: this machine, or the limit of this process, has too little for what was "
        "asked; lower the sizes in the recipe or the command");
    return cli::kFailed;
  } catch (const std::system_error& error) {
    log_error("the system refuses a thread or the current folder: ", error.code().message(),
              "; raise the limits of processes and memory (ulimit -u, -s, -v), or run linnet in a "
              "folder that exists");
    return cli::kFailed;
  } catch (const std::exception& error) {
    log_error("linnet failed in a way that it does not foresee: ", error.what());
    return cli::kFailed;
  }
}
