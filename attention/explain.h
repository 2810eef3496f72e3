// `linnet attention show` and the table of mechanisms: the contents of the registry, as JSON and
// text.
#pragma once

#include <string>

#include "attention/mechanism.h"
#include "core/json.h"

namespace linnet {

// Everything about one mechanism: equation, forms, traits, sources, presets, options, and for every
// form the parameters and the state with their shapes and the cost per token at max_length.
// `config` holds the mechanism's parameters and optionally width (256), heads (4) and max_length
// (1024). Throws UsageError where they do not fit.
JsonValue explain_mechanism(const Mechanism& mechanism, const ConfigNode& config);

// The same for a terminal.
std::string format_explanation(const JsonValue& explanation);

// A Markdown table of all mechanisms: the one in attention/README.md, which explains its columns.
std::string mechanism_table();

}  // namespace linnet
