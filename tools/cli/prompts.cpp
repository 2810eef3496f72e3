#include "tools/cli/prompts.h"

#include "core/files.h"
#include "core/utf8.h"
#include "data/lines.h"

namespace linnet::cli {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{1} << 30;

std::string read_text_file(const std::string& path) {
  return of_argument("", [&path] {
    const uint64_t bytes = file_bytes(path);
    require_usage(bytes <= kMaxBytes, Cause{ErrorCode::out_of_range, "", path}, path, " has ",
                  bytes, " bytes; at most 1 GiB are read as prompts");
    return read_file(path);
  });
}

Prompt parse_prompt(std::string_view line, const std::string& place) {
  Prompt prompt;
  bool found = false;
  const JsonValue object = of_argument("", [&] { return parse_json(line, place); });
  require_usage(object.is_object(), Cause{ErrorCode::malformed, "", place}, place,
                ": expected an object with \"prompt\"");
  for (const auto& [key, value] : object.members()) {
    if (key == "prompt") {
      require_usage(value.is_text(), Cause{ErrorCode::wrong_type, "prompt", place}, place,
                    ": \"prompt\" must be text");
      prompt.text = value.text();
      found = true;
    } else if (key == "id") {
      prompt.id = value;
    } else {
      throw UsageError({ErrorCode::unknown_key, key, place},
                       concat(place, ": nothing reads \"", key,
                              "\"; a prompt has \"prompt\" and, "
                              "if wanted, \"id\""));
    }
  }
  require_usage(found, Cause{ErrorCode::missing_key, "prompt", place}, place,
                ": the object has no \"prompt\"");
  return prompt;
}

}  // namespace

std::vector<Prompt> read_prompts(const std::string& path) {
  const std::string text = read_text_file(path);
  std::vector<Prompt> prompts;
  TextLines lines(without_byte_order_mark(text));
  while (lines.next()) {
    if (lines.line().empty()) continue;
    const std::string place = concat(path, ":", lines.number());
    require_usage(find_invalid_utf8(lines.line()) == std::string::npos,
                  Cause{ErrorCode::malformed, "", place}, place, ": is not valid UTF-8 at byte ",
                  find_invalid_utf8(lines.line()));
    Prompt prompt = path.ends_with(".jsonl") ? parse_prompt(lines.line(), place)
                                             : Prompt{.text = std::string(lines.line())};
    prompt.line = lines.number();
    prompt.place = place;
    prompts.push_back(std::move(prompt));
  }
  require_usage(!prompts.empty(), Cause{ErrorCode::out_of_range, "--prompts", path}, path,
                " has no prompts");
  return prompts;
}

std::string read_prompt(const std::string& path) {
  std::string text = read_text_file(path);
  const size_t invalid = find_invalid_utf8(text);
  require_usage(invalid == std::string::npos, Cause{ErrorCode::malformed, "", path}, path,
                " is not valid UTF-8 at its byte ", invalid);
  return text;
}

}  // namespace linnet::cli
