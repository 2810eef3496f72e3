// Strict reading of numbers and truth values.
#include "core/config_scalar.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace linnet {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// The parts of a decimal number: digits without the point, and the power of ten that they carry.
struct Decimal {
  bool negative = false;
  std::string digits;
  int64_t exponent = 0;
};

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

// Why a text that starts like a number is not one of ours.
std::string explain(std::string_view text) {
  const std::string word = lower(text);
  const std::string_view bare =
      !word.empty() && (word[0] == '-' || word[0] == '+') ? std::string_view(word).substr(1) : word;
  if (bare == "nan" || bare == ".nan" || bare == "inf" || bare == ".inf" || bare == "infinity") {
    return "NaN and infinity are not accepted";
  }
  if (bare.size() > 1 && bare[0] == '0' && (bare[1] == 'x' || bare[1] == 'o' || bare[1] == 'b')) {
    return "write it in decimal";
  }
  if (!bare.empty() && is_digit(bare[0])) {
    if (bare.find('_') != std::string_view::npos) return "write it without '_'";
    if (bare.find(',') != std::string_view::npos) return "write it without ','";
  }
  return "";
}

std::optional<Decimal> parse_decimal(std::string_view text, std::string& why) {
  Decimal number;
  size_t i = 0;
  if (i < text.size() && (text[i] == '+' || text[i] == '-')) number.negative = text[i++] == '-';
  const size_t whole_start = i;
  while (i < text.size() && is_digit(text[i])) number.digits += text[i++];
  const size_t whole_digits = i - whole_start;
  if (i < text.size() && text[i] == '.') {
    ++i;
    while (i < text.size() && is_digit(text[i])) {
      number.digits += text[i++];
      --number.exponent;
    }
  }
  bool sound = !number.digits.empty();
  if (sound && i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    bool negative = false;
    if (i < text.size() && (text[i] == '+' || text[i] == '-')) negative = text[i++] == '-';
    sound = i < text.size();
    int64_t exponent = 0;
    while (i < text.size() && is_digit(text[i])) {
      exponent = std::min<int64_t>(exponent * 10 + (text[i++] - '0'), 1000000);
    }
    number.exponent += negative ? -exponent : exponent;
  }
  if (!sound || i != text.size()) {
    why = explain(text);
    return std::nullopt;
  }
  if (whole_digits > 1 && text[whole_start] == '0') {
    why = "a leading zero is ambiguous (octal to some readers)";
    return std::nullopt;
  }
  return number;
}

}  // namespace

std::optional<int64_t> parse_int(std::string_view text, std::string& why) {
  std::optional<Decimal> number = parse_decimal(text, why);
  if (!number) return std::nullopt;
  std::string& digits = number->digits;
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  if (digits.empty()) return 0;
  while (digits.back() == '0' && number->exponent < 0) {
    digits.pop_back();
    ++number->exponent;
  }
  if (number->exponent < 0) {
    why = "it has a fraction";
    return std::nullopt;
  }
  int64_t value = 0;
  bool fits = static_cast<int64_t>(digits.size()) + number->exponent <= 19;
  if (fits) {
    digits.append(static_cast<size_t>(number->exponent), '0');
    if (number->negative) digits.insert(digits.begin(), '-');
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    fits = result.ec == std::errc();
  }
  if (!fits) {
    why = "it does not fit in 64 bits";
    return std::nullopt;
  }
  return value;
}

std::optional<double> parse_double(std::string_view text, std::string& why) {
  const std::optional<Decimal> number = parse_decimal(text, why);
  if (!number) return std::nullopt;
  if (text[0] == '+') text.remove_prefix(1);  // from_chars does not know '+'
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool zero = number->digits.find_first_not_of('0') == std::string::npos;
  if (zero) return number->negative ? -0.0 : 0.0;
  if (result.ec != std::errc() || !std::isfinite(value) || value == 0) {
    why = "it does not fit in a 64-bit floating-point number";
    return std::nullopt;
  }
  return value;
}

std::optional<bool> parse_bool(std::string_view text, std::string& why) {
  if (text == "true") return true;
  if (text == "false") return false;
  const std::string word = lower(text);
  if (word == "true" || word == "yes" || word == "on" || word == "y" || word == "1") {
    why = "write true";
  } else if (word == "false" || word == "no" || word == "off" || word == "n" || word == "0") {
    why = "write false";
  }
  return std::nullopt;
}

std::string format_double(double value) {
  require(std::isfinite(value), "format_double: a recipe cannot hold ", value);
  char buffer[64];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value);
  std::string text(buffer, result.ptr);
  // "5e-04" is written 5e-4.
  const size_t e = text.find('e');
  if (e != std::string::npos) {
    if (text[e + 1] == '+') text.erase(e + 1, 1);
    const size_t first = text[e + 1] == '-' ? e + 2 : e + 1;
    while (first + 1 < text.size() && text[first] == '0') text.erase(first, 1);
  }
  return text;
}

bool is_null_text(std::string_view text) {
  return text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL";
}

bool is_plain_text(std::string_view text) {
  if (is_null_text(text) || text == "<<") return false;
  const char first = text.front();
  if (!is_letter(first) && !is_digit(first) && first != '_' && first != '/' && first != '.' &&
      first != '+' && first != '-') {
    return false;
  }
  // "-", "---" and "..." mark structure; "-5" and "./data" do not.
  if ((first == '-' || first == '+' || first == '.') &&
      (text.size() == 1 || text[1] == first || text[1] == ' ')) {
    return text.substr(0, 3) == "../";
  }
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (is_letter(c) || is_digit(c) || c == '_' || c == '.' || c == '/' || c == '+' || c == '-' ||
        c == '(' || c == ')' || c == '=' || c == '^' || c == '*') {
      continue;
    }
    const bool inside = i > 0 && i + 1 < text.size();
    if (c == ' ' && inside && text[i + 1] != ' ') continue;
    if (c == ';' && inside) continue;
    return false;
  }
  return true;
}

}  // namespace linnet
