// Value tree to YAML text.
#include "core/config_scalar.h"
#include "core/utf8.h"
#include "core/yaml.h"

namespace linnet {
namespace {

constexpr size_t kLineWidth = 90;  // lists of scalars that fit are written on one line

std::string quote(const std::string& text) {
  const size_t invalid = find_invalid_utf8(text);
  require(invalid == std::string::npos, "to_yaml: a text is not UTF-8 at its byte ", invalid,
          "; YAML cannot hold it");
  static const char kHex[] = "0123456789abcdef";
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (c == '\n') {
      quoted += "\\n";
    } else if (c == '\t') {
      quoted += "\\t";
    } else if (byte < 0x20 || byte == 0x7F) {
      quoted += "\\x";
      quoted += kHex[byte >> 4];
      quoted += kHex[byte & 15];
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

std::string scalar_text(const ConfigNode& node) {
  if (node.is_null()) return "null";
  return node.quoted() || !is_plain_text(node.raw()) ? quote(node.raw()) : node.raw();
}

std::string key_text(const std::string& key) {
  return is_plain_text(key) ? key : quote(key);
}

// The one-line form of scalars, empty collections and short lists of scalars; "" for the rest.
std::string one_line(const ConfigNode& node) {
  if (node.is_null() || node.is_scalar()) return scalar_text(node);
  if (node.is_map()) return node.entries().empty() ? "{}" : "";
  std::string text = "[";
  for (const ConfigNode& item : node.items()) {
    if (!item.is_null() && !item.is_scalar()) return "";
    if (text.size() > 1) text += ", ";
    text += scalar_text(item);
    if (text.size() > kLineWidth) return "";
  }
  return text + "]";
}

void write_block(const ConfigNode& node, const std::string& indent, std::string& out);

// `start` is what stands before the value: "key:" or "-".
void write_value(const std::string& start, const ConfigNode& value, const std::string& indent,
                 std::string& out) {
  out += indent;
  out += start;
  const std::string line = one_line(value);
  if (!line.empty()) {
    out += ' ';
    out += line;
    out += '\n';
    return;
  }
  out += '\n';
  write_block(value, indent + "  ", out);
}

void write_block(const ConfigNode& node, const std::string& indent, std::string& out) {
  if (node.is_map()) {
    for (const ConfigEntry& entry : node.entries()) {
      write_value(key_text(entry.key) + ":", entry.value, indent, out);
    }
  } else {
    for (const ConfigNode& item : node.items()) write_value("-", item, indent, out);
  }
}

}  // namespace

std::string to_yaml(const ConfigNode& node) {
  const std::string line = one_line(node);
  if (!line.empty()) return line + "\n";
  std::string out;
  write_block(node, "", out);
  return out;
}

}  // namespace linnet
