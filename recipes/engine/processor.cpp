#include "recipes/engine/processor.h"

#include <cmath>
#include <cstdlib>

#include "core/error.h"
#include "core/files.h"

namespace linnet {
namespace {

// The value of the first line "key : value"; "" when there is none.
std::string field(std::string_view text, std::string_view key) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    const size_t colon = line.find(':');
    begin = end + 1;
    if (colon == std::string_view::npos) continue;
    const size_t name_end = line.substr(0, colon).find_last_not_of(" \t");
    if (name_end == std::string_view::npos || line.substr(0, name_end + 1) != key) continue;
    const size_t value = line.find_first_not_of(" \t", colon + 1);
    return value == std::string_view::npos ? "" : std::string(line.substr(value));
  }
  return "";
}

// Whole MHz, unless the text is no clock.
void set_clock(JsonValue& result, const char* key, const std::string& text, double per_mhz) {
  const double mhz = std::strtod(text.c_str(), nullptr) / per_mhz;
  if (mhz >= 1 && mhz < 1e6) result.set(key, static_cast<int64_t>(std::llround(mhz)));
}

std::string text_of(const std::string& path) {
  try {
    return read_file(path);
  } catch (const Error&) {  // not on this system
    return "";
  }
}

}  // namespace

JsonValue describe_processor(std::string_view cpuinfo, std::string_view max_khz) {
  const std::string name = field(cpuinfo, "model name");
  JsonValue result = JsonValue::object().set("cpu", name.empty() ? "unknown" : name);
  std::string model;
  // x86, then ARM.
  for (const auto& [key, word] :
       {std::pair("vendor_id", ""), std::pair("cpu family", "family "),
        std::pair("model", "model "), std::pair("stepping", "stepping "),
        std::pair("CPU implementer", "implementer "), std::pair("CPU part", "part "),
        std::pair("CPU revision", "revision ")}) {
    const std::string value = field(cpuinfo, key);
    if (!value.empty()) model += concat(model.empty() ? "" : ", ", word, value);
  }
  if (!model.empty()) result.set("cpu_model", model);
  set_clock(result, "cpu_mhz", field(cpuinfo, "cpu MHz"), 1);
  set_clock(result, "cpu_max_mhz", std::string(max_khz), 1000);
  return result;
}

JsonValue processor() {
  return describe_processor(text_of("/proc/cpuinfo"),
                            text_of("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq"));
}

std::string processor_text(const JsonValue& processor) {
  std::string text = processor.at("cpu").text();
  if (const JsonValue* mhz = processor.find("cpu_mhz"))
    text += concat(", ", mhz->integer(), " MHz");
  if (const JsonValue* mhz = processor.find("cpu_max_mhz")) {
    text += concat(", at most ", mhz->integer(), " MHz");
  }
  return text;
}

}  // namespace linnet
