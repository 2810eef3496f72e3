// JSON: values, printing, and parsing through nlohmann-json's event parser. Its printer would
// change the bytes of metrics and of hashed manifests: it writes 100000.0 for 1e+05, 0.0001 for
// 1e-04, null for NaN, \t for \u0009, one U+FFFD for several ill-formed bytes, and no space after a
// comma.
#include "core/json.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "core/utf8.h"

namespace linnet {
namespace {

const char* name_of(JsonValue::Kind kind) {
  constexpr const char* kNames[] = {"null", "a boolean", "an integer", "a number",
                                    "text", "an array",  "an object"};
  return kNames[static_cast<size_t>(kind)];
}

template <typename Value>
Value& expect(Value* value, JsonValue::Kind found, const char* expected) {
  require(value != nullptr, Cause{ErrorCode::wrong_type}, "JSON: expected ", expected, ", found ",
          name_of(found));
  return *value;
}

void dump_text(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : replace_invalid_utf8(text)) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += "\\u00";
      out += "0123456789abcdef"[c >> 4];
      out += "0123456789abcdef"[c & 15];
    } else {
      out += c;
    }
  }
  out += '"';
}

void dump_number(std::string& out, double value) {
  if (std::isfinite(value)) {
    char digits[32];
    // Without an exponent it would read back as an integer, and those end at 2^63.
    const bool large = std::abs(value) >= 0x1p63;
    const auto end =
        large ? std::to_chars(digits, digits + sizeof(digits), value, std::chars_format::scientific)
              : std::to_chars(digits, digits + sizeof(digits), value);
    out.append(digits, end.ptr);
  } else {
    out += std::isnan(value) ? "\"nan\"" : value > 0 ? "\"inf\"" : "\"-inf\"";
  }
}

// Builds a JsonValue from the parser's events. Containers under construction are kept on a stack.
class Builder {
 public:
  Builder(const std::string& label, int depth) : label_(label), largest_depth_(depth) {}
  JsonValue result;

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(int64_t value) { return add(value); }
  bool number_unsigned(uint64_t value) {
    if (value > uint64_t{INT64_MAX})
      fail(ErrorCode::out_of_range, "the integer ", value, " exceeds 64 bits with a sign");
    return add(static_cast<int64_t>(value));
  }
  bool number_float(double value, const std::string& text) {
    // The parser hands integers beyond 64 bits over as rounded numbers.
    if (text.find_first_of(".eE") == std::string::npos)
      fail(ErrorCode::out_of_range, "the integer ", text, " exceeds 64 bits with a sign");
    return add(value);
  }
  bool string(std::string& text) { return add(std::move(text)); }
  bool binary(nlohmann::json::binary_t&) { return false; }  // not in JSON text
  bool start_object(size_t) { return start(JsonValue::object()); }
  bool start_array(size_t) { return start(JsonValue::array()); }
  bool end_object() { return end(); }
  bool end_array() { return end(); }
  bool key(std::string& key) {
    if (!open_.back().keys.insert(key).second)
      throw Error({ErrorCode::repeated, key, label_},
                  concat(label_, ": the key '", key, "' is there twice"));
    open_.back().key = std::move(key);
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ...; expected ..."
    std::string_view what = error.what();
    const auto skip_to = [&what](size_t found, size_t length) {
      if (found != std::string_view::npos) what.remove_prefix(found + length);
    };
    skip_to(what.find("] "), 2);
    if (what.starts_with("parse error")) skip_to(what.find(": "), 2);
    skip_to(what.rfind("; expected "), 2);
    fail(ErrorCode::malformed, "not valid JSON at byte ", position, ": ", what);
  }

 private:
  struct Open {
    JsonValue value;
    std::string key;                       // of the member being read
    std::unordered_set<std::string> keys;  // of all members so far
  };
  template <typename... Parts>
  [[noreturn]] void fail(ErrorCode code, const Parts&... parts) const {
    throw Error({code, "", label_}, concat(label_, ": ", parts...));
  }
  bool add(JsonValue value) {
    if (open_.empty())
      result = std::move(value);
    else if (open_.back().value.is_array())
      open_.back().value.push(std::move(value));
    else
      open_.back().value.append(std::move(open_.back().key), std::move(value));
    return true;
  }
  bool start(JsonValue container) {
    if (static_cast<int>(open_.size()) >= largest_depth_)
      fail(ErrorCode::out_of_range, "nested deeper than ", largest_depth_, " levels");
    open_.push_back({std::move(container), {}, {}});
    return true;
  }
  bool end() {
    JsonValue done = std::move(open_.back().value);
    open_.pop_back();
    return add(std::move(done));
  }

  const std::string& label_;
  int largest_depth_;
  std::vector<Open> open_;
};

}  // namespace

