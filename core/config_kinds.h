// Sections whose keys depend on their kind: the parts of core/config.cpp that know of kinds.
#pragma once

#include <string>
#include <vector>

#include "core/config.h"

namespace linnet {

struct KeysOfKind {
  FieldList own;                    // of the kind that a section is of
  std::vector<std::string> others;  // keys that only other kinds have; they need no further report
};

// Finds the kind of the section `node` and gives `choice.options` its defaults. Refuses keys of
// other kinds that do not hold the default they have there. Where `node` names no kind that there
// is, which reading the field reports, the keys of all kinds are `others`.
KeysOfKind take_kind(const KindChoice& choice, const ConfigNode& node, const std::string& section,
                     ConfigErrors& errors);

// Appends the keys of all kinds. A key that several kinds have in the same way stands there once.
void add_kind_schemas(const KindChoice& choice, std::vector<FieldSchema>& schemas);

// "kind text", "kinds text and self".
std::string of_kinds(const std::vector<std::string>& kinds);

}  // namespace linnet
