// Template halves of core/config.h: bindings of lists, optional values, sections, enumerations.
#pragma once

#include "core/config.h"

namespace linnet {

template <typename T>
concept ValidatedConfig = requires(const T& value, const ConfigNode& at) {
  value.validate(at);
};

// Adds which keys a section lost when its kind changed, if it did: they may be what it lacks.
void remind_of_lost_keys(const ConfigNode& node, const std::string& section, ConfigErrors& errors);

// Reads all fields of `value`, then its cross-field checks if the fields were sound.
template <DescribedConfig T>
void read_described(T& value, const ConfigNode& node, const std::string& section,
                    const std::vector<std::string>& read_elsewhere, ConfigErrors& errors) {
  const size_t before = errors.count();
  ConfigDescription<T> description(value);
  T::describe(description);
  const KindChoice* choice = description.choice();
  read_fields(description.fields(), choice, node, section, read_elsewhere, errors);
  const auto check = [&](const auto& checked) {
    if (errors.count() != before) return;
    try {
      checked.validate(node);
    } catch (const UsageError& error) {
      errors.add_conflicts(error, section);
    }
  };
  if (choice != nullptr) check(*choice->options);
  if constexpr (ValidatedConfig<T>) check(value);
  if (errors.count() != before) remind_of_lost_keys(node, section, errors);
}

template <DescribedConfig T>
ConfigNode to_config_node(const T& value) {
  T copy = value;
  ConfigDescription<T> description(copy);
  T::describe(description);
  return write_fields(description.fields(), description.choice());
}

template <DescribedConfig T>
ConfigSchema schema_of() {
  T defaults{};
  ConfigDescription<T> description(defaults);
  T::describe(description);
  return {schema_fields(description.fields(), description.choice())};
}

template <DescribedConfig T>
T parse_config(const ConfigNode& node, const std::string& section,
               const std::vector<std::string>& read_elsewhere, ConfigErrors& errors) {
  T value{};
  read_described(value, node, section, read_elsewhere, errors);
  return value;
}

template <DescribedConfig T>
T parse_config(const ConfigNode& node, const std::vector<std::string>& read_elsewhere) {
  ConfigErrors errors;
  T value = parse_config<T>(node, "", read_elsewhere, errors);
  errors.throw_if_any();
  return value;
}

template <DescribedConfig T>
class SectionBinding : public ValueBinding {
 public:
  explicit SectionBinding(T& value) : value_(value) {}
  void read(const ConfigNode& node, const std::string& name, const FieldRules&,
            ConfigErrors& errors) override {
    read_described(value_, node, name, {}, errors);
  }
  ConfigNode write() const override { return to_config_node(value_); }
  std::string type_name() const override { return "section"; }
  std::vector<FieldSchema> nested_schema() const override { return schema_of<T>().fields; }

 private:
  T& value_;
};

// Adds an error unless `node` is a list whose length the rules allow.
bool check_list(const ConfigNode& node, const std::string& name, const FieldRules& rules,
                ConfigErrors& errors);

template <typename T>
class ListBinding : public ValueBinding {
 public:
  explicit ListBinding(std::vector<T>& value) : value_(value) {}
  void read(const ConfigNode& node, const std::string& name, const FieldRules& rules,
            ConfigErrors& errors) override {
    if (!check_list(node, name, rules, errors)) return;
    value_.clear();
    for (const ConfigNode& item : node.items()) {
      T element{};
      bind_value(element)->read(item, name, rules, errors);
      value_.push_back(std::move(element));
    }
  }
  ConfigNode write() const override {
    ConfigNode node = ConfigNode::sequence();
    for (T element : value_) node.append(bind_value(element)->write());
    return node;
  }
  std::string type_name() const override {
    T element{};
    return "list of " + bind_value(element)->type_name();
  }
  std::vector<FieldSchema> nested_schema() const override {
    T element{};
    return bind_value(element)->nested_schema();
  }

