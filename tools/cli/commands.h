// The subcommands of the program: each adds itself to the command line and returns what runs it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/device.h"
#include "core/error.h"

namespace CLI {
class App;
}

namespace linnet {
class Communicator;
}

namespace linnet::cli {

// Exit codes; kStopped (core/interrupt.h) is another.
inline constexpr int kFailed = 1;
inline constexpr int kUnusable = 2;

// Returns the exit code. Errors are thrown: UsageError becomes exit code 2, everything else 1.
using Command = std::function<int()>;

// Adds --device, whose name use_device() takes.
void add_device_option(CLI::App& command, std::string& name);
// The device of that name. From now on this thread's work on a GPU goes there. Throws UsageError
// for a name that is none, and for a device that this machine does not have or cannot use.
Device use_device(const std::string& name);
// The processes that this one was started among, by 'linnet launch' or another program, and which
// do the same work together: all but rank 0 say no more than errors. Waits until all have come.
// Tensors of `device` are exchanged by NCCL where it can be used.
std::unique_ptr<Communicator> join_ranks(Device device = {});
// Adds --backend, whose name kernel_choice_from_name() takes.
void add_backend_option(CLI::App& command, std::string& name);
// Adds --threads, which takes effect when it is read.
void add_threads_option(CLI::App& command);
// Adds --plugin, which takes effect when it is read.
void add_plugin_option(CLI::App& command);
// Checks of options for CLI::Option::check: some text; a folder that is there or can be made.
std::function<std::string(const std::string&)> some_text();
std::function<std::string(const std::string&)> folder_to_write();
// The check of an option with whole numbers from `minimum` on, for CLI::Option::check.
std::function<std::string(const std::string&)> at_least(int64_t minimum);
// Refuses, for every option with a number of `app` and the commands below it, what CLI11 takes for
// one: no text at all, and a whole number beyond 64 bits, which it would cut down to their limit.
void check_numbers(CLI::App& app);

// The same from `minimum` to `maximum`.
std::function<std::string(const std::string&)> between(int64_t minimum, int64_t maximum);

// The standard output is a pipe that nobody reads any more, as behind `head`.
class ReaderLeft : public Error {
 public:
  using Error::Error;
};

// Throws Error (ReaderLeft) unless all that was printed to std::cout so far could be written.
void require_output();

// Each adds its subcommand to `app` and stores in `chosen` what to run when it was given.
void add_train(CLI::App& app, Command& chosen);
void add_sweep(CLI::App& app, Command& chosen);
void add_evaluate(CLI::App& app, Command& chosen);
void add_generate(CLI::App& app, Command& chosen);
void add_tree(CLI::App& app, Command& chosen);
void add_attention(CLI::App& app, Command& chosen);
void add_data(CLI::App& app, Command& chosen);
void add_recipe(CLI::App& app, Command& chosen);
void add_model(CLI::App& app, Command& chosen);
void add_bench(CLI::App& app, Command& chosen);
void add_launch(CLI::App& app, Command& chosen);
void add_report(CLI::App& app, Command& chosen);
void add_doctor(CLI::App& app, Command& chosen);
void add_completion(CLI::App& app, Command& chosen);

}  // namespace linnet::cli
