// `linnet attention show` and the table of mechanisms: the contents of the registry, as JSON and
// text.
#pragma once

#include <optional>
#include <string>

#include "attention/mechanism.h"
#include "core/json.h"

namespace linnet {

// Everything about one mechanism: equation, forms, traits, sources, presets, options, and for every
// form the parameters and the state with their shapes and the cost per token at max_length.
// `config` holds the mechanism's parameters and optionally width (256), heads (4), max_length
// (1024) and the other keys of mixer_keys.h. Throws UsageError where they do not fit.
// Draws, choices and states are those of a call for `tokens` tokens, 1 to max_length (default: two
// chunks, which is twice the longest chunk, group, block or window, and at least 32).
JsonValue explain_mechanism(const Mechanism& mechanism, const ConfigNode& config,
                            std::optional<int64_t> tokens = std::nullopt);

// The same for a terminal.
std::string format_explanation(const JsonValue& explanation);

// A Markdown table of all mechanisms: the one in attention/README.md, which explains its columns.
std::string mechanism_table();

}  // namespace linnet
