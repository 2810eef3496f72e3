// Options that several commands have.
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <system_error>

#include "attention/plugin_loader.h"
#include "core/comm/environment.h"
#include "core/cuda/backend.h"
#include "core/cuda/runtime.h"
#include "core/error.h"
#include "core/log.h"
#include "core/threads.h"
#include "tools/cli/commands.h"

namespace linnet::cli {
namespace {

// As CLI11 reads it, with signs and other bases ("+7", "0x7"); a text that is no number is refused
// afterwards.
int64_t number_or(const std::string& text, int64_t otherwise) {
  char* end = nullptr;
  const int64_t value = std::strtoll(text.c_str(), &end, 0);
  return end == text.c_str() ? otherwise : value;
}

}  // namespace

void add_device_option(CLI::App& command, std::string& name) {
  command.add_option("--device", name, "auto, cpu, cuda or cuda:N")->capture_default_str();
}

void add_backend_option(CLI::App& command, std::string& name) {
  command
      .add_option("--backend", name,
                  "kernels of attention on a CUDA device: auto, plain, or tensor_cores, which "
                  "refuses what these do not cover")
      ->capture_default_str();
}

Device use_device(const std::string& name) {
  Device device = device_from_name(name);
  if constexpr (kCuda) {
    if (device.kind == DeviceKind::cuda) {
      // Ranks of a machine have a device each, unless each sees one alone.
      const bool chosen = name.find(':') != std::string::npos;
      const int rank = chosen || cuda::devices().size() == 1 ? 0 : local_rank_from_environment();
      if (rank != 0) device = device_from_name(concat("cuda:", rank));
      cuda::set_device(device.index);
    }
  }
  return device;
}

std::unique_ptr<Communicator> join_ranks(Device device) {
  std::unique_ptr<Communicator> ranks = communicator_from_environment(device);
  if (ranks->rank() != 0) set_log_level(LogLevel::error);
  return ranks;
}

void add_threads_option(CLI::App& command) {
  command.add_option_function<int>(
      "--threads", [](int count) { set_thread_count(count); },
      "CPU threads, 1 to 1024 (default: OMP_NUM_THREADS, all)");
}

void add_plugin_option(CLI::App& command) {
  command
      .add_option_function<std::vector<std::string>>(
          "--plugin",
          [](const std::vector<std::string>& paths) {
            for (const std::string& path : paths) load_plugin(path);
          },
          "a shared library with attention mechanisms (attention/README.md); may be given several "
          "times")
      ->allow_extra_args(false);
}

void require_output() {
  errno = 0;
  std::cout.flush();
  const int reason = errno;
  if (std::cout.good() && std::ferror(stdout) == 0) return;
  const Cause cause{ErrorCode::system, "", "standard output"};
  // An earlier write may have failed: the pipe is asked, not errno.
  pollfd out{STDOUT_FILENO, POLLOUT, 0};
  if (::poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0) {
    throw ReaderLeft(cause, "nobody reads the standard output");
  }
  throw Error(cause,
              concat("cannot write to the standard output",
                     reason == 0 ? "" : concat(": ", std::generic_category().message(reason))));
}

void check_numbers(CLI::App& app) {
  const auto problem = [](const std::string& text) -> std::string {
    if (text.empty()) return "must be a number, found nothing";
    errno = 0;
    (void)std::strtoll(text.c_str(), nullptr, 0);
    return errno == ERANGE ? concat("is beyond 64 bits: ", text) : "";
  };
  const auto is_number = [](const std::string& type) {
    return type.starts_with("INT") || type.starts_with("UINT") || type.starts_with("FLOAT");
  };
  for (CLI::Option* option : app.get_options()) {
    if (is_number(option->get_type_name())) option->check(problem);
  }
  for (CLI::App* below : app.get_subcommands({})) check_numbers(*below);
}

std::function<std::string(const std::string&)> some_text() {
  return [](const std::string& text) { return text.empty() ? "must not be empty" : ""; };
}

std::function<std::string(const std::string&)> folder_to_write() {
  return [](const std::string& path) -> std::string {
    if (path.empty()) return "must be a folder, found nothing";
    std::error_code code;
    const auto status = std::filesystem::status(path, code);
    return std::filesystem::exists(status) && !std::filesystem::is_directory(status)
               ? concat("must be a folder, and ", path, " is a file; name another, or move it away")
               : "";
  };
}

std::function<std::string(const std::string&)> at_least(int64_t minimum) {
  return [minimum](const std::string& text) {
    const int64_t value = number_or(text, minimum);
    return value >= minimum ? "" : concat("must be ", minimum, " or more, found ", text);
  };
}

std::function<std::string(const std::string&)> between(int64_t minimum, int64_t maximum) {
  return [minimum, maximum](const std::string& text) {
    const int64_t value = number_or(text, minimum);
    return minimum <= value && value <= maximum
               ? ""
               : concat("must be ", minimum, " to ", maximum, ", found ", text);
  };
}

}  // namespace linnet::cli
