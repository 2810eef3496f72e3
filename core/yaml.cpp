// YAML text to value tree, through the events of yaml-cpp so that limits act while it reads.
#include "core/yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <sstream>
#include <unordered_map>

#include "core/files.h"
#include "core/utf8.h"

namespace linnet {
namespace {

constexpr Cause kMalformed{ErrorCode::malformed}, kTooLarge{ErrorCode::out_of_range};

// The text under its name; turns byte offsets into places.
class Source {
 public:
  Source(std::string_view source_text, const std::string& file_name)
      : text(source_text), file(std::make_shared<const std::string>(file_name)) {}

  // `offset` is a byte offset, `line` counts from 0. Columns count characters, not bytes; the last
  // answer is where the next count on the same line starts.
  Location location(size_t offset, int line) const {
    offset = std::min(offset, text.size());
    if (line != line_ || offset < offset_) {
      const size_t newline = offset == 0 ? std::string_view::npos : text.rfind('\n', offset - 1);
      line_ = line;
      offset_ = newline == std::string_view::npos ? 0 : newline + 1;
      column_ = 1;
    }
    for (; offset_ < offset; ++offset_) {
      if ((static_cast<unsigned char>(text[offset_]) & 0xC0) != 0x80) ++column_;
    }
    return {file, line + 1, column_};
  }

  Location location(const YAML::Mark& mark) const {
    if (mark.is_null()) return {file, 0, 0};
    return location(static_cast<size_t>(mark.pos), mark.line);
  }

  const std::string_view text;
  const std::shared_ptr<const std::string> file;

 private:
  mutable int line_ = -1;
  mutable int column_ = 1;
  mutable size_t offset_ = 0;
};

// Builds the tree from events and refuses what the subset leaves out.
class Builder : public YAML::EventHandler {
 public:
  explicit Builder(const Source& source) : source_(source) {}

