// JSON values: built, printed and parsed; enough for metrics lines, manifests and --json output.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/error.h"

namespace linnet {

class JsonValue;

// A template only so that lists of members can be named before JsonValue is complete.
template <typename Value>
struct JsonMemberOf {
  std::string key;
  Value value;
};
using JsonMember = JsonMemberOf<JsonValue>;

// null, a boolean, an integer, a number, text, an array or an object that keeps the order of its
// members. Accessors throw Error naming the expected and the found kind.
class JsonValue {
 public:
  using Array = std::vector<JsonValue>;
  using Object = std::vector<JsonMember>;
  enum class Kind { null, boolean, integer, number, text, array, object };

  JsonValue() = default;
  // NOLINTBEGIN(google-explicit-constructor): values convert silently, as in a literal
  JsonValue(std::nullptr_t) {}
  JsonValue(std::same_as<bool> auto value) : value_(value) {}
  // Throws Error when an unsigned value exceeds int64.
  template <std::integral T>
  requires(!std::same_as<T, bool>) JsonValue(T value) : value_(static_cast<int64_t>(value)) {
    require(std::in_range<int64_t>(value), "JSON integers end at 2^63, got ", value);
  }
  JsonValue(std::floating_point auto value) : value_(static_cast<double>(value)) {}
  JsonValue(const char* text) : value_(std::string(text)) {}
  JsonValue(std::string_view text) : value_(std::string(text)) {}
  JsonValue(std::string text) : value_(std::move(text)) {}
  // NOLINTEND(google-explicit-constructor)
  static JsonValue array();
  static JsonValue object();

  Kind kind() const { return static_cast<Kind>(value_.index()); }
  bool is_null() const { return kind() == Kind::null; }
  bool is_text() const { return kind() == Kind::text; }
  bool is_array() const { return kind() == Kind::array; }
  bool is_object() const { return kind() == Kind::object; }
  // Whether number() succeeds.
  bool is_number() const;

  // Sets a member of an object: replaced in place, or appended. Returns *this, to be chained.
  JsonValue& set(std::string_view key, JsonValue value);
  // Appends a member whose key the object does not have yet; unlike set() it does not look.
  JsonValue& append(std::string key, JsonValue value);
  // Appends to an array.
  JsonValue& push(JsonValue value);

  bool boolean() const;
  int64_t integer() const;
  // Integers, numbers, and the texts "nan", "inf" and "-inf" that dump() writes for them.
  double number() const;
  const std::string& text() const;
  const Array& elements() const;
  const Object& members() const;
  // Elements of an array or members of an object.
  size_t size() const;
  // A member of an object: nullptr, or Error, when it is absent.
  const JsonValue* find(std::string_view key) const;
  const JsonValue& at(std::string_view key) const;

  // JSON text: on one line, or indented by `indent` spaces a level. Numbers are the shortest text
  // that reads back to the same double. JSON has no non-finite numbers: they become the texts
  // "nan", "inf" and "-inf". Bytes that are not UTF-8 become U+FFFD.
  std::string dump(int indent = 0) const;

 private:
  void dump_to(std::string& out, int indent, int depth) const;
  std::variant<std::monostate, bool, int64_t, double, std::string, Array, Object> value_;
};

struct JsonLimits {
  size_t bytes = size_t{64} << 20;
  int depth = 64;
};

// Parses one JSON text. `label` (a path, or path:line) begins every error. Refused beside
// malformed text: duplicate keys, integers beyond int64, invalid UTF-8, what exceeds the limits.
JsonValue parse_json(std::string_view text, const std::string& label, JsonLimits limits = {});

}  // namespace linnet
