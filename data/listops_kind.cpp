// ListOps as a kind of data.
#include <algorithm>

#include "core/error.h"
#include "core/files.h"
#include "data/listops.h"

namespace linnet {
namespace {

const ListopsConfig& generator_of(const DataConfig& config) {
  return config.options.as<ListopsOptions>().listops;
}

void check_listops(const DataConfig& config, const ConfigNode& at) {
  if (config.path.empty()) return;
  ListopsConfig unset;
  unset.brackets = generator_of(config).brackets;
  if (to_config_node(generator_of(config)) == to_config_node(unset)) return;
  throw located_error(at.location_of("listops"),
                      "data.listops sets up the generator of kind listops; with data.path, files "
                      "are read and only brackets counts");
}

// What says how to read files stays.
void drop_generator(ConfigNode& section) {
  ConfigNode* generator = section.find("listops");
  if (generator == nullptr || !generator->is_map()) return;
  for (const std::string& key : generator->keys()) {
    if (key != "brackets") generator->erase(key);
  }
}

ClassificationDataset load(const DataConfig& config) {
  const ListopsConfig& generator = generator_of(config);
  return config.path.empty() ? generate_listops(generator)
                             : read_listops(config.path, generator.brackets);
}

std::vector<std::string> write(const DataConfig& config, const ClassificationDataset& data,
                               const std::string& folder) {
  require_usage(generator_of(config).brackets, Cause{ErrorCode::conflict, "data.listops.brackets"},
                "ListOps files keep their brackets: prepare them with listops.brackets true");
  create_directories(folder);
  std::vector<std::string> written;
  for (const Split split : kSplits) {
    if (!data.has(split)) continue;
    written.push_back(join_path(folder, listops_file(split)));
    write_listops_tsv(written.back(), *data.split(split));
  }
  return written;
}

Likeness likeness_of_listops(const std::string& path) {
  const bool like = std::any_of(kSplits.begin(), kSplits.end(), [&](Split split) {
    return exists(join_path(path, listops_file(split)));
  });
  return like ? Likeness::files : Likeness::none;
}

}  // namespace

DataKind listops_kind() {
  return {.name = "listops",
          .help = "ListOps expressions of the Long Range Arena: its TSV files, or generated",
          .options = KindOptions(ListopsOptions()),
          .gives = LabelledData{.load = load, .write = write},
          .likeness = likeness_of_listops,
          .without_path = "generated examples",
          .source_keys = {"listops"},
          .drop_generator = drop_generator,
          .check = check_listops};
}

void ListopsOptions::describe(ConfigDescription<ListopsOptions>& d) {
  d.nested("listops", &ListopsOptions::listops, "the generator, whose place files in path take");
  d.group<LengthsOption>();
}

void ListopsConfig::describe(ConfigDescription<ListopsConfig>& d) {
  // Longer ones fit no context.
  constexpr double kLongest = 1 << 24, kMaxExamples = 10'000'000;
  d.field("min_length", &ListopsConfig::min_length, "shortest expression kept")
      .range(1, kLongest)
      .unit("symbols");
  d.field("max_length", &ListopsConfig::max_length, "longest expression kept")
      .range(1, kLongest)
      .unit("symbols");
  d.field("max_depth", &ListopsConfig::max_depth, "depth at which only digits remain").range(1, 64);
  d.field("max_arguments", &ListopsConfig::max_arguments, "arguments of an operator: 2 to this")
      .range(2, 1000);
  d.field("train_examples", &ListopsConfig::train_examples, "size of the training split")
      .range(1, kMaxExamples);
  d.field("validation_examples", &ListopsConfig::validation_examples, "size of validation")
      .range(1, kMaxExamples);
  d.field("test_examples", &ListopsConfig::test_examples, "size of the test split")
      .range(1, kMaxExamples);
  d.field("seed", &ListopsConfig::seed, "all examples depend on it").at_least(0);
  d.field("brackets", &ListopsConfig::brackets,
          "false drops the closing brackets, as pipelines before March 2021 did: the structure is "
          "lost");
}

void ListopsConfig::validate(const ConfigNode& at) const {
  if (max_length < min_length)
    throw located_error(at.location_of("max_length"), Cause{ErrorCode::out_of_range},
                        "max_length (", max_length, ") must not be below min_length (", min_length,
                        ")");
}

}  // namespace linnet
