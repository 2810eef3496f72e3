// Type-erased reading, writing and describing of structs; single values are in config_values.cpp.
#include "core/config.h"

#include <algorithm>

#include "core/config_kinds.h"
#include "core/config_scalar.h"
#include "core/suggest.h"

namespace linnet {
namespace {

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) text += (i == 0 ? "" : ", ") + words[i];
  return text;
}

// The place of an override ends with the key that most sentences begin with: "command line:
// model.width: 'model.width' must be ..." says it once.
std::string with_one_name(const std::string& message) {
  const size_t place_end = message.find(": '");
  if (place_end == std::string::npos) return message;
  const size_t begin = place_end + 3;
  const std::string named =
      ": " + message.substr(begin, message.find_first_of(":'", begin) - begin);
  const std::string place = message.substr(0, place_end);
  if (!place.ends_with(named)) return message;
  return place.substr(0, place.size() - named.size()) + message.substr(place_end);
}

std::string in_section(const std::string& section) {
  return section.empty() ? "" : " in '" + section + "'";
}

// Reports keys that nothing reads, but for those in `seen`; returns the fields that they seem to
// mean.
std::vector<std::string> refuse_unknown_keys(const std::vector<const Field*>& fields,
                                             const ConfigNode& node, const std::string& section,
                                             const std::vector<std::string>& read_elsewhere,
                                             const std::vector<std::string>& seen,
                                             ConfigErrors& errors) {
  std::vector<std::string> known = read_elsewhere;
  for (const Field* field : fields) known.push_back(field->name());
  // A key that is there already is seldom the one that was misspelt.
  std::vector<std::string> free;
  for (const std::string& key : known) {
    if (!node.contains(key)) free.push_back(key);
  }
  std::vector<std::string> listed = known;
  for (const ConfigNode::Taken& taken : node.taken()) {
    listed.push_back(taken.key);
    if (!taken.given) free.push_back(taken.key);
  }
  constexpr size_t kEnough = 100;  // nobody reads further
  std::vector<std::string> meant;
  for (const ConfigEntry& entry : node.entries()) {
    if (errors.count() > kEnough) break;
    if (std::count(known.begin(), known.end(), entry.key) > 0) continue;
    if (std::count(seen.begin(), seen.end(), entry.key) > 0) continue;
    std::vector<std::string> near = nearest_words(entry.key, free);
    if (!near.empty()) meant.push_back(near.front());
    errors.add(entry.key_location, ErrorCode::unknown_key, key_in(section, entry.key),
               "unknown key '" + entry.key + "'" + in_section(section) + "; " +
                   suggestion(entry.key, near.empty() ? listed : near));
  }
  return meant;
}

void append_rows(const std::vector<FieldSchema>& fields, const std::string& indent,
                 std::string& table) {
  size_t width = 0;
  for (const FieldSchema& field : fields) width = std::max(width, field.name.size());
  for (const FieldSchema& field : fields) {
    table += indent + field.name + std::string(width + 2 - field.name.size(), ' ') + field.help;
    std::string facts = field.choices.empty() ? field.type : "one of " + join(field.choices);
    if (!field.unit.empty()) facts += ", " + field.unit;
    if (!field.range.empty()) facts += ", " + field.range;
    if (!field.kinds.empty()) facts += ", " + of_kinds(field.kinds);
    if (field.required) facts += ", required";
    const bool shows_default = !field.required && field.fields.empty();
    if (shows_default) facts += ", default " + field.default_text;
    table += " (" + facts + ")\n";
    append_rows(field.fields, indent + "  ", table);
  }
}

}  // namespace

// ---- errors and fields ----

std::string inline_text(const ConfigNode& node) {
  switch (node.kind()) {
    case ConfigNode::Kind::kNull:
      return "none";
    case ConfigNode::Kind::kScalar:
      return node.quoted() ? concat("\"", node.raw(), "\"") : node.raw();
    case ConfigNode::Kind::kSequence: {
      std::vector<std::string> items;
      for (const ConfigNode& item : node.items()) items.push_back(inline_text(item));
      return concat("[", join(items), "]");
    }
    case ConfigNode::Kind::kMap:
      break;
  }
  std::vector<std::string> items;
  for (const ConfigEntry& entry : node.entries()) {
    items.push_back(entry.key + ": " + inline_text(entry.value));
  }
  return concat("{", join(items), "}");
}

