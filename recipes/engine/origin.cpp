#include "recipes/engine/origin.h"

namespace linnet {

std::string Origin::text() const {
  if (!map.empty()) return concat(path, " (pretrained ", map, ")");
  return concat(path, " (step ", step, ", ",
                state == "all"             ? "weights, optimizer and position"
                : file == kAveragedWeights ? "averaged weights only"
                                           : "weights only",
                ")");
}

JsonValue to_json(const Origin& origin) {
  JsonValue json = JsonValue::object();
  json.set("path", origin.path)
      .set("step", origin.step)
      .set("state", origin.state)
      .set("file", origin.file)
      .set("xxh3_128", origin.hash);
  if (!origin.map.empty()) json.set("map", origin.map);
  if (!origin.published) json.set("published", false);
  return json;
}

Origin origin_from(const JsonValue& json) {
  const JsonValue* map = json.find("map");
  const JsonValue* published = json.find("published");
  return {json.at("path").text(),
          json.at("step").integer(),
          json.at("state").text(),
          json.at("file").text(),
          json.at("xxh3_128").text(),
          map == nullptr ? "" : map->text(),
          published == nullptr || published->boolean()};
}

std::optional<Origin> origin_of(const Checkpoint& checkpoint) {
  const JsonValue* origin = checkpoint.metadata.find("init");
  return origin == nullptr ? std::nullopt : std::optional(origin_from(*origin));
}

}  // namespace linnet
