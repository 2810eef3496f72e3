// Fields that all kinds of the `data` section share, and the checks across them.
#include "data/data_config.h"

#include "data/registry.h"

namespace linnet {
namespace {

// Keys of other kinds are taken from a section that an earlier version recorded, which has those of
// every kind: no other has these two.
bool is_of_earlier_version(const ConfigNode& section) {
  return section.contains("listops") && section.contains("document_eos");
}

}  // namespace

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
  if (!is_of_earlier_version(at)) {
    const ConfigNode own = to_config_node(*this);
    for (const ConfigEntry& given : at.entries()) {
      if (!own.contains(given.key))
        throw located_error(given.value.location(), Cause{ErrorCode::conflict, given.key}, "'data.",
                            given.key, "' belongs to other kinds of data than ", kind,
                            "; remove it, or change 'data.kind'");
    }
  }
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