std::string range_text(const FieldRules& rules) {
  const auto& [min, max] = std::pair(rules.min, rules.max);
  if (min && max && !rules.min_exclusive && !rules.max_exclusive) {
    return format_double(*min) + " to " + format_double(*max);
  }
  std::string text;
  if (min) text = (rules.min_exclusive ? "above " : "at least ") + format_double(*min);
  if (min && max) text += " and ";
  if (max) text += (rules.max_exclusive ? "below " : "at most ") + format_double(*max);
  return text;
}

std::string key_in(const std::string& section, const std::string& key) {
  return section.empty() || key.empty() ? section + key : section + "." + key;
}

void ConfigErrors::add(const std::string& message, std::vector<Error::Problem> problems) {
  messages_.push_back(with_one_name(message));
  for (Error::Problem& problem : problems) {
    problem.text = with_one_name(problem.text);
    problems_.push_back(std::move(problem));
  }
}

void ConfigErrors::add(const Location& where, ErrorCode code, const std::string& key,
                       const std::string& sentence) {
  add(located_error(where, Cause{code, key}, sentence));
}

void ConfigErrors::add(const UsageError& error) {
  add(error.what(), error.problems());
}

void ConfigErrors::add_conflicts(const UsageError& error, const std::string& section) {
  std::vector<Error::Problem> problems = error.problems();
  for (Error::Problem& problem : problems) {
    problem.key = key_in(section, problem.key);
    if (problem.code == ErrorCode::general) problem.code = ErrorCode::conflict;
  }
  add(error.what(), std::move(problems));
}

void ConfigErrors::throw_if_any() const {
  if (messages_.empty()) return;
  constexpr size_t kMax = 20;
  std::string text;
  for (size_t i = 0; i < messages_.size() && i < kMax; ++i) {
    text += (i == 0 ? "" : "\n") + messages_[i];
  }
  if (messages_.size() > kMax) {
    text += "\nand " + std::to_string(messages_.size() - kMax) + " more";
  }
  throw UsageError(problems_, text);
}

Field::Field(std::string name, std::string help, std::unique_ptr<ValueBinding> binding)
    : name_(std::move(name)), help_(std::move(help)), binding_(std::move(binding)) {}

Field& Field::range(double min, double max) {
  return at_least(min).at_most(max);
}
Field& Field::at_least(double min) {
  rules_.min = min;
  rules_.min_exclusive = false;
  return *this;
}
Field& Field::at_most(double max) {
  rules_.max = max;
  rules_.max_exclusive = false;
  return *this;
}
Field& Field::above(double min) {
  rules_.min = min;
  rules_.min_exclusive = true;
  return *this;
}
Field& Field::below(double max) {
  rules_.max = max;
  rules_.max_exclusive = true;
  return *this;
}
Field& Field::size(size_t min, size_t max) {
  rules_.min_size = min;
  rules_.max_size = max;
  return *this;
}
Field& Field::choices(std::vector<std::string> allowed) {
  rules_.choices = std::move(allowed);
  return *this;
}
Field& Field::unit(std::string unit) {
  unit_ = std::move(unit);
  return *this;
}
Field& Field::required() {
  rules_.required = true;
  return *this;
}

FieldSchema Field::schema() const {
  FieldSchema schema;
  schema.name = name_;
  schema.type = binding_->type_name();
  schema.default_text = rules_.required ? "" : inline_text(binding_->write());
  schema.range = range_text(rules_);
  schema.unit = unit_;
  schema.help = help_;
  schema.required = rules_.required;
  schema.choices = rules_.choices;
  schema.fields = binding_->nested_schema();
  return schema;
}

// ---- the type-erased halves ----

