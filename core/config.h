// Typed configuration: a struct describes its fields once; parsing, validation, suggestions, the
// resolved recipe, --help and the documentation all come from that description.
//
//   struct LavoParams {
//     int64_t rank = 64;
//     std::string basis = "head";
//     static void describe(ConfigDescription<LavoParams>& d) {
//       d.field("rank", &LavoParams::rank, "rows of the orthogonal basis").range(1, 4096);
//       d.choice("basis", &LavoParams::basis, {"head", "model"}, "what shares one basis");
//     }
//     // Optional: checks across fields. Its errors are conflicts (ErrorCode) unless they say
//     // otherwise; their keys are relative to the section.
//     void validate(const ConfigNode& at) const;
//   };
//   auto params = parse_config<LavoParams>(node);
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/config_node.h"

namespace linnet {

// One-line text of a value: 3, none, [1, 2], {name: lavo, rank: 32}.
std::string inline_text(const ConfigNode& node);

// What --help, `attention show` and the documentation print about one field.
struct FieldSchema {
  std::string name;
  std::string type;          // "whole number", "number", "true or false", "text", "list of ..."
  std::string default_text;  // YAML text; "" for a required field
  std::string range;         // "1 to 4096", "above 0", "" when unlimited
  std::string unit;
  std::string help;
  bool required = false;
  std::vector<std::string> choices;
  std::vector<FieldSchema> fields;  // of a nested section
  std::vector<std::string> kinds;   // those kinds of the section that have this key; empty: all

  friend bool operator==(const FieldSchema&, const FieldSchema&) = default;
};

struct ConfigSchema {
  std::vector<FieldSchema> fields;
  // The field of that name; nullptr when there is none.
  const FieldSchema* find(std::string_view name) const;
};

// A table for terminals: one line a field, nested sections indented.
std::string format_schema(const ConfigSchema& schema);

// Problems of one configuration, gathered so that a user sees them together.
class ConfigErrors {
 public:
  // A sentence about `key`, the whole path of a key.
  void add(const Location& where, ErrorCode code, const std::string& key,
           const std::string& sentence);
  // An error whose message already names its place and whose keys are whole paths.
  void add(const UsageError& error);
  // The same, of checks across the fields of `section`, to which its keys are relative.
  void add_conflicts(const UsageError& error, const std::string& section);
  size_t count() const { return messages_.size(); }
  // Throws UsageError with all problems and one line per message (at most 20) if there are any.
  void throw_if_any() const;

 private:
  void add(const std::string& message, std::vector<Error::Problem> problems);

  std::vector<std::string> messages_;
  std::vector<Error::Problem> problems_;  // at least one a message
};

// Limits on the value of a field; in a list they hold for each element.
struct FieldRules {
  std::optional<double> min, max;
  bool min_exclusive = false, max_exclusive = false;
  std::optional<size_t> min_size, max_size;  // of a list
  std::vector<std::string> choices;          // empty: anything
  bool required = false;
};

// "1 to 4096", "above 0", "" when unlimited.
std::string range_text(const FieldRules& rules);

// One value inside a described struct, with its type erased.
class ValueBinding {
 public:
  virtual ~ValueBinding() = default;
  // Sets the value from `node`, or adds to `errors`; `name` is how messages call it.
  virtual void read(const ConfigNode& node, const std::string& name, const FieldRules& rules,
                    ConfigErrors& errors) = 0;
  virtual ConfigNode write() const = 0;
  virtual std::string type_name() const = 0;
  virtual std::vector<FieldSchema> nested_schema() const { return {}; }
};

// A field under description; the modifiers return it for chaining.
class Field {
 public:
  Field(std::string name, std::string help, std::unique_ptr<ValueBinding> binding);

  Field& range(double min, double max);  // both ends allowed
  Field& at_least(double min);
  Field& at_most(double max);
  Field& above(double min);  // the end itself refused
  Field& below(double max);
  Field& size(size_t min, size_t max);  // number of elements of a list
  Field& choices(std::vector<std::string> allowed);
  Field& unit(std::string unit);
  Field& required();

