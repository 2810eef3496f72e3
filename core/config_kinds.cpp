#include "core/config_kinds.h"

#include <algorithm>

namespace linnet {
namespace {

const Field* find_field(const FieldList& fields, const std::string& name) {
  for (const auto& field : fields) {
    if (field->name() == name) return field.get();
  }
  return nullptr;
}

// Whether `value` is what `field`, which has its default, already holds.
bool holds_default(const Field& field, const ConfigNode& value) {
  const ConfigNode before = field.binding().write();
  ConfigErrors errors;
  field.binding().read(value, field.name(), field.rules(), errors);
  return errors.count() == 0 && field.binding().write() == before;
}

// The kinds that have `key`, and whether `value` is its default in one of them.
struct Owners {
  std::vector<std::string> kinds;
  bool is_default = false;
};

Owners owners_of(const std::string& key, const ConfigNode& value, const KindChoice& choice) {
  Owners owners;
  for (const SectionKind& kind : choice.kinds) {
    KindOptions defaults = kind.options;
    const FieldList fields = defaults.fields();
    const Field* field = find_field(fields, key);
    if (field == nullptr) continue;
    owners.kinds.push_back(kind.name);
    owners.is_default =
        owners.is_default || (!field->rules().required && holds_default(*field, value));
  }
  return owners;
}

}  // namespace

KeysOfKind take_kind(const KindChoice& choice, const ConfigNode& node, const std::string& section,
                     ConfigErrors& errors) {
  KeysOfKind keys;
  const ConfigNode* given = node.find(choice.key);
  const std::string name = given == nullptr     ? *choice.kind
                           : given->is_scalar() ? given->raw()
                                                : std::string();
  const auto kind = std::find_if(choice.kinds.begin(), choice.kinds.end(),
                                 [&](const SectionKind& each) { return each.name == name; });
  const bool known = kind != choice.kinds.end();
  *choice.options = known ? kind->options : KindOptions();
  keys.own = choice.options->fields();
  for (const ConfigEntry& entry : node.entries()) {
    if (find_field(keys.own, entry.key) != nullptr) continue;
    const Owners owners = owners_of(entry.key, entry.value, choice);
    if (owners.kinds.empty()) continue;
    keys.others.push_back(entry.key);
    if (!known || owners.is_default) continue;
    const std::string whole = key_in(section, entry.key);
    errors.add(entry.value.location(), ErrorCode::conflict, whole,
               concat("'", whole, "' belongs to ", of_kinds(owners.kinds), ", not to ", name,
                      "; remove it, or change '", key_in(section, choice.key), "'"));
  }
  return keys;
}

void add_kind_schemas(const KindChoice& choice, std::vector<FieldSchema>& schemas) {
  const auto shared = static_cast<std::ptrdiff_t>(schemas.size());
  for (const SectionKind& kind : choice.kinds) {
    KindOptions options = kind.options;
    for (const auto& field : options.fields()) {
      FieldSchema schema = field->schema();
      const auto same =
          std::find_if(schemas.begin() + shared, schemas.end(), [&](const FieldSchema& other) {
            FieldSchema plain = other;
            plain.kinds.clear();
            return plain == schema;
          });
      if (same != schemas.end()) {
        same->kinds.push_back(kind.name);
      } else {
        schema.kinds = {kind.name};
        schemas.push_back(std::move(schema));
      }
    }
  }
}

std::string of_kinds(const std::vector<std::string>& kinds) {
  std::string text = kinds.size() == 1 ? "kind " : "kinds ";
  for (size_t i = 0; i < kinds.size(); ++i) {
    text += concat(i == 0 ? "" : i + 1 < kinds.size() ? ", " : " and ", kinds[i]);
  }
  return text;
}

}  // namespace linnet
