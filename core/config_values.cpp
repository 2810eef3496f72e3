// Reading and writing of single values: truth values, numbers, text, free-form nodes.
#include <algorithm>

#include "core/config.h"
#include "core/config_scalar.h"
#include "core/suggest.h"

namespace linnet {
namespace {

bool in_range(double value, const FieldRules& rules) {
  if (rules.min && !(rules.min_exclusive ? value > *rules.min : value >= *rules.min)) return false;
  return !(rules.max && !(rules.max_exclusive ? value < *rules.max : value <= *rules.max));
}

void check_range(double value, const ConfigNode& node, const std::string& name,
                 const FieldRules& rules, ConfigErrors& errors) {
  if (in_range(value, rules)) return;
  errors.add(node.location(), ErrorCode::out_of_range, name,
             "'" + name + "' must be " + range_text(rules) + ", found " + node.raw());
}

// Runs one strict reader, gathering its complaint.
template <typename Reader>
bool gather(ConfigErrors& errors, const Reader& reader) {
  try {
    reader();
    return true;
  } catch (const UsageError& error) {
    errors.add(error);
    return false;
  }
}

class BoolBinding : public ValueBinding {
 public:
  explicit BoolBinding(bool& value) : value_(value) {}
  void read(const ConfigNode& node, const std::string& name, const FieldRules&,
            ConfigErrors& errors) override {
    gather(errors, [&] { value_ = read_bool(node, name); });
  }
  ConfigNode write() const override { return ConfigNode::boolean(value_); }
  std::string type_name() const override { return "true or false"; }

 private:
  bool& value_;
};

class IntBinding : public ValueBinding {
 public:
  explicit IntBinding(int64_t& value) : value_(value) {}
  void read(const ConfigNode& node, const std::string& name, const FieldRules& rules,
            ConfigErrors& errors) override {
    if (!gather(errors, [&] { value_ = read_int(node, name); })) return;
    check_range(static_cast<double>(value_), node, name, rules, errors);
    // Other checks follow before the error is thrown: none of them gets a count without bounds.
    if (rules.min) value_ = std::max(value_, static_cast<int64_t>(*rules.min));
    if (rules.max) value_ = std::min(value_, static_cast<int64_t>(*rules.max));
  }
  ConfigNode write() const override { return ConfigNode::integer(value_); }
  std::string type_name() const override { return "whole number"; }

 private:
  int64_t& value_;
};

class DoubleBinding : public ValueBinding {
 public:
  explicit DoubleBinding(double& value) : value_(value) {}
  void read(const ConfigNode& node, const std::string& name, const FieldRules& rules,
            ConfigErrors& errors) override {
    if (!gather(errors, [&] { value_ = read_double(node, name); })) return;
    check_range(value_, node, name, rules, errors);
  }
  ConfigNode write() const override { return ConfigNode::number(value_); }
  std::string type_name() const override { return "number"; }

 private:
  double& value_;
};

class TextBinding : public ValueBinding {
 public:
  explicit TextBinding(std::string& value) : value_(value) {}
  void read(const ConfigNode& node, const std::string& name, const FieldRules& rules,
            ConfigErrors& errors) override {
    if (!gather(errors, [&] { value_ = read_text(node, name); })) return;
    const auto& allowed = rules.choices;
    if (allowed.empty() || std::count(allowed.begin(), allowed.end(), value_) > 0) return;
    errors.add(node.location(), ErrorCode::unknown_name, name,
               "'" + name + "' cannot be " + node.found() + "; " + suggestion(value_, allowed));
  }
  ConfigNode write() const override { return ConfigNode::text(value_); }
  std::string type_name() const override { return "text"; }

 private:
  std::string& value_;
};

// Keeps the node as the user wrote it, places included, for an owner who reads it later.
class NodeBinding : public ValueBinding {
 public:
  explicit NodeBinding(ConfigNode& value) : value_(value) {}
  void read(const ConfigNode& node, const std::string&, const FieldRules&, ConfigErrors&) override {
    value_ = node;
  }
  ConfigNode write() const override { return value_; }
  std::string type_name() const override { return "free form"; }

 private:
  ConfigNode& value_;
};

[[noreturn]] void refuse_scalar(const ConfigNode& node, const std::string& name,
                                const std::string& expected, const std::string& why) {
  throw located_error(node.location(), Cause{ErrorCode::wrong_type, name}, "'", name, "' must be ",
                      expected, ", found ", node.found(), why.empty() ? "" : " (" + why + ")");
}

// The plain text of a scalar that must not be text.
const std::string& plain_text(const ConfigNode& node, const std::string& name,
                              const std::string& expected) {
  if (!node.is_scalar()) refuse_scalar(node, name, expected, "");
  if (node.quoted()) refuse_scalar(node, name, expected, "write it without quotes");
  return node.raw();
}

}  // namespace

std::unique_ptr<ValueBinding> bind_value(bool& value) {
  return std::make_unique<BoolBinding>(value);
}
std::unique_ptr<ValueBinding> bind_value(int64_t& value) {
  return std::make_unique<IntBinding>(value);
}
std::unique_ptr<ValueBinding> bind_value(double& value) {
  return std::make_unique<DoubleBinding>(value);
}
std::unique_ptr<ValueBinding> bind_value(std::string& value) {
  return std::make_unique<TextBinding>(value);
}
std::unique_ptr<ValueBinding> bind_value(ConfigNode& value) {
  return std::make_unique<NodeBinding>(value);
}

bool read_bool(const ConfigNode& node, const std::string& name) {
  std::string why;
  const std::string expected = "true or false";
  if (const auto value = parse_bool(plain_text(node, name, expected), why)) return *value;
  refuse_scalar(node, name, expected, why);
}

int64_t read_int(const ConfigNode& node, const std::string& name) {
  std::string why;
  const std::string expected = "a whole number";
  if (const auto value = parse_int(plain_text(node, name, expected), why)) return *value;
  refuse_scalar(node, name, expected, why);
}

double read_double(const ConfigNode& node, const std::string& name) {
  std::string why;
  const std::string expected = "a number";
  if (const auto value = parse_double(plain_text(node, name, expected), why)) return *value;
  refuse_scalar(node, name, expected, why);
}

std::string read_text(const ConfigNode& node, const std::string& name) {
  if (!node.is_scalar()) refuse_scalar(node, name, "text", "");
  return node.raw();
}

}  // namespace linnet
