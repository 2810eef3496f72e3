// Fields of `data.tokenizer`, and the checks across them.
#include "data/tokenizer_config.h"

#include "data/tokenizer_kinds.h"

namespace linnet {

void TokenizerConfig::describe(ConfigDescription<TokenizerConfig>& d) {
  std::string kinds;
  for (const TokenizerKind& each : tokenizer_kinds())
    kinds += concat(kinds.empty() ? "" : "; ", each.name, ": ", each.help);
  d.field("kind", &TokenizerConfig::kind, kinds).choices(tokenizer_kind_names());
  d.field("path", &TokenizerConfig::path, tokenizer_paths_text());
  d.field("vocabulary_size", &TokenizerConfig::vocabulary_size,
          "word: keep at most this many entries when building; 0 keeps all")
      .at_least(0);
  d.field("eos", &TokenizerConfig::eos, "byte: add an end-of-text id (256)");
  d.field("lowercase", &TokenizerConfig::lowercase,
          "wordpiece: lower case and no accents, for uncased vocabularies");
}

void TokenizerConfig::validate(const ConfigNode& at) const {
  using Path = TokenizerKind::Path;
  const TokenizerKind* found = find_tokenizer_kind(kind);
  if (found == nullptr) return;  // already said
  if (found->path == Path::none && !path.empty())
    throw located_error(at.location_of("path"), "the ", kind,
                        " tokenizer reads no file: remove path");
  if (found->path == Path::required && path.empty())
    throw located_error(at.location_of("kind"), Cause{ErrorCode::missing_key, "path"}, "the ", kind,
                        " tokenizer needs path: ", found->path_help);
  if (kind != "byte" && eos)
    throw located_error(at.location_of("eos"), "eos belongs to the byte tokenizer; the ", kind,
                        " tokenizer has one in its vocabulary");
  if (kind != "wordpiece" && !lowercase)
    throw located_error(at.location_of("lowercase"),
                        "lowercase belongs to the wordpiece tokenizer: remove it");
  if (vocabulary_size != 0 && (kind != "word" || !path.empty()))
    throw located_error(at.location_of("vocabulary_size"),
                        "vocabulary_size limits a word vocabulary that is built from the training "
                        "split; it has no meaning here");
}

}  // namespace linnet