void read_fields(const FieldList& shared, const KindChoice* choice, const ConfigNode& node,
                 const std::string& section, const std::vector<std::string>& read_elsewhere,
                 ConfigErrors& errors) {
  if (!node.is_map() && !node.is_null()) {
    errors.add(node.location(), ErrorCode::wrong_type, section,
               (section.empty() ? "" : "'" + section + "' ") +
                   std::string("must be a section of 'key: value' lines, found ") + node.found());
    return;
  }
  const KeysOfKind kind =
      choice == nullptr ? KeysOfKind() : take_kind(*choice, node, section, errors);
  std::vector<const Field*> fields;
  for (const FieldList* list : {&shared, &kind.own}) {
    for (const auto& field : *list) fields.push_back(field.get());
  }
  const std::vector<std::string> meant =
      refuse_unknown_keys(fields, node, section, read_elsewhere, kind.others, errors);
  for (const Field* field : fields) {
    const std::string name = key_in(section, field->name());
    if (const ConfigNode* value = node.find(field->name())) {
      field->binding().read(*value, name, field->rules(), errors);
    } else if (field->rules().required &&
               std::count(meant.begin(), meant.end(), field->name()) == 0) {
      errors.add(node.location(), ErrorCode::missing_key, name,
                 "the key '" + field->name() + "' is missing" + in_section(section) + "; add it");
    }
  }
}

void remind_of_lost_keys(const ConfigNode& node, const std::string& section, ConfigErrors& errors) {
  // A section without a name is a mechanism: the keys of another mean nothing to it.
  if (!node.is_map() || section.empty()) return;
  std::vector<std::string> lost = node.lost_keys();
  if (lost.empty()) return;
  for (std::string& key : lost) key = concat(section, ".", key);
  errors.add(node.location(), ErrorCode::conflict, section,
             concat("a new kind resets '", section, "'; give with it what should still hold of ",
                    join(lost)));
}

ConfigNode write_fields(const FieldList& fields, const KindChoice* choice) {
  ConfigNode node = ConfigNode::map();
  const FieldList own = choice == nullptr ? FieldList() : choice->options->fields();
  for (const FieldList* list : {&fields, &own}) {
    for (const auto& field : *list) node.set(field->name(), field->binding().write());
  }
  return node;
}

std::vector<FieldSchema> schema_fields(const FieldList& fields, const KindChoice* choice) {
  std::vector<FieldSchema> schemas;
  for (const auto& field : fields) schemas.push_back(field->schema());
  if (choice != nullptr) add_kind_schemas(*choice, schemas);
  return schemas;
}

const FieldSchema* ConfigSchema::find(std::string_view name) const {
  for (const FieldSchema& field : fields) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

std::string format_schema(const ConfigSchema& schema) {
  std::string table;
  append_rows(schema.fields, "", table);
  return table;
}

bool check_list(const ConfigNode& node, const std::string& name, const FieldRules& rules,
                ConfigErrors& errors) {
  if (!node.is_sequence()) {
    errors.add(node.location(), ErrorCode::wrong_type, name,
               "'" + name + "' must be a list such as [1, 2], found " + node.found());
    return false;
  }
  const size_t size = node.items().size();
  if (size >= rules.min_size.value_or(0) && size <= rules.max_size.value_or(size)) return true;
  const size_t min = *rules.min_size, max = *rules.max_size;
  errors.add(node.location(), ErrorCode::out_of_range, name,
             concat("'", name, "' must have ", min, min == max ? "" : concat(" to ", max),
                    " elements, found ", size));
  return false;
}

std::string read_kind(const ConfigNode& section, const std::string& key,
                      const std::vector<std::string>& choices) {
  if (!section.is_map() && !section.is_null()) {
    // Most often the value alone was given.
    const std::string given = section.is_scalar() ? section.raw() : std::string();
    const bool known = std::count(choices.begin(), choices.end(), given) > 0;
    throw located_error(section.location(), Cause{ErrorCode::wrong_type},
                        "expected a section such as {", key, ": ", known ? given : "...",
                        "}, found ", section.found());
  }
  const ConfigNode* node = section.find(key);
  if (node == nullptr) {
    for (const ConfigEntry& entry : section.entries()) {
      if (!nearest_words(entry.key, {key}).empty()) {
        throw located_error(entry.key_location, Cause{ErrorCode::unknown_key, entry.key},
                            "unknown key '", entry.key, "'; did you mean '", key, "'?");
      }
    }
    throw located_error(section.location(), Cause{ErrorCode::missing_key, key}, "the key '", key,
                        "' is missing; add it with one of ", join(choices));
  }
  std::string value = read_text(*node, key);
  if (std::count(choices.begin(), choices.end(), value) > 0) return value;
  throw located_error(node->location(), Cause{ErrorCode::unknown_name, key}, "'", key,
                      "' cannot be ", node->found(), "; ", suggestion(value, choices));
}

}  // namespace linnet
