#include "data/pg19.h"

#include "core/error.h"
#include "core/files.h"

namespace linnet {
namespace {

TextSources find_pg19(const DataConfig& config) {
  require(is_directory(config.path), Cause{ErrorCode::not_found, "data.path", config.path},
          config.path, exists(config.path) ? " is a file" : " does not exist",
          "; kind pg19 needs a folder with train/, validation/ and test/");
  TextSources sources;
  sources.layout = exists(join_path(config.path, "metadata.csv"))
                       ? "PG-19 folders with metadata.csv"
                       : "PG-19 folders";
  read_split_folders(config.path, sources);
  require(sources.any(), Cause{ErrorCode::malformed, "data.path", config.path}, config.path,
          " does not have the PG-19 layout: no train/*.txt, validation/*.txt or test/*.txt");
  return sources;
}

Likeness likeness_of_pg19(const std::string& path) {
  const auto has = [&](Split split) { return exists(join_path(path, name_of(split))); };
  const bool like =
      is_directory(path) && has(Split::train) && (has(Split::validation) || has(Split::test));
  return like ? Likeness::folders : Likeness::none;
}

}  // namespace

DataKind pg19_kind() {
  return {.name = "pg19",
          .help = "books in train/, validation/ and test/, one .txt a book, as PG-19 has them",
          .options = KindOptions(TextEncoding()),
          .gives = TextData{.find = find_pg19, .one_stream = true},
          .likeness = likeness_of_pg19};
}

}  // namespace linnet
