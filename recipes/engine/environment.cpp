// Asking the system, the build and the libraries.
#include "recipes/engine/environment.h"

#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <thread>

#include "attention/plugin_loader.h"
#include "core/build_libraries.h"
#include "core/files.h"
#include "core/hdf5.h"
#include "core/threads.h"
#include "core/version.h"
#include "recipes/engine/processor.h"

namespace linnet {
namespace {

// The value of the first line "key : value" in a file of /proc.
std::string field_of(const std::string& path, std::string_view key) {
  std::string text;
  try {
    text = read_file(path);
  } catch (const Error&) {  // no /proc here
    return "unknown";
  }
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    const size_t colon = line.find(':');
    if (line.starts_with(key) && colon != std::string_view::npos) {
      const size_t value = line.find_first_not_of(" \t", colon + 1);
      return value == std::string_view::npos ? "unknown" : std::string(line.substr(value));
    }
    begin = end + 1;
  }
  return "unknown";
}

JsonValue machine() {
  utsname system{};
  const bool known = ::uname(&system) == 0;
  const uint64_t memory = static_cast<uint64_t>(std::max(0L, ::sysconf(_SC_PHYS_PAGES))) *
                          static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  JsonValue result =
      JsonValue::object()
          .set("host", known ? system.nodename : "unknown")
          .set("system", known ? concat(system.sysname, ' ', system.release) : "unknown");
  const JsonValue cpu = processor();
  for (const JsonMember& member : cpu.members()) result.set(member.key, member.value);
  return result.set("hardware_threads", std::thread::hardware_concurrency())
      .set("threads", thread_count())
      .set("memory_bytes", memory);
}

JsonValue libraries() {
  JsonValue found = JsonValue::object();
  for (const auto& [name, version] : kBuildLibraries) found.set(name, version);
  // The library that runs may be newer than the headers at compile time.
  return found.set("HDF5", hdf5_version());
}

JsonValue plugins() {
  JsonValue list = JsonValue::array();
  for (const Plugin& plugin : loaded_plugins()) {
    JsonValue names = JsonValue::array();
    for (const std::string& name : plugin.mechanisms) names.push(name);
    list.push(JsonValue::object()
                  .set("path", plugin.path)
                  .set("hash", plugin.hash)
                  .set("mechanisms", names));
  }
  return list;
}

}  // namespace

std::string utc_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  return std::string(text, std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts));
}

JsonValue collect_environment(uint64_t seed) {
  JsonValue result = JsonValue::object()
                         .set("linnet", linnet_version())
                         .set("git", git_hash())
                         .set("compiler", compiler_description())
                         .set("started", utc_now());
  // JSON integers end at 2^63 here; larger seeds are text.
  if (seed <= uint64_t{INT64_MAX})
    result.set("seed", seed);
  else
    result.set("seed", std::to_string(seed));
  return result.set("machine", machine()).set("libraries", libraries()).set("plugins", plugins());
}

uint64_t resident_memory_bytes() {
  // "VmRSS:  123 kB"
  return std::strtoull(field_of("/proc/self/status", "VmRSS").c_str(), nullptr, 10) * 1024;
}

uint64_t peak_resident_memory_bytes() {
  rusage usage{};
  return ::getrusage(RUSAGE_SELF, &usage) == 0 ? static_cast<uint64_t>(usage.ru_maxrss) * 1024 : 0;
}

}  // namespace linnet