JsonValue JsonValue::array() {
  JsonValue result;
  result.value_ = Array();
  return result;
}

JsonValue JsonValue::object() {
  JsonValue result;
  result.value_ = Object();
  return result;
}

JsonValue& JsonValue::append(std::string key, JsonValue value) {
  const auto found = std::get_if<Object>(&value_);
  expect(found, kind(), "an object").push_back({std::move(key), std::move(value)});
  return *this;
}

JsonValue& JsonValue::set(std::string_view key, JsonValue value) {
  const auto found = std::get_if<Object>(&value_);
  Object& object = expect(found, kind(), "an object");
  for (JsonMember& member : object) {
    if (member.key == key) {
      member.value = std::move(value);
      return *this;
    }
  }
  object.push_back({std::string(key), std::move(value)});
  return *this;
}

JsonValue& JsonValue::push(JsonValue value) {
  const auto found = std::get_if<Array>(&value_);
  expect(found, kind(), "an array").push_back(std::move(value));
  return *this;
}

bool JsonValue::is_number() const {
  if (kind() == Kind::integer || kind() == Kind::number) return true;
  return is_text() && (text() == "nan" || text() == "inf" || text() == "-inf");
}

bool JsonValue::boolean() const {
  const auto found = std::get_if<bool>(&value_);
  return expect(found, kind(), "a boolean");
}

int64_t JsonValue::integer() const {
  const auto found = std::get_if<int64_t>(&value_);
  return expect(found, kind(), "an integer");
}

double JsonValue::number() const {
  if (kind() == Kind::integer) return static_cast<double>(integer());
  if (is_text() && is_number()) {
    if (text() == "nan") return std::numeric_limits<double>::quiet_NaN();
    return text() == "inf" ? HUGE_VAL : -HUGE_VAL;
  }
  const auto found = std::get_if<double>(&value_);
  return expect(found, kind(), "a number");
}

const std::string& JsonValue::text() const {
  const auto found = std::get_if<std::string>(&value_);
  return expect(found, kind(), "text");
}

const JsonValue::Array& JsonValue::elements() const {
  const auto found = std::get_if<Array>(&value_);
  return expect(found, kind(), "an array");
}

const JsonValue::Object& JsonValue::members() const {
  const auto found = std::get_if<Object>(&value_);
  return expect(found, kind(), "an object");
}

size_t JsonValue::size() const {
  return is_array() ? elements().size() : members().size();
}

const JsonValue* JsonValue::find(std::string_view key) const {
  for (const JsonMember& member : members()) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

const JsonValue& JsonValue::at(std::string_view key) const {
  const JsonValue* found = find(key);
  require(found != nullptr, Cause{ErrorCode::missing_key, key}, "JSON: there is no member '", key,
          "'");
  return *found;
}

std::string JsonValue::dump(int indent) const {
  std::string out;
  dump_to(out, indent, 0);
  return out;
}

void JsonValue::dump_to(std::string& out, int indent, int depth) const {
  const auto new_line = [&](int level) {
    if (indent > 0) out += '\n' + std::string(static_cast<size_t>(indent * level), ' ');
  };
  switch (kind()) {
    case Kind::null:
      out += "null";
      break;
    case Kind::boolean:
      out += boolean() ? "true" : "false";
      break;
    case Kind::integer:
      out += std::to_string(integer());
      break;
    case Kind::number:
      dump_number(out, number());
      break;
    case Kind::text:
      dump_text(out, text());
      break;
    case Kind::array:
      out += '[';
      for (size_t i = 0; i < size(); ++i) {
        if (i > 0) out += indent > 0 ? "," : ", ";
        new_line(depth + 1);
        elements()[i].dump_to(out, indent, depth + 1);
      }
      if (size() > 0) new_line(depth);
      out += ']';
      break;
    case Kind::object:
      out += '{';
      for (size_t i = 0; i < size(); ++i) {
        if (i > 0) out += indent > 0 ? "," : ", ";
        new_line(depth + 1);
        dump_text(out, members()[i].key);
        out += ": ";
        members()[i].value.dump_to(out, indent, depth + 1);
      }
      if (size() > 0) new_line(depth);
      out += '}';
      break;
  }
}

JsonValue parse_json(std::string_view text, const std::string& label, JsonLimits limits) {
  require(text.size() <= limits.bytes, Cause{ErrorCode::out_of_range, "", label}, label, ": has ",
          text.size(), " bytes, more than the limit of ", limits.bytes);
  Builder builder(label, limits.depth);
  require(nlohmann::json::sax_parse(text.begin(), text.end(), &builder),
          Cause{ErrorCode::malformed, "", label}, label, ": not valid JSON");
  return std::move(builder.result);
}

}  // namespace linnet