  const std::string& name() const { return name_; }
  const FieldRules& rules() const { return rules_; }
  ValueBinding& binding() const { return *binding_; }
  FieldSchema schema() const;

 private:
  std::string name_, help_, unit_;
  FieldRules rules_;
  std::unique_ptr<ValueBinding> binding_;
};

using FieldList = std::vector<std::unique_ptr<Field>>;

template <typename T>
class ConfigDescription;

template <typename T>
concept DescribedConfig = requires(ConfigDescription<T>& d) {
  T::describe(d);
};

// The keys that one kind of a section has beside those of all kinds: a described struct whose type
// only those know who ask for it. A copy has a struct of its own.
class KindOptions {
 public:
  KindOptions() = default;  // no keys
  template <DescribedConfig T>
  explicit KindOptions(T options);
  KindOptions(const KindOptions& other) : held_(other.held_ ? other.held_->clone() : nullptr) {}
  KindOptions(KindOptions&&) noexcept = default;
  KindOptions& operator=(KindOptions other) noexcept {
    held_ = std::move(other.held_);
    return *this;
  }
  ~KindOptions() = default;

  // The struct if it is a T or inherits from T (keys that several kinds share), else nullptr.
  template <typename T>
  const T* find() const {
    return dynamic_cast<const T*>(held_.get());
  }
  template <typename T>
  T* find() {
    return dynamic_cast<T*>(held_.get());
  }
  // The same where the kind is known to have them; throws Error if it has not.
  template <typename T>
  const T& as() const;
  template <typename T>
  T& as();

  // Its fields, bound to the struct; they live no longer than it.
  FieldList fields() { return held_ ? held_->fields() : FieldList(); }
  // The checks across its fields; `at`: the section. Throws UsageError.
  void validate(const ConfigNode& at) const {
    if (held_) held_->check(at);
  }

 private:
  struct Held {
    virtual ~Held() = default;
    virtual std::unique_ptr<Held> clone() const = 0;
    virtual FieldList fields() = 0;
    virtual void check(const ConfigNode& at) const = 0;
  };
  template <typename T>
  struct HeldAs;

  std::unique_ptr<Held> held_;
};

// A kind of a section, with the defaults of its own keys.
struct SectionKind {
  std::string name;
  KindOptions options;
};

// The key of a section that chooses its kind, and where the keys of that kind go.
struct KindChoice {
  std::string key;
  std::string* kind = nullptr;
  KindOptions* options = nullptr;
  std::vector<SectionKind> kinds;
};

// The type-erased halves of parse_config, to_config_node and schema_of; `choice` may be nullptr.
// `read_elsewhere` names keys that are allowed here although no field describes them (the `name` of
// a mechanism).
void read_fields(const FieldList& fields, const KindChoice* choice, const ConfigNode& node,
                 const std::string& section, const std::vector<std::string>& read_elsewhere,
                 ConfigErrors& errors);
ConfigNode write_fields(const FieldList& fields, const KindChoice* choice);
std::vector<FieldSchema> schema_fields(const FieldList& fields, const KindChoice* choice);

std::unique_ptr<ValueBinding> bind_value(bool& value);
std::unique_ptr<ValueBinding> bind_value(int64_t& value);
std::unique_ptr<ValueBinding> bind_value(double& value);
std::unique_ptr<ValueBinding> bind_value(std::string& value);
std::unique_ptr<ValueBinding> bind_value(ConfigNode& value);  // free-form: kept as it is
template <DescribedConfig T>
std::unique_ptr<ValueBinding> bind_value(T& value);
template <typename T>
std::unique_ptr<ValueBinding> bind_value(std::vector<T>& value);
template <typename T>
std::unique_ptr<ValueBinding> bind_value(std::optional<T>& value);

// Collects the fields of one object of type T.
template <typename T>
class ConfigDescription {
 public:
  explicit ConfigDescription(T& object) : object_(object) {}

