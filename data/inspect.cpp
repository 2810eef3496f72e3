// Reports on data sets.
#include "data/inspect.h"

#include <algorithm>

#include "core/error.h"
#include "core/files.h"
#include "data/archive.h"
#include "data/classification.h"
#include "data/registry.h"
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
    const SplitCounts counts = data.counts(split);
    entry.documents = counts.documents;
    entry.bytes = counts.bytes;
    entry.words = counts.words;
    entry.tokens = counts.tokens;
  }
  report.warnings = data.take_warnings();
  return report;
}

DataReport report_on(const DataConfig& config, const ClassificationDataset& data) {
  DataReport report;
  report.path = config.path;
  report.kind = config.kind;
  report.labelled = true;
  report.layout = data.layout;
  report.tokenizer = data.tokenizer != nullptr ? data.tokenizer->kind() : "";
  report.classes = data.class_names;
  if (report.classes.empty() && !data.regression) {
    for (int32_t i = 0; i < data.classes; ++i) report.classes.push_back(std::to_string(i));
  }
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
    const std::vector<int32_t>& labels = data.split(split)->labels;
    if (data.regression || std::count(labels.begin(), labels.end(), kUnlabelled) > 0) continue;
    entry.of_class.resize(report.classes.size());
    for (const int32_t label : labels) ++entry.of_class[static_cast<size_t>(label)];
  }
  report.warnings = data.notes;
  return report;
}

}  // namespace

DataReport inspect_data(const DataConfig& config) {
  if (gives_labels(config)) return report_on(config, load_classification(config));
  DataConfig uncached = config;
  uncached.cache = false;
  TextDataset data(uncached);
  return report_on(config, data);
}

DataReport inspect_data(const std::string& path) {
  DataConfig config(detect_data_kind(unpacked(path, token_cache_folder())), path);
  const TextData* texts = find_data_kind(config.kind).texts();
  if (texts == nullptr || !texts->inspect_with) return inspect_data(config);
  texts->inspect_with(config);
  DataReport report = inspect_data(config);
  // Nobody chose those options: warnings of them say nothing.
  for (const std::string& warning : find_text_sources(config).warnings)
    std::erase(report.warnings, warning);
  return report;
}

DataReport prepare_data(const DataConfig& config, const std::string& folder) {
  const std::string target = folder.empty() ? token_cache_folder() : folder;
  require_usage(!target.empty(), Cause{ErrorCode::missing_key, "--out"},
                "say where prepared data go with --out: neither LINNET_CACHE nor HOME is set");
  if (const LabelledData* examples = find_data_kind(config.kind).examples()) {
    DataConfig local = config;
    local.path = unpacked(config.path, target);
    const bool archive = local.path != config.path;
    require_usage(archive || examples->write != nullptr, Cause{ErrorCode::conflict, "KIND"},
                  "there is nothing to prepare for kind ", config.kind,
                  ": training reads its files as they are");
    const ClassificationDataset data = load_classification(local);
    DataReport report = report_on(config, data);
    report.written = examples->write != nullptr ? examples->write(config, data, target)
                                                : std::vector<std::string>{local.path};
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
