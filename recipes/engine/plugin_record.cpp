#include "recipes/engine/plugin_record.h"

#include <algorithm>

#include "attention/plugin_loader.h"
#include "attention/registry.h"
#include "core/log.h"
#include "layers/attention_sections.h"

namespace linnet {

JsonValue plugin_record(const ConfigNode& resolved) {
  JsonValue record = JsonValue::object();
  for (const char* key : kAttentionKeys) {
    const ConfigNode* attention = resolved.find("model")->find(key);
    if (attention == nullptr) continue;
    for (const ConfigNode& section :
         attention->is_sequence() ? attention->items() : std::vector<ConfigNode>{*attention}) {
      const std::string& name = section.find("name")->raw();
      const Plugin* plugin = plugin_of(name);
      if (plugin == nullptr) continue;
      record.set(name, JsonValue::object().set("plugin", plugin->path).set("hash", plugin->hash));
    }
  }
  return record;
}

void require_plugins(const Checkpoint& checkpoint) {
  const JsonValue* record = checkpoint.metadata.find("plugins");
  if (record == nullptr) return;  // saved before plugins were recorded
  for (const JsonMember& entry : record->members()) {
    const std::string& path = entry.value.at("plugin").text();
    const bool known = std::any_of(mechanisms().begin(), mechanisms().end(),
                                   [&](const Mechanism& m) { return m.name == entry.key; });
    require_usage(known, Cause{ErrorCode::not_found, entry.key, checkpoint.path}, "checkpoint ",
                  checkpoint.path, " was trained with the mechanism '", entry.key,
                  "' of the plugin ", path, ", which is not loaded: add --plugin ", path);
    const Plugin* plugin = plugin_of(entry.key);
    if (plugin != nullptr && plugin->hash == entry.value.at("hash").text()) continue;
    const std::string change =
        plugin != nullptr && plugin->path == path
            ? concat("the plugin ", path, " has been rebuilt")
            : concat("the mechanism comes from ",
                     plugin == nullptr ? "linnet itself" : plugin->path, " instead of ", path);
    log_warning(
        "mechanism '", entry.key, "': ", change, " since checkpoint ", checkpoint.path,
        " was saved; if it no longer computes the same, load the plugin as it was, or train "
        "from the start in another folder (--out)");
  }
}

}  // namespace linnet
