// Fields that all kinds of the `data` section share, and the checks across them.
#include "data/data_config.h"

#include "data/registry.h"

namespace linnet {

void TokenizerConfig::describe(ConfigDescription<TokenizerConfig>& d) {
  d.choice("kind", &TokenizerConfig::kind, {"byte", "word", "gpt2"},
           "bytes, white-space separated words, or GPT-2 byte-pair encoding");
  d.field("path", &TokenizerConfig::path,
          "word: vocabulary file (empty: built from the training split); gpt2: folder with "
          "encoder.json and vocab.bpe");
  d.field("vocabulary_size", &TokenizerConfig::vocabulary_size,
          "word: keep at most this many entries when building; 0 keeps all")
      .at_least(0);
  d.field("eos", &TokenizerConfig::eos, "byte: add an end-of-text id (256)");
}

void TokenizerConfig::validate(const ConfigNode& at) const {
  if (kind == "byte" && !path.empty())
    throw located_error(at.location_of("path"), "the byte tokenizer reads no file: remove path");
  if (kind == "gpt2" && path.empty())
    throw located_error(at.location_of("kind"), Cause{ErrorCode::missing_key, "path"},
                        "the gpt2 tokenizer needs path: the folder with "
                        "encoder.json and vocab.bpe");
  if (kind != "byte" && eos)
    throw located_error(at.location_of("eos"), "eos belongs to the byte tokenizer; the ", kind,
                        " tokenizer has one in its vocabulary");
  if (vocabulary_size != 0 && (kind != "word" || !path.empty()))
    throw located_error(at.location_of("vocabulary_size"),
                        "vocabulary_size limits a word vocabulary that is built from the training "
                        "split; it has no meaning here");
}

DataConfig::DataConfig(std::string_view kind, std::string path)
    : kind(kind), path(std::move(path)), options(find_data_kind(kind).options) {}

void DataConfig::describe(ConfigDescription<DataConfig>& d) {
  std::vector<SectionKind> kinds;
  for (const DataKind& kind : data_kinds()) kinds.push_back({kind.name, kind.options});
  d.kinds("kind", &DataConfig::kind, &DataConfig::options, std::move(kinds),
          "layout of the data, see `linnet data list`");
  d.field("path", &DataConfig::path, concat("file, folder or pattern", paths_left_out()));
  d.field("context", &DataConfig::context, "length of a training window")
      .range(1, 1 << 24)
      .unit("tokens");
  d.field("cache", &DataConfig::cache, "keep tokens in $LINNET_CACHE or ~/.cache/linnet");
}

void DataConfig::validate(const ConfigNode& at) const {
  const DataKind& entry = find_data_kind(kind);
  const FileLists* lists = options.find<FileLists>();
  if (path.empty() && entry.without_path.empty() && (lists == nullptr || lists->empty()))
    throw located_error(at.location_of("kind"), Cause{ErrorCode::missing_key, "path"}, "kind ",
                        kind, " needs data.path");
  if (entry.check) entry.check(*this, at);
}

bool DataConfig::crosses_documents() const {
  const TextData* texts = find_data_kind(kind).texts();
  return text().cross_documents.value_or(texts != nullptr && texts->one_stream);
}

}  // namespace linnet
