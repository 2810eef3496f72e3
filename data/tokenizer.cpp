// Shared by all tokenizers: checks, serialisation, and the choice by kind.
#include "data/tokenizer.h"

#include <algorithm>

#include "core/echo.h"
#include "core/error.h"
#include "core/hash.h"
#include "data/bpe_tokenizer.h"
#include "data/byte_tokenizer.h"
#include "data/word_tokenizer.h"

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

std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerConfig& config) {
  if (config.kind == "byte") return make_byte_tokenizer(config.eos);
  if (config.kind == "word") {
    require_usage(!config.path.empty(), Cause{ErrorCode::missing_key, "data.tokenizer.path"},
                  "a word tokenizer needs tokenizer.path (a vocabulary file, one word a line) or a "
                  "training text to build it from");
    return load_word_tokenizer(config.path);
  }
  if (config.kind == "gpt2") {
    require_usage(!config.path.empty(), Cause{ErrorCode::missing_key, "data.tokenizer.path"},
                  "the gpt2 tokenizer needs tokenizer.path: a folder with encoder.json and "
                  "vocab.bpe (or vocab.json and merges.txt)");
    return load_bpe_tokenizer(config.path);
  }
  throw UsageError(
      {ErrorCode::unknown_name, "data.tokenizer.kind"},
      concat("unknown tokenizer kind '", config.kind, "'; the kinds are byte, word and gpt2"));
}

std::unique_ptr<Tokenizer> tokenizer_from_blob(std::string_view blob, std::string_view what) {
  const size_t line_end = blob.find('\n');
  require(blob.starts_with(kBlobHeader) && line_end != std::string_view::npos,
          Cause{ErrorCode::malformed, "", what}, what,
          ": expected a tokenizer saved by this version of linnet, found something else");
  const std::string_view kind = blob.substr(kBlobHeader.size(), line_end - kBlobHeader.size());
  const std::string_view payload = blob.substr(line_end + 1);
  if (kind == "byte") return byte_tokenizer_from_payload(payload, what);
  if (kind == "word") return word_tokenizer_from_payload(payload, what);
  if (kind == "gpt2") return bpe_tokenizer_from_payload(payload, what);
  throw Error({ErrorCode::malformed, "", what},
              concat(what, ": holds a tokenizer of the unknown kind '", shortened(kind, 40), "'"));
}

}  // namespace linnet
