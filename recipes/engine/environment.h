// Where and with what a run was made: the contents of environment.json.
#pragma once

#include <cstdint>
#include <string>

#include "core/json.h"

namespace linnet {

// linnet's version and commit, compiler, machine (host, processor with its model and clock,
// threads, memory, kernel), versions of the libraries, loaded plugins, time of the start (UTC) and
// the given seed. What the system does not tell is "unknown".
JsonValue collect_environment(uint64_t seed);

// Now, as "2026-01-31T23:59:59Z".
std::string utc_now();

// Memory of this process that is in RAM, in bytes; 0 where the system does not tell.
uint64_t resident_memory_bytes();
// The most it ever was.
uint64_t peak_resident_memory_bytes();

}  // namespace linnet
