// linnet doctor: what this build and this machine have.
#include <CLI/CLI.hpp>
#include <iostream>

#include "core/device.h"
#include "core/gemm.h"
#include "core/hdf5.h"
#include "core/json.h"
#include "core/threads.h"
#include "tools/cli/commands.h"

namespace linnet::cli {

void add_doctor(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("doctor", "what this build and machine have");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "one JSON object on stdout");
  command->callback([=, &chosen] {
    chosen = [=] {
      if (*json) {
        std::cout << JsonValue::object()
                         .set("version", LINNET_VERSION)
                         .set("cpu", device_interface({}).description())
                         .set("threads", thread_count())
                         .set("products", gemm_backend())
                         .set("hdf5", hdf5_version())
                         .set("cuda", false)
                         .dump()
                  << "\n";
        return 0;
      }
      std::cout << "linnet    " << LINNET_VERSION << "\n"
                << "cpu       " << device_interface({}).description() << ", " << thread_count()
                << " used\n"
                << "products  " << gemm_backend() << "\n"
                << "hdf5      " << hdf5_version() << "\n"
                << "cuda      not in this build\n";
      return 0;
    };
  });
}

}  // namespace linnet::cli
