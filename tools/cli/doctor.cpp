// linnet doctor: what this build and this machine have.
#include <CLI/CLI.hpp>
#include <iostream>

#include "core/comm/cuda/nccl.h"
#include "core/comm/interfaces.h"
#include "core/comm/transport.h"
#include "core/cuda/backend.h"
#include "core/cuda/cudnn.h"
#include "core/cuda/gemm.h"
#include "core/cuda/refusals.h"
#include "core/cuda/runtime.h"
#include "core/gemm.h"
#include "core/hdf5.h"
#include "core/json.h"
#include "core/threads.h"
#include "data/token_cache.h"
#include "recipes/engine/environment.h"
#include "recipes/engine/processor.h"
#include "tools/cli/commands.h"

namespace linnet::cli {
namespace {

// CUDA as this build finds it: backend, driver, devices, and the reason why it does not work.
JsonValue cuda_facts() {
  JsonValue facts = JsonValue::object().set("backend", std::string(name_of(kCudaBackend)));
  if constexpr (kCuda) {
    std::string problem;
    JsonValue devices = JsonValue::array();
    for (const cuda::DeviceFacts& device : cuda::devices(&problem)) {
      if (problem.empty()) problem = cuda::device_problem(device);
      devices.push(JsonValue::object()
                       .set("name", device.name)
                       .set("compute_capability", concat(device.major, ".", device.minor))
                       .set("memory_bytes", static_cast<int64_t>(device.memory))
                       .set("multiprocessors", device.multiprocessors));
    }
    facts.set("driver", cuda::versions().driver).set("runtime", cuda::versions().runtime);
    if constexpr (kCudaBackend == CudaBackend::on) {
      facts.set("products", cuda::gemm_backend())
          .set("cudnn", cuda::cudnn_version())
          .set("cudnn_problem", cuda::cudnn_problem())
          .set("nccl", cuda::nccl_version())
          .set("nccl_problem", cuda::nccl_problem());
    }
    facts.set("devices", devices).set("problem", problem);
  }
  return facts;
}

std::string cuda_text(const JsonValue& facts) {
  if constexpr (!kCuda) return "not in this build; for GPUs build the preset cuda";
  std::string text =
      concat("runtime ", facts.at("runtime").text(), ", driver ", facts.at("driver").text());
  if (kCudaBackend == CudaBackend::on) {
    const std::string version = facts.at("cudnn").text();
    const std::string nccl = facts.at("nccl").text();
    text += concat(", ", facts.at("products").text(), ", ",
                   version.empty() ? facts.at("cudnn_problem").text() : "cuDNN " + version, ", ",
                   nccl.empty() ? facts.at("nccl_problem").text() : "NCCL " + nccl);
  }
  int index = 0;
  for (const JsonValue& device : facts.at("devices").elements()) {
    text += concat("\n           cuda:", index++, " ", device.at("name").text(),
                   ", compute capability ", device.at("compute_capability").text(), ", ",
                   device.at("memory_bytes").integer() / 1'000'000'000, " GB");
  }
  const std::string problem = facts.at("problem").text();
  return problem.empty() ? text : text + "\n           cannot be used: " + problem;
}

// What several processes need.
JsonValue ranks_facts() {
  JsonValue interfaces = JsonValue::array();
  for (const NetworkInterface& one : network_interfaces()) {
    interfaces.push(JsonValue::object().set("name", one.name).set("address", one.address));
  }
  return JsonValue::object().set("gloo", has_gloo()).set("interfaces", std::move(interfaces));
}

std::string ranks_text(const JsonValue& facts) {
  if (!facts.at("gloo").boolean()) {
    return "one process alone: for several, install Gloo (apt-get install libgloo-dev), configure "
           "and build again";
  }
  std::string text = "several processes by Gloo; interfaces";
  const char* separator = " ";
  for (const JsonValue& one : facts.at("interfaces").elements()) {
    text += concat(separator, one.at("name").text(), " ", one.at("address").text());
    separator = ", ";
  }
  return text;
}

}  // namespace

void add_doctor(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("doctor", "what this build and machine have");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "one JSON object on stdout");
  command->callback([=, &chosen] {
    chosen = [=] {
      const JsonValue environment = collect_environment(0);
      const JsonValue& machine = environment.at("machine");
      const std::string cache = token_cache_folder();
      if (*json) {
        std::cout << JsonValue::object()
                         .set("version", LINNET_VERSION)
                         .set("git", environment.at("git"))
                         .set("compiler", environment.at("compiler"))
                         .set("cpu", machine.at("cpu"))
                         .set("threads", thread_count())
                         .set("products", gemm_backend())
                         .set("hdf5", hdf5_version())
                         .set("cuda", cuda_facts())
                         .set("ranks", ranks_facts())
                         .set("token_cache", cache)
                         .set("machine", machine)
                         .set("libraries", environment.at("libraries"))
                         .dump()
                  << "\n";
        return 0;
      }
      std::cout << "linnet     " << LINNET_VERSION << ", git " << environment.at("git").text()
                << "\n"
                << "compiler   " << environment.at("compiler").text() << "\n"
                << "cpu        " << processor_text(machine) << ", "
                << machine.at("hardware_threads").integer() << " hardware threads, "
                << thread_count() << " used (--threads or OMP_NUM_THREADS)\n"
                << "memory     " << machine.at("memory_bytes").integer() / 1'000'000'000 << " GB\n"
                << "products   " << gemm_backend() << "\n"
                << "libraries  ";
      const char* separator = "";
      for (const JsonMember& library : environment.at("libraries").members()) {
        std::cout << separator << library.key << " " << library.value.text();
        separator = ", ";
      }
      std::cout << "\ntokens     "
                << (cache.empty() ? "not cached: neither LINNET_CACHE nor HOME is set"
                                  : "cached in " + cache + " (LINNET_CACHE)")
                << "\nranks      " << ranks_text(ranks_facts()) << "\ncuda       "
                << cuda_text(cuda_facts()) << "\n";
      return 0;
    };
  });
}

}  // namespace linnet::cli
