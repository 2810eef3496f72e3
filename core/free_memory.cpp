#include "core/free_memory.h"

#include <sys/resource.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <string_view>

#include "core/cuda/backend.h"
#include "core/cuda/runtime.h"
#include "core/files.h"

namespace linnet {
namespace {

constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();

// "" for a file that is not there or cannot be read.
std::string text_of(const std::string& path) {
  try {
    return exists(path) ? read_file(path) : "";
  } catch (const Error&) {
    return "";
  }
}

// The number after `name` at the beginning of a line, or at the beginning of `text` without one.
std::optional<size_t> number_after(std::string_view text, std::string_view name) {
  for (size_t begin = 0; begin < text.size();) {
    const std::string_view line = text.substr(begin, text.find('\n', begin) - begin);
    begin += line.size() + 1;
    if (!line.starts_with(name)) continue;
    const size_t at = line.find_first_not_of(": \t", name.size());
    if (at == std::string_view::npos) return std::nullopt;
    size_t value = 0;
    const auto [end, code] = std::from_chars(line.data() + at, line.data() + line.size(), value);
    if (code != std::errc()) return std::nullopt;
    return value;
  }
  return std::nullopt;
}

size_t left(size_t limit, size_t used) {
  return limit - std::min(limit, used);
}

// What a control group leaves: the two versions name the same things differently.
struct GroupFiles {
  const char *limit, *used, *cached[2];
};
constexpr GroupFiles kGroupFiles[] = {
    {"memory.max", "memory.current", {"inactive_file", "active_file"}},
    {"memory.limit_in_bytes",
     "memory.usage_in_bytes",
     {"total_inactive_file", "total_active_file"}}};

size_t left_in_group(const std::string& folder) {
  size_t least = kUnlimited;
  for (const GroupFiles& files : kGroupFiles) {
    const auto limit = number_after(text_of(join_path(folder, files.limit)), "");
    const auto used = number_after(text_of(join_path(folder, files.used)), "");
    if (!limit || !used) continue;
    // Cached files give way, those too that were read more than once.
    const std::string statistics = text_of(join_path(folder, "memory.stat"));
    size_t needed = *used;
    for (const char* name : files.cached) {
      needed = left(needed, number_after(statistics, name).value_or(0));
    }
    least = std::min(least, left(*limit, needed));
  }
  return least;
}

// Of all groups around this process.
size_t left_in_groups() {
  const std::string groups = text_of("/proc/self/cgroup");
  size_t least = kUnlimited;
  for (const auto& [controller, root] :
       {std::pair(std::string_view("::"), "/sys/fs/cgroup"),
        std::pair(std::string_view(":memory:"), "/sys/fs/cgroup/memory")}) {
    const size_t at = groups.find(controller);
    if (at == std::string::npos) continue;
    const size_t begin = at + controller.size();
    std::string path = groups.substr(begin, groups.find('\n', begin) - begin);
    for (;;) {
      least = std::min(least, left_in_group(root + path));
      const size_t slash = path.rfind('/');
      if (path.size() <= 1 || slash == std::string::npos) break;
      path.resize(slash);
    }
  }
  return least;
}

size_t left_on_host() {
  constexpr size_t kKiB = 1024;
  const std::string machine = text_of("/proc/meminfo");
  size_t least = kUnlimited;
  if (const auto available = number_after(machine, "MemAvailable")) {
    least = (*available + number_after(machine, "SwapFree").value_or(0)) * kKiB;
  }
  least = std::min(least, left_in_groups());
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    const auto used = number_after(text_of("/proc/self/status"), "VmSize");
    least = std::min(least, left(limit.rlim_cur, used.value_or(0) * kKiB));
  }
  return least;
}

}  // namespace

size_t free_memory(Device device) {
  if constexpr (kCuda) {
    if (device.kind == DeviceKind::cuda) return cuda::free_bytes();
  }
  return device.kind == DeviceKind::cpu ? left_on_host() : kUnlimited;
}

bool has_memory(Device device, double bytes) {
  constexpr double kLittle = 64 << 20;
  return bytes < kLittle || bytes <= static_cast<double>(free_memory(device));
}

void release_free_memory() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

std::string memory_text(double bytes) {
  constexpr std::array<const char*, 7> kUnits = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024;
  const int64_t tenths = static_cast<int64_t>(bytes * 10);
  const bool whole = unit == 0 || tenths >= 100 || tenths % 10 == 0;
  return whole ? concat(tenths / 10, " ", kUnits[unit])
               : concat(tenths / 10, ".", tenths % 10, " ", kUnits[unit]);
}

}  // namespace linnet
