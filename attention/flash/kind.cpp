#include "attention/flash/kind.h"

namespace linnet {

void refuse_options(const ConfigNode& at, const ConfigNode& defaults, const std::string& kind,
                    const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const ConfigNode *given = at.find(name), *otherwise = defaults.find(name);
    if (given == nullptr || inline_text(*given) == inline_text(*otherwise)) continue;
    throw located_error(at.location_of(name), name, " has no effect with kind: ", kind,
                        "; remove it, or set kind: ", kind == "gau" ? "heads" : "gau");
  }
}

}  // namespace linnet
