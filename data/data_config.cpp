// Fields of the `data` section, and the checks across them.
#include "data/data_config.h"

namespace linnet {
namespace {

template <typename T>
bool same(const T& a, const T& b) {
  return to_config_node(a) == to_config_node(b);
}

}  // namespace

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

void DataConfig::describe(ConfigDescription<DataConfig>& d) {
  d.choice("kind", &DataConfig::kind, {"text", "pg19", "wikitext", "self", "listops"},
           "layout of the data, see `linnet data list`");
  d.field("path", &DataConfig::path, "file, folder or pattern; self: the root of the checkout");
  d.list("train", &DataConfig::train, "text: files or patterns of the training split");
  d.list("validation", &DataConfig::validation, "text: files or patterns of validation");
  d.list("test", &DataConfig::test, "text: files or patterns of the test split");
  d.field("validation_fraction", &DataConfig::validation_fraction,
          "text, self: share of the files that an automatic split gives to validation")
      .above(0)
      .below(1);
  d.field("test_fraction", &DataConfig::test_fraction, "the same for the test split")
      .above(0)
      .below(1);
  d.nested("tokenizer", &DataConfig::tokenizer, "how text becomes ids");
  d.choice("lines", &DataConfig::lines, {"whole", "stripped"},
           "whole: documents as they are; stripped: each line stripped, encoded alone, then eos");
  d.field("document_eos", &DataConfig::document_eos,
          "end each document with the tokenizer's eos, if it has one");
  d.field("context", &DataConfig::context, "length of a training window")
      .range(1, 1 << 24)
      .unit("tokens");
  d.optional("cross_documents", &DataConfig::cross_documents,
             "cut one stream of all documents (default of pg19 and wikitext) instead of keeping "
             "attention and state inside each");
  d.field("cache", &DataConfig::cache, "keep tokens in $LINNET_CACHE or ~/.cache/linnet");
  d.nested("listops", &DataConfig::listops,
           "the generator of kind listops, whose place files in path take");
}

void DataConfig::validate(const ConfigNode& at) const {
  const bool lists = !train.empty() || !validation.empty() || !test.empty();
  if (lists && kind != "text")
    throw located_error(at.location(), Cause{ErrorCode::conflict, "kind"},
                        "train, validation and test lists belong to kind text, not ", kind);
  if (path.empty() && !lists && kind != "self" && kind != "listops")
    throw located_error(at.location_of("kind"), Cause{ErrorCode::missing_key, "path"}, "kind ",
                        kind, " needs data.path");
  if (kind == "listops" && !same(tokenizer, TokenizerConfig{}))
    throw located_error(at.location_of("tokenizer"),
                        "kind listops has symbols of its own: remove "
                        "data.tokenizer");
  ListopsConfig generator;
  if (kind == "listops" && !path.empty()) generator.brackets = listops.brackets;
  if ((kind != "listops" || !path.empty()) && !same(listops, generator))
    throw located_error(at.location_of("listops"),
                        "data.listops sets up the generator of kind "
                        "listops; ",
                        kind == "listops"
                            ? "with data.path, files are read and only brackets counts"
                            : "it has no meaning here");
  if (validation_fraction + test_fraction >= 1)
    throw located_error(at.location_of("validation_fraction"), Cause{ErrorCode::out_of_range},
                        "validation_fraction and test_fraction leave nothing for training");
}

bool DataConfig::crosses_documents() const {
  return cross_documents.value_or(kind == "pg19" || kind == "wikitext");
}

}  // namespace linnet
