// The processor of this machine, as the system tells it.
#pragma once

#include <string_view>

#include "core/json.h"

namespace linnet {

// From the text of /proc/cpuinfo and of cpufreq's cpuinfo_max_freq ("" where there is none): cpu
// (its name, "unknown" where it is not told), cpu_model (vendor, family, model, stepping), cpu_mhz
// (the clock of the first core when it was read) and cpu_max_mhz. Members that are not told are
// left out.
JsonValue describe_processor(std::string_view cpuinfo, std::string_view max_khz);

// The same of this machine.
JsonValue processor();

// "AMD EPYC, 2596 MHz" of either.
std::string processor_text(const JsonValue& processor);

}  // namespace linnet
