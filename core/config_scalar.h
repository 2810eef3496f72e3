// Strict reading of numbers and truth values from plain text, and the text that reads back the
// same.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace linnet {

// Each parser returns nothing and says in `why` what is wrong when `text` is not accepted.
// Numbers: optional sign, decimal digits, point, exponent. Refused: leading zeros (octal to some
// readers of YAML), hexadecimal, underscores, NaN and infinity, values that do not fit.

// "5", "-3", "1e4" and "2.0": whole numbers only.
std::optional<int64_t> parse_int(std::string_view text, std::string& why);
std::optional<double> parse_double(std::string_view text, std::string& why);
// "true" or "false" and nothing else.
std::optional<bool> parse_bool(std::string_view text, std::string& why);

// The shortest text that parse_double reads back to the same bits. Throws Error unless finite.
std::string format_double(double value);

// Whether YAML reads this plain text as nothing: "", "~", "null" and its capitalised forms.
bool is_null_text(std::string_view text);

// Whether the text can stand without quotes in block and flow YAML and means itself.
bool is_plain_text(std::string_view text);

}  // namespace linnet