  ConfigNode take_root() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1) {
      throw located_error(source_.location(mark), kMalformed,
                          "text after the end of the document; a recipe is one map");
    }
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const Location location = admit(mark, "", anchor);
    if (is_key()) throw located_error(location, kMalformed, "a key is missing before ':'");
    ConfigNode node;
    node.set_location(frames_.empty() || !frames_.back().is_map ? location
                                                                : frames_.back().key_location);
    finish(std::move(node));
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    throw located_error(source_.location(mark), kMalformed,
                        "YAML aliases (*name) are not accepted; write the value out");
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    const Location location = admit(mark, tag, anchor);
    const bool quoted = tag == "!";
    if (quoted) check_closing_quote(mark, location);
    check_value(value, location);
    if (is_key()) {
      start_entry(value, quoted, location);
      return;
    }
    ConfigNode node = ConfigNode::scalar(value, quoted);
    node.set_location(location);
    finish(std::move(node));
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, false);
  }
  void OnSequenceEnd() override { close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, true);
  }
  void OnMapEnd() override { close(); }

 private:
  // A map or list that is still open.
  struct Frame {
    bool is_map;
    bool has_key = false;
    Location location;
    std::string key;
    Location key_location;
    std::vector<ConfigNode> items;
    std::vector<ConfigEntry> entries;
    std::unordered_map<std::string, Location> places;  // of the keys so far
  };

  bool is_key() const {
    return !frames_.empty() && frames_.back().is_map && !frames_.back().has_key;
  }

  // Counts a node and refuses anchors and tags; returns its place.
  Location admit(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    Location location = source_.location(mark);
    if (anchor != 0) {
      throw located_error(location, kMalformed, "YAML anchors (&name) are not accepted; remove it");
    }
    const auto offset = static_cast<size_t>(mark.pos);
    const bool bang = offset < source_.text.size() && source_.text[offset] == '!';
    if (bang || !(tag.empty() || tag == "?" || tag == "!")) {
      throw located_error(location, kMalformed, "YAML tags (!name) are not accepted; remove it");
    }
    if (++nodes_ > YamlLimits::kNodes) {
      throw located_error(location, kTooLarge, "more than ", YamlLimits::kNodes,
                          " values; a recipe is smaller");
    }
    return location;
  }

  // Escapes and cut-off characters can make bytes that the text did not have.
  static void check_value(const std::string& value, const Location& location) {
    for (size_t i = 0; i < value.size();) {
      const size_t bytes = utf8_character_bytes(value, i);
      if (bytes == 0)
        throw located_error(location, kMalformed, "an escape in this text is not valid UTF-8");
      if (value[i] == '\0')
        throw located_error(location, kMalformed, "a NUL character is not accepted");
      i += bytes;
    }
  }

  // yaml-cpp takes the end of the file for a closing quote if a line end comes before it.
  void check_closing_quote(const YAML::Mark& mark, const Location& location) const {
    const std::string_view text = source_.text;
    size_t i = static_cast<size_t>(mark.pos);
    const char quote = i < text.size() ? text[i] : '\0';
    if (quote != '"' && quote != '\'') return;  // a block scalar
    for (++i; i < text.size(); ++i) {
      const bool escaped = quote == '"'
                               ? text[i] == '\\'
                               : text[i] == quote && i + 1 < text.size() && text[i + 1] == quote;
      if (escaped) {
        ++i;
      } else if (text[i] == quote) {
        return;
      }
    }
    throw located_error(location, kMalformed, "this quote is never closed");
  }

  void start_entry(const std::string& key, bool quoted, const Location& location) {
    Frame& frame = frames_.back();
    if (key == "<<" && !quoted) {
      throw located_error(location, kMalformed, "merge keys (<<) are not accepted; use extends:");
    }
    if (key.empty()) throw located_error(location, kMalformed, "a key cannot be empty");
    const auto [place, fresh] = frame.places.emplace(key, location);
    if (!fresh) {
      throw located_error(location, Cause{ErrorCode::repeated, key}, "duplicate key '", key,
                          "', first given at ", place->second.line, ":", place->second.column);
    }
    frame.key = key;
    frame.key_location = location;
    frame.has_key = true;
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, bool is_map) {
    const Location location = admit(mark, tag, anchor);
    if (is_key())
      throw located_error(location, kMalformed, "a key must be text, not a list or section");
    if (frames_.size() >= YamlLimits::kDepth) {
      throw located_error(location, kTooLarge, "nested deeper than ", YamlLimits::kDepth,
                          " levels");
    }
    Frame frame;
    frame.is_map = is_map;
    frame.location = location;
    frames_.push_back(std::move(frame));
  }

  void close() {
    Frame frame = std::move(frames_.back());
    frames_.pop_back();
    ConfigNode node = frame.is_map ? ConfigNode::map(std::move(frame.entries))
                                   : ConfigNode::sequence(std::move(frame.items));
    node.set_location(frame.location);
    finish(std::move(node));
  }

  void finish(ConfigNode node) {
    if (frames_.empty()) {
      root_ = std::move(node);
      return;
    }
    Frame& frame = frames_.back();
    if (!frame.is_map) {
      frame.items.push_back(std::move(node));
      return;
    }
    frame.entries.push_back({std::move(frame.key), frame.key_location, std::move(node)});
    frame.has_key = false;
  }

  const Source& source_;
  ConfigNode root_;
  std::vector<Frame> frames_;
  size_t nodes_ = 0;
  int documents_ = 0;
};

void check_characters(const Source& source) {
  const std::string_view text = source.text;
  int line = 0;
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_character_bytes(text, i);
    if (length == 0) {
      throw located_error(source.location(i, line), kMalformed,
                          "not valid UTF-8; save the file as UTF-8");
    }
    const auto c = static_cast<unsigned char>(text[i]);
    const bool line_end = c == '\n' || (c == '\r' && i + 1 < text.size() && text[i + 1] == '\n');
    if ((c < 0x20 && c != '\t' && !line_end) || c == 0x7F) {
      throw located_error(source.location(i, line), kMalformed, "control character ", int{c},
                          " is not accepted in text");
    }
    if (c == '\n') ++line;
    i += length;
  }
}