  // A bool, int64_t, double, std::string, described struct, ConfigNode (free-form section), or a
  // std::vector or std::optional of these. A null value empties an optional.
  template <typename V>
  Field& field(const std::string& name, V T::*member, const std::string& help) {
    return add(name, help, bind_value(object_.*member));
  }
  // The same, for readers: a section, a list, a value that may be absent.
  template <DescribedConfig V>
  Field& nested(const std::string& name, V T::*member, const std::string& help) {
    return field(name, member, help);
  }
  template <typename V>
  Field& list(const std::string& name, std::vector<V> T::*member, const std::string& help) {
    return field(name, member, help);
  }
  template <typename V>
  Field& optional(const std::string& name, std::optional<V> T::*member, const std::string& help) {
    return field(name, member, help);
  }
  // Text limited to a list.
  Field& choice(const std::string& name, std::string T::*member,
                std::initializer_list<const char*> allowed, const std::string& help) {
    return field(name, member, help).choices({allowed.begin(), allowed.end()});
  }
  // An enumeration with the names of its values.
  template <typename E>
  Field& choice(const std::string& name, E T::*member,
                std::initializer_list<std::pair<const char*, E>> values, const std::string& help);

  // The fields of a struct that T inherits from, which several structs share.
  template <DescribedConfig G>
  void group();
  // A choice among `kinds`, each of which has further keys of this section: those of the chosen one
  // become `options`. A key of another kind alone is refused by name, unless it has its default
  // there: resolved sections may give the keys of every kind.
  Field& kinds(const std::string& name, std::string T::*kind, KindOptions T::*options,
               std::vector<SectionKind> kinds, const std::string& help);

  const FieldList& fields() const { return fields_; }
  FieldList take_fields() { return std::move(fields_); }
  // The choice that kinds() described; nullptr when there is none.
  const KindChoice* choice() const { return choice_.kind == nullptr ? nullptr : &choice_; }

 private:
  Field& add(const std::string& name, const std::string& help,
             std::unique_ptr<ValueBinding> binding) {
    fields_.push_back(std::make_unique<Field>(name, help, std::move(binding)));
    return *fields_.back();
  }

  T& object_;
  FieldList fields_;
  KindChoice choice_;
};

// Reads a T strictly. Throws UsageError naming file:line:column for each unknown or missing key,
// wrong type, value out of range, or complaint of T::validate.
template <DescribedConfig T>
T parse_config(const ConfigNode& node, const std::vector<std::string>& read_elsewhere = {});

// The same, gathering the problems in `errors`; the result is meaningful only if there are none.
template <DescribedConfig T>
T parse_config(const ConfigNode& node, const std::string& section,
               const std::vector<std::string>& read_elsewhere, ConfigErrors& errors);

// All fields of `value`, in the order of their description; parse_config reads it back.
template <DescribedConfig T>
ConfigNode to_config_node(const T& value);

template <DescribedConfig T>
ConfigSchema schema_of();

// Reads the key that says what a section is (`kind`, `name`). Throws UsageError with the nearest
// choice when the key is missing, misspelt or not one of `choices`.
std::string read_kind(const ConfigNode& section, const std::string& key,
                      const std::vector<std::string>& choices);

// "optim.lr" of "optim" and "lr"; `key` itself when there is no section, `section` when no key.
std::string key_in(const std::string& section, const std::string& key);

// Strict values of one scalar. They throw UsageError that names the place and `name`.
bool read_bool(const ConfigNode& node, const std::string& name);
int64_t read_int(const ConfigNode& node, const std::string& name);
double read_double(const ConfigNode& node, const std::string& name);
std::string read_text(const ConfigNode& node, const std::string& name);

}  // namespace linnet

#include "core/config_bindings.h"
