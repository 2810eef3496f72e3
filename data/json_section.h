// A section of a JSON file that knows its place, for messages.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "core/echo.h"
#include "core/error.h"
#include "core/json.h"

namespace linnet {

class JsonSection {
 public:
  // `file` begins messages; both must outlive the object.
  JsonSection(const JsonValue& value, std::string_view file, std::string place = "")
      : value_(&value), file_(file), place_(std::move(place)) {}

  // Throws Error that names file and place, and says why.
  [[noreturn]] void refuse(std::string_view why) const {
    throw Error({ErrorCode::malformed, place_, file_},
                concat(file_, ": ", shortened(place_, 100), place_.empty() ? "" : " ", why));
  }
  bool is_null() const { return value_->is_null(); }
  bool has(std::string_view key) const {
    const JsonValue* found = object().find(key);
    return found != nullptr && !found->is_null();
  }
  JsonSection at(std::string_view key) const {
    const JsonValue* found = object().find(key);
    if (found == nullptr) refuse(concat("has no '", key, "'"));
    return {*found, file_, concat(place_, place_.empty() ? "" : ".", key)};
  }
  // Every key must be one of these.
  void require_keys(std::initializer_list<std::string_view> known) const {
    for (const JsonMember& member : object().members()) {
      bool found = false;
      for (const std::string_view key : known) found = found || key == member.key;
      if (!found)
        at(member.key).refuse("is not a part that linnet knows; it cannot promise the same ids");
    }
  }
  const std::string& text() const {
    if (!value_->is_text()) refuse("must be text");
    return value_->text();
  }
  int64_t integer() const {
    if (value_->kind() != JsonValue::Kind::integer) refuse("must be a whole number");
    return value_->integer();
  }
  bool boolean() const {
    if (value_->kind() != JsonValue::Kind::boolean) refuse("must be true or false");
    return value_->boolean();
  }
  bool flag(std::string_view key, bool otherwise) const {
    return has(key) ? at(key).boolean() : otherwise;
  }
  std::vector<JsonSection> elements() const {
    if (!value_->is_array()) refuse("must be a list");
    std::vector<JsonSection> sections;
    for (const JsonValue& element : value_->elements())
      sections.emplace_back(element, file_, concat(place_, "[", sections.size(), "]"));
    return sections;
  }
  const JsonValue& value() const { return *value_; }
  const JsonValue& object() const {
    if (!value_->is_object()) refuse("must be an object");
    return *value_;
  }
  const std::string& place() const { return place_; }
  std::string_view file() const { return file_; }

 private:
  const JsonValue* value_;
  std::string_view file_;
  std::string place_;
};

}  // namespace linnet
