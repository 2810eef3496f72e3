// The value tree of a recipe: null, scalar, sequence or map, each with its place in the text.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace linnet {

// A place in a text that a user wrote. Line and column count from 1, columns in characters; line 0
// means that only `file` names the place ("command line: model.attention.rank").
struct Location {
  std::shared_ptr<const std::string> file;
  int line = 0;
  int column = 0;
  std::string key = {};  // of location_of(): the key that was looked up; else ""

  // "file:line:column", or "file" alone; "(built in)" for values that no text holds.
  std::string text() const;
};

struct ConfigEntry;

// A null, scalar, sequence or map with value semantics. Scalars keep their raw text, maps their
// order; keys of a map are unique. Accessors throw Error when the kind does not fit.
class ConfigNode {
 public:
  enum class Kind { kNull, kScalar, kSequence, kMap };

  ConfigNode();  // null
  ConfigNode(const ConfigNode&);
  ConfigNode(ConfigNode&&) noexcept;
  ConfigNode& operator=(const ConfigNode&);
  ConfigNode& operator=(ConfigNode&&) noexcept;
  ~ConfigNode();

  // A scalar with the given raw text. Plain text can be a number or a bool, quoted text only text.
  static ConfigNode scalar(std::string raw, bool quoted = false);
  // A scalar that holds `value` as text: quoted where plain text would be read differently.
  static ConfigNode text(std::string value);
  static ConfigNode integer(int64_t value);
  static ConfigNode number(double value);  // shortest text that reads back to the same bits
  static ConfigNode boolean(bool value);
  static ConfigNode sequence(std::vector<ConfigNode> items = {});
  static ConfigNode map();
  static ConfigNode map(std::vector<ConfigEntry> entries);  // throws Error if a key comes twice

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == Kind::kNull; }
  bool is_scalar() const { return kind_ == Kind::kScalar; }
  bool is_sequence() const { return kind_ == Kind::kSequence; }
  bool is_map() const { return kind_ == Kind::kMap; }
  // "nothing", "'64'", "a list" or "a section": what an error message says was found.
  std::string found() const;

  const Location& location() const { return location_; }
  void set_location(Location location) { location_ = std::move(location); }
  // Gives this node and everything below it, keys included, one place.
  void set_location_everywhere(const Location& location);

  // Scalars.
  const std::string& raw() const;
  bool quoted() const { return quoted_; }

  // Sequences.
  const std::vector<ConfigNode>& items() const;
  void append(ConfigNode item);

  // Maps. `find` returns nullptr when the key is absent (or when this is null: an empty section).
  const std::vector<ConfigEntry>& entries() const;
  const ConfigNode* find(std::string_view key) const;
  ConfigNode* find(std::string_view key);
  bool contains(std::string_view key) const { return find(key) != nullptr; }
  std::vector<std::string> keys() const;
  // The place of the value of `key`, or of this section when it has no such key.
  Location location_of(std::string_view key) const;
  // Replaces the value of `key` or appends it; a null node becomes a map first.
  void set(const std::string& key, ConfigNode value);
  void set(const std::string& key, ConfigNode value, Location key_location);
  // Removes `key` if it is there; says whether it was.
  bool erase(std::string_view key);
  // The same for a key that a reader of its own has read, or would read: messages about unknown
  // keys of this section go on to list it.
  bool take(const std::string& key);
  // A key that was taken, and whether it was there.
  struct Taken {
    std::string key;
    bool given = false;
  };
  const std::vector<Taken>& taken() const { return taken_; }
  // The keys of a section that this one replaced whole because its kind changed, and those of them
  // that it does not have: what messages remind the user of.
  void set_replaced_keys(std::vector<std::string> keys) { replaced_keys_ = std::move(keys); }
  std::vector<std::string> lost_keys() const;

  // Same kinds, texts, keys and order; places, replaced and taken keys do not count.
  friend bool operator==(const ConfigNode& a, const ConfigNode& b);

 private:
  Kind kind_ = Kind::kNull;
  bool quoted_ = false;
  std::string raw_;
  Location location_;
  std::vector<ConfigNode> items_;
  std::vector<ConfigEntry> entries_;
  std::vector<std::string> replaced_keys_;
  std::vector<Taken> taken_;
};

// One key of a map, its place, and its value.
struct ConfigEntry {
  std::string key;
  Location key_location;
  ConfigNode value;
};

// The error "file:line:column: message" for `throw located_error(node.location(), ...)`. Its place
// is `where`, its key that of the cause, else of location_of().
template <typename... Parts>
UsageError located_error(const Location& where, const Cause& cause, const Parts&... parts) {
  const std::string place = where.text();
  return UsageError({cause.code, cause.key.empty() ? where.key : cause.key, place},
                    concat(place, ": ", parts...));
}
template <typename... Parts>
UsageError located_error(const Location& where, const Parts&... parts) {
  return located_error(where, Cause(), parts...);
}

}  // namespace linnet
