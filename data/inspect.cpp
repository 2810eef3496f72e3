// Reports on data sets.
#include "data/inspect.h"

#include "core/error.h"
#include "core/files.h"
#include "data/classification.h"
#include "data/listops.h"
#include "data/text_dataset.h"

namespace linnet {
namespace {

DataReport report_on(const DataConfig& config, TextDataset& data) {
  DataReport report;
  report.path = config.path;
  report.kind = config.kind;
  report.layout = data.sources().layout;
  report.tokenizer = data.tokenizer()->kind();
  report.vocabulary_size = data.tokenizer()->vocabulary_size();
  for (const Split split : kSplits) {
    SplitReport& entry = report.splits.emplace_back();
    entry.name = name_of(split);
    entry.missing = data.sources().missing[static_cast<size_t>(split)];
    if (!data.has(split)) continue;
    const auto corpus = data.split(split);
    entry.documents = static_cast<int64_t>(corpus->documents.size());
    entry.bytes = corpus->bytes();
    entry.words = corpus->words();
    entry.tokens = corpus->size();
  }
  report.warnings = data.take_warnings();
  return report;
}

DataReport report_on(const DataConfig& config, const ClassificationDataset& data) {
  DataReport report;
  report.path = config.path;
  report.kind = config.kind;
  report.layout = data.layout;
  report.vocabulary_size = data.vocabulary_size;
  for (const Split split : kSplits) {
    SplitReport& entry = report.splits.emplace_back();
    entry.name = name_of(split);
    if (!data.has(split)) {
      entry.missing = "there is no such file";
      continue;
    }
    entry.documents = data.split(split)->size();
    entry.tokens = static_cast<int64_t>(data.split(split)->tokens.size());
  }
  return report;
}

// WikiText-2 and -103 come with these names too. Their first line with text is the title of an
// article, which tells them from other texts so named.
bool is_wikitext_txt(const std::string& path) {
  if (!exists(path) || is_directory(path)) return false;
  std::string start(4096, '\0');
  start.resize(File(path, OpenMode::read).read(start));
  const size_t first = start.find_first_not_of(" \n");
  const std::string line =
      first == std::string::npos ? "" : start.substr(first, start.find('\n', first) - first);
  return line.starts_with("= ") && line.ends_with(" = ");
}

}  // namespace

std::vector<DataKind> data_kinds() {
  return {
      {"text", "text files: one file, a folder, a pattern, or a list for each split"},
      {"pg19", "books in train/, validation/ and test/, one .txt a book, as PG-19 has them"},
      {"wikitext",
       "WikiText-2 or -103: wiki.{train,valid,test}.tokens or .raw, or {train,valid,test}.txt"},
      {"self", "the text files of a source checkout, split by file"},
      {"listops", "ListOps expressions of the Long Range Arena: its TSV files, or generated"},
  };
}

std::string detect_data_kind(const std::string& path) {
  require(exists(path), Cause{ErrorCode::not_found, "", path}, path, " does not exist");
  const auto has = [&](const char* name) { return exists(join_path(path, name)); };
  if (!is_directory(path)) return "text";
  for (const char* name : {"wiki.train", "wiki.valid", "wiki.test"})
    if (has((std::string(name) + ".tokens").c_str()) || has((std::string(name) + ".raw").c_str()))
      return "wikitext";
  for (const char* name : {"train.txt", "valid.txt", "test.txt"})
    if (is_wikitext_txt(join_path(path, name))) return "wikitext";
  if (has("basic_train.tsv") || has("basic_val.tsv") || has("basic_test.tsv")) return "listops";
  if (has("train") && (has("validation") || has("test"))) return "pg19";
  if (has(".git") || has("CMakeLists.txt")) return "self";
  return "text";
}

DataReport inspect_data(const DataConfig& config) {
  if (config.kind == "listops") return report_on(config, load_classification(config));
  DataConfig uncached = config;
  uncached.cache = false;
  TextDataset data(uncached);
  return report_on(config, data);
}

DataReport inspect_data(const std::string& path) {
  DataConfig config;
  config.kind = detect_data_kind(path);
  config.path = path;
  if (config.kind != "wikitext") return inspect_data(config);
  // Words are what WikiText's counts are in. Without the training file there is no vocabulary, and
  // bytes have to do; the report counts words in any case.
  config.tokenizer.kind = "word";
  if (find_text_sources(config).files(Split::train).empty()) config.tokenizer.kind = "byte";
  DataReport report = inspect_data(config);
  // Nobody chose that tokenizer: warnings of it say nothing.
  for (const std::string& warning : find_text_sources(config).warnings)
    std::erase(report.warnings, warning);
  return report;
}

DataReport prepare_data(const DataConfig& config, const std::string& folder) {
  const std::string target = folder.empty() ? token_cache_folder() : folder;
  require_usage(!target.empty(), Cause{ErrorCode::missing_key, "--out"},
                "say where prepared data go with --out: neither LINNET_CACHE nor HOME is set");
  if (config.kind == "listops") {
    const ClassificationDataset data = load_classification(config);
    DataReport report = report_on(config, data);
    create_directories(target);
    constexpr std::array<const char*, 3> kNames = {"basic_train.tsv", "basic_val.tsv",
                                                   "basic_test.tsv"};
    require_usage(config.listops.brackets, Cause{ErrorCode::conflict, "data.listops.brackets"},
                  "ListOps files keep their brackets: prepare them with listops.brackets true");
    for (const Split split : kSplits) {
      if (!data.has(split)) continue;
      report.written.push_back(join_path(target, kNames[static_cast<size_t>(split)]));
      write_listops_tsv(report.written.back(), *data.split(split));
    }
    return report;
  }
  DataConfig cached = config;
  cached.cache = true;
  TextDataset data(cached, nullptr, target);
  DataReport report = report_on(config, data);
  for (const Split split : kSplits) {
    if (!data.has(split)) continue;
    const std::string path =
        token_cache_path(target, cached, data.fingerprint(split), *data.tokenizer());
    require(exists(path), "the tokens of the ", name_of(split), " split could not be written to ",
            path);
    report.written.push_back(path);
  }
  return report;
}

}  // namespace linnet