 private:
  std::vector<T>& value_;
};

template <typename T>
class OptionalBinding : public ValueBinding {
 public:
  explicit OptionalBinding(std::optional<T>& value) : value_(value) {}
  void read(const ConfigNode& node, const std::string& name, const FieldRules& rules,
            ConfigErrors& errors) override {
    value_.reset();
    if (node.is_null()) return;
    value_.emplace();
    bind_value(*value_)->read(node, name, rules, errors);
  }
  ConfigNode write() const override {
    if (!value_) return ConfigNode();
    T copy = *value_;
    return bind_value(copy)->write();
  }
  std::string type_name() const override {
    T element{};
    return bind_value(element)->type_name();
  }
  std::vector<FieldSchema> nested_schema() const override {
    T element{};
    return bind_value(element)->nested_schema();
  }

 private:
  std::optional<T>& value_;
};

template <typename E>
class EnumBinding : public ValueBinding {
 public:
  EnumBinding(E& value, std::vector<std::pair<const char*, E>> values)
      : value_(value), values_(std::move(values)) {}
  void read(const ConfigNode& node, const std::string& name, const FieldRules& rules,
            ConfigErrors& errors) override {
    std::string text;
    bind_value(text)->read(node, name, rules, errors);
    for (const auto& [label, value] : values_) {
      if (text == label) value_ = value;
    }
  }
  ConfigNode write() const override {
    for (const auto& [label, value] : values_) {
      if (value == value_) return ConfigNode::text(label);
    }
    throw Error("an enumeration holds a value that its description does not name");
  }
  std::string type_name() const override { return "text"; }

 private:
  E& value_;
  std::vector<std::pair<const char*, E>> values_;
};

template <DescribedConfig T>
std::unique_ptr<ValueBinding> bind_value(T& value) {
  return std::make_unique<SectionBinding<T>>(value);
}
template <typename T>
std::unique_ptr<ValueBinding> bind_value(std::vector<T>& value) {
  return std::make_unique<ListBinding<T>>(value);
}
template <typename T>
std::unique_ptr<ValueBinding> bind_value(std::optional<T>& value) {
  return std::make_unique<OptionalBinding<T>>(value);
}

template <typename T>
template <typename E>
Field& ConfigDescription<T>::choice(const std::string& name, E T::*member,
                                    std::initializer_list<std::pair<const char*, E>> values,
                                    const std::string& help) {
  std::vector<std::string> labels;
  for (const auto& value : values) labels.emplace_back(value.first);
  return add(name, help,
             std::make_unique<EnumBinding<E>>(object_.*member,
                                              std::vector<std::pair<const char*, E>>(values)))
      .choices(std::move(labels));
}

template <typename T>
template <DescribedConfig G>
void ConfigDescription<T>::group() {
  static_assert(!ValidatedConfig<G> || ValidatedConfig<T>,
                "several groups have checks: give the struct a validate() that calls them all");
  ConfigDescription<G> inner(object_);
  G::describe(inner);
  for (std::unique_ptr<Field>& field : inner.take_fields()) fields_.push_back(std::move(field));
}

template <typename T>
Field& ConfigDescription<T>::kinds(const std::string& name, std::string T::*kind,
                                   KindOptions T::*options, std::vector<SectionKind> kinds,
                                   const std::string& help) {
  std::vector<std::string> names;
  for (const SectionKind& each : kinds) names.push_back(each.name);
  choice_ = {name, &(object_.*kind), &(object_.*options), std::move(kinds)};
  return field(name, kind, help).choices(std::move(names));
}

// Inherits from the struct, so that dynamic_cast finds it and what it inherits from.
template <typename T>
struct KindOptions::HeldAs final : Held, T {
  explicit HeldAs(T options) : T(std::move(options)) {}
  std::unique_ptr<Held> clone() const override {
    return std::make_unique<HeldAs>(static_cast<const T&>(*this));
  }
  FieldList fields() override {
    ConfigDescription<T> description(*this);
    T::describe(description);
    return description.take_fields();
  }
  void check(const ConfigNode& at) const override {
    if constexpr (ValidatedConfig<T>) static_cast<const T&>(*this).validate(at);
  }
};

template <DescribedConfig T>
KindOptions::KindOptions(T options) : held_(std::make_unique<HeldAs<T>>(std::move(options))) {}

template <typename T>
const T& KindOptions::as() const {
  const T* found = find<T>();
  require(found != nullptr,
          "the options of this kind of a section are not those that were asked for");
  return *found;
}
template <typename T>
T& KindOptions::as() {
  return const_cast<T&>(std::as_const(*this).template as<T>());
}

}  // namespace linnet