// Refuses line by line, before yaml-cpp sees the text: long lines and masses of flow values,
// which its lookahead keeps in memory all at once; tabs as indentation; directives; and further
// documents, which it would leave unread.
void check_lines(const Source& source) {
  bool empty_so_far = true;
  size_t separators = 0;
  int line = 0;
  for (size_t start = 0; start < source.text.size(); ++line) {
    const size_t end = std::min(source.text.find('\n', start), source.text.size());
    const std::string_view content = source.text.substr(start, end - start);
    const auto refuse = [&](size_t column, const auto&... parts) {
      throw located_error(source.location(start + column, line), kMalformed, parts...);
    };
    const auto refuse_size = [&](const auto&... parts) {
      throw located_error(source.location(start, line), kTooLarge, parts...);
    };
    if (content.size() > YamlLimits::kLineBytes) {
      refuse_size("a line longer than ", YamlLimits::kLineBytes, " bytes");
    }
    const size_t text_start = content.find_first_not_of(" \t\r");
    const bool blank = text_start == std::string_view::npos;
    if (!blank && content[text_start] != '#') {
      const size_t tab = content.find('\t');
      if (tab < text_start) refuse(tab, "a tab in the indentation; use spaces");
      const auto marks = [&](const char* mark) {
        return content.substr(0, 3) == mark &&
               (content.size() == 3 ||
                std::string_view(" \t\r").find(content[3]) != std::string_view::npos);
      };
      if (content[0] == '%') refuse(0, "YAML directives (%) are not accepted");
      if (marks("...") || (marks("---") && !empty_so_far)) {
        refuse(0, "a second document; a recipe file holds one");
      }
      empty_so_far = false;
      separators += std::count_if(content.begin(), content.end(),
                                  [](char c) { return c == ',' || c == '[' || c == '{'; });
      if (separators > YamlLimits::kNodes) {
        refuse_size("more than ", YamlLimits::kNodes, " values; a recipe is smaller");
      }
    }
    start = end + 1;
  }
}

}  // namespace

ConfigNode parse_yaml(std::string_view text, const std::string& file_name) {
  if (text.substr(0, 3) == "\xEF\xBB\xBF") text.remove_prefix(3);  // byte order mark
  const Source source(text, file_name);
  if (text.size() > YamlLimits::kFileBytes) {
    throw located_error({source.file}, kTooLarge, text.size(), " bytes of YAML; at most ",
                        YamlLimits::kFileBytes, " are read");
  }
  check_characters(source);
  check_lines(source);
  Builder builder(source);
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    parser.HandleNextDocument(builder);
    if (parser) parser.HandleNextDocument(builder);  // the builder refuses what is left over
  } catch (const UsageError&) {
    throw;
  } catch (const YAML::Exception& error) {
    const auto offset = static_cast<size_t>(error.mark.pos);
    if (offset < text.size() && text[offset] == '*') builder.OnAlias(error.mark, 0);
    throw located_error(source.location(error.mark), kMalformed, "not valid YAML: ", error.msg);
  } catch (const std::exception& error) {
    throw located_error({source.file, 0, 0}, kMalformed, "not valid YAML: ", error.what());
  }
  ConfigNode root = builder.take_root();
  if (root.is_null()) root.set_location({source.file, 1, 1});
  return root;
}

ConfigNode load_yaml(const std::string& path) {
  std::string text;
  try {
    text = read_file_or_pipe(path, YamlLimits::kFileBytes);
  } catch (const Error& error) {
    throw UsageError(error.cause(), error.what());
  }
  return parse_yaml(text, path);
}

}  // namespace linnet
