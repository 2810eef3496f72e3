// Shared by all tokenizers: checks, serialisation, and the choice by kind.
#include "data/tokenizer.h"

#include "core/echo.h"
#include "core/error.h"
#include "core/hash.h"
#include "data/tokenizer_kinds.h"

namespace linnet {
namespace {

constexpr std::string_view kBlobHeader = "linnet tokenizer 1 ";

}  // namespace

std::vector<int32_t> Tokenizer::encode(std::string_view text, UnknownWords* unknown) const {
  std::vector<int32_t> ids;
  encode_impl(text, ids, unknown);
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) {
    require(id >= 0 && id < vocabulary_size(), Cause{ErrorCode::out_of_range}, "cannot decode id ",
            id, ": the ", kind(), " tokenizer has ids 0 to ", vocabulary_size() - 1);
    append_bytes(id, text);
  }
  return text;
}

std::string Tokenizer::serialise() const {
  std::string blob(kBlobHeader);
  return blob.append(kind()).append("\n").append(payload());
}

uint64_t Tokenizer::fingerprint() const {
  return hash64(serialise());
}

SpecialIds Tokenizer::special_ids() const {
  return {.eos = eos_id()};
}

int32_t Tokenizer::special_id(std::string_view name) const {
  const SpecialIds ids = special_ids();
  const std::pair<std::string_view, int32_t> named[] = {
      {"pad", ids.pad},   {"unk", ids.unk}, {"cls", ids.cls}, {"sep", ids.sep},
      {"mask", ids.mask}, {"bos", ids.bos}, {"eos", ids.eos}};
  for (const auto& [known, id] : named)
    if (known == name) return id;
  throw Error({ErrorCode::unknown_name, name},
              concat("no special id is called '", shortened(name, 40),
                     "'; the names are pad, unk, cls, sep, mask, bos and eos"));
}

std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerConfig& config) {
  const TokenizerKind* kind = find_tokenizer_kind(config.kind);
  require_usage(kind != nullptr, Cause{ErrorCode::unknown_name, "data.tokenizer.kind"},
                "unknown tokenizer kind '", config.kind, "'; the kinds are ",
                tokenizer_kinds_text());
  require_usage(kind->path == TokenizerKind::Path::none || !config.path.empty(),
                Cause{ErrorCode::missing_key, "data.tokenizer.path"}, "the ", kind->name,
                " tokenizer needs tokenizer.path: ", kind->path_help);
  return kind->load(config);
}

std::unique_ptr<Tokenizer> tokenizer_from_blob(std::string_view blob, std::string_view what) {
  const size_t line_end = blob.find('\n');
  require(blob.starts_with(kBlobHeader) && line_end != std::string_view::npos,
          Cause{ErrorCode::malformed, "", what}, what,
          ": expected a tokenizer saved by this version of linnet, found something else");
  const std::string_view kind = blob.substr(kBlobHeader.size(), line_end - kBlobHeader.size());
  const std::string_view payload = blob.substr(line_end + 1);
  if (const TokenizerKind* known = find_tokenizer_kind(kind))
    return known->from_payload(payload, what);
  throw Error({ErrorCode::malformed, "", what},
              concat(what, ": holds a tokenizer of the unknown kind '", shortened(kind, 40), "'"));
}

}  // namespace linnet
