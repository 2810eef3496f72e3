// The value tree of a recipe.
#include "core/config_node.h"

#include <unordered_set>
#include <utility>

#include "core/config_scalar.h"
#include "core/echo.h"

namespace linnet {

std::string Location::text() const {
  if (!file) return "(built in)";
  if (line == 0) return *file;
  return *file + ":" + std::to_string(line) + ":" + std::to_string(column);
}

ConfigNode::ConfigNode() = default;
ConfigNode::ConfigNode(const ConfigNode&) = default;
ConfigNode::ConfigNode(ConfigNode&&) noexcept = default;
ConfigNode& ConfigNode::operator=(const ConfigNode&) = default;
ConfigNode& ConfigNode::operator=(ConfigNode&&) noexcept = default;
ConfigNode::~ConfigNode() = default;

ConfigNode ConfigNode::scalar(std::string raw, bool quoted) {
  ConfigNode node;
  node.kind_ = Kind::kScalar;
  node.raw_ = std::move(raw);
  node.quoted_ = quoted;
  return node;
}

ConfigNode ConfigNode::text(std::string value) {
  std::string why;
  const bool quoted =
      !is_plain_text(value) || parse_double(value, why) || parse_bool(value, why) || !why.empty();
  return scalar(std::move(value), quoted);
}

ConfigNode ConfigNode::integer(int64_t value) {
  return scalar(std::to_string(value));
}
ConfigNode ConfigNode::number(double value) {
  return scalar(format_double(value));
}
ConfigNode ConfigNode::boolean(bool value) {
  return scalar(value ? "true" : "false");
}

ConfigNode ConfigNode::sequence(std::vector<ConfigNode> items) {
  ConfigNode node;
  node.kind_ = Kind::kSequence;
  node.items_ = std::move(items);
  return node;
}

ConfigNode ConfigNode::map() {
  ConfigNode node;
  node.kind_ = Kind::kMap;
  return node;
}

ConfigNode ConfigNode::map(std::vector<ConfigEntry> entries) {
  ConfigNode node = map();
  std::unordered_set<std::string_view> keys;
  for (const ConfigEntry& entry : entries) {
    require(keys.insert(entry.key).second, "ConfigNode::map: the key '", entry.key,
            "' comes twice");
  }
  node.entries_ = std::move(entries);
  return node;
}

std::string ConfigNode::found() const {
  switch (kind_) {
    case Kind::kNull:
      return "nothing";
    case Kind::kSequence:
      return "a list";
    case Kind::kMap:
      return "a section";
    case Kind::kScalar:
      break;
  }
  constexpr size_t kLongest = 60;
  const std::string shown = shortened(raw_, kLongest);
  return quoted_ ? "the text \"" + shown + "\"" : "'" + shown + "'";
}

void ConfigNode::set_location_everywhere(const Location& location) {
  location_ = location;
  for (ConfigNode& item : items_) item.set_location_everywhere(location);
  for (ConfigEntry& entry : entries_) {
    entry.key_location = location;
    entry.value.set_location_everywhere(location);
  }
}

const std::string& ConfigNode::raw() const {
  require(is_scalar(), location_.text(), ": expected a single value, found ", found());
  return raw_;
}

const std::vector<ConfigNode>& ConfigNode::items() const {
  require(is_sequence(), location_.text(), ": expected a list, found ", found());
  return items_;
}

void ConfigNode::append(ConfigNode item) {
  require(is_sequence(), location_.text(), ": cannot append to ", found());
  items_.push_back(std::move(item));
}

const std::vector<ConfigEntry>& ConfigNode::entries() const {
  require(is_map() || is_null(), location_.text(), ": expected a section, found ", found());
  return entries_;
}

const ConfigNode* ConfigNode::find(std::string_view key) const {
  for (const ConfigEntry& entry : entries()) {
    if (entry.key == key) return &entry.value;
  }
  return nullptr;
}

ConfigNode* ConfigNode::find(std::string_view key) {
  return const_cast<ConfigNode*>(std::as_const(*this).find(key));
}

std::vector<std::string> ConfigNode::keys() const {
  std::vector<std::string> keys;
  for (const ConfigEntry& entry : entries()) keys.push_back(entry.key);
  return keys;
}

Location ConfigNode::location_of(std::string_view key) const {
  const ConfigNode* value = find(key);
  Location where = value != nullptr ? value->location() : location_;
  where.key = key;
  return where;
}

void ConfigNode::set(const std::string& key, ConfigNode value) {
  Location location = value.location();
  set(key, std::move(value), std::move(location));
}

void ConfigNode::set(const std::string& key, ConfigNode value, Location key_location) {
  require(is_map() || is_null(), location_.text(), ": cannot set '", key, "' in ", found());
  kind_ = Kind::kMap;
  for (ConfigEntry& entry : entries_) {
    if (entry.key != key) continue;
    entry.value = std::move(value);
    entry.key_location = std::move(key_location);
    return;
  }
  entries_.push_back({key, std::move(key_location), std::move(value)});
}

bool ConfigNode::erase(std::string_view key) {
  require(is_map() || is_null(), location_.text(), ": cannot erase '", key, "' from ", found());
  return std::erase_if(entries_, [&](const ConfigEntry& entry) { return entry.key == key; }) > 0;
}

bool ConfigNode::take(const std::string& key) {
  const bool given = erase(key);
  for (Taken& taken : taken_) {
    if (taken.key != key) continue;
    taken.given = taken.given || given;
    return given;
  }
  taken_.push_back({key, given});
  return given;
}

std::vector<std::string> ConfigNode::lost_keys() const {
  std::vector<std::string> lost;
  for (const std::string& key : replaced_keys_) {
    if (!contains(key)) lost.push_back(key);
  }
  return lost;
}

bool operator==(const ConfigNode& a, const ConfigNode& b) {
  // Quotes that the text needs anyway mean nothing.
  const auto is_quoted = [](const ConfigNode& n) { return n.quoted_ || !is_plain_text(n.raw_); };
  if (a.kind_ != b.kind_ || a.raw_ != b.raw_ || is_quoted(a) != is_quoted(b)) return false;
  if (a.items_ != b.items_ || a.entries_.size() != b.entries_.size()) return false;
  for (size_t i = 0; i < a.entries_.size(); ++i) {
    if (a.entries_[i].key != b.entries_[i].key) return false;
    if (!(a.entries_[i].value == b.entries_[i].value)) return false;
  }
  return true;
}

}  // namespace linnet
