// Tests of the `data` section: defaults, round trip, and settings that contradict each other.
#include "data/data_config.h"

#include <gmock/gmock.h>

#include "core/yaml.h"
#include "tests/data/temporary_folder.h"

namespace linnet {
namespace {

DataConfig parse(const std::string& yaml) {
  return parse_config<DataConfig>(parse_yaml(yaml, "recipe.yaml"));
}

TEST(DataConfig, ReadsASectionAndItsResolvedFormReadsBack) {
  for (const char* yaml :
       {"{kind: pg19, path: books, tokenizer: {kind: gpt2, path: vocab}, context: 8192}",
        "{kind: self, tokenizer: {eos: true}}",
        "{kind: text, train: [a.txt, 'b/*.txt'], test: [c.txt], cross_documents: true}",
        "{kind: listops, listops: {min_length: 10, max_length: 60}}",
        "{kind: wikitext, path: w, tokenizer: {kind: word, vocabulary_size: 100}}"}) {
    const DataConfig config = parse(yaml);
    const ConfigNode resolved = to_config_node(config);
    EXPECT_EQ(to_config_node(parse_config<DataConfig>(resolved)), resolved) << yaml;
  }
  EXPECT_EQ(parse("{kind: pg19, path: books, context: 8192}").context, 8192);
  EXPECT_TRUE(parse("{kind: wikitext, path: w}").crosses_documents());
  EXPECT_FALSE(parse("{kind: wikitext, path: w, cross_documents: false}").crosses_documents());
}

TEST(DataConfig, ContradictionsAreRefusedWithTheirPlace) {
  const std::pair<const char*, const char*> cases[] = {
      {"{kind: txt}", "unknown_name kind at recipe.yaml:1:8"},
      {"{kind: pg19}", "missing_key path at recipe.yaml:1:8"},
      {"{kind: pg19, path: p, train: [x]}", "conflict train at recipe.yaml:1:30"},
      {"{path: p, tokenizer: {path: v}}", "conflict tokenizer.path at recipe.yaml:1:29"},
      {"{path: p, tokenizer: {kind: gpt2}}", "missing_key tokenizer.path at recipe.yaml:1:29"},
      {"{path: p, tokenizer: {kind: word, eos: true}}",
       "conflict tokenizer.eos at recipe.yaml:1:40"},
      {"{path: p, tokenizer: {vocabulary_size: 9}}",
       "conflict tokenizer.vocabulary_size at recipe.yaml:1:40"},
      {"{kind: listops, tokenizer: {kind: word}}", "conflict tokenizer at recipe.yaml:1:28"},
      {"{path: p, listops: {seed: 2}}", "conflict listops at recipe.yaml:1:20"},
      {"{kind: listops, path: p, listops: {seed: 2}}", "conflict listops at recipe.yaml:1:35"},
      {"{kind: listops, listops: {min_length: 70, max_length: 60}}",
       "out_of_range listops.max_length at recipe.yaml:1:55"},
      {"{path: p, validation_fraction: 0.6, test_fraction: 0.5}",
       "out_of_range validation_fraction at recipe.yaml:1:32"},
      {"{path: p, context: 0}", "out_of_range context at recipe.yaml:1:20"},
  };
  for (const auto& [yaml, expected] : cases)
    EXPECT_EQ(test::causes_of<UsageError>([&yaml = yaml] { parse(yaml); }), expected) << yaml;
}

// As checkpoints of earlier versions hold it: with the keys of every kind.
constexpr const char* kRecorded = R"(
  path: ""
  train: []
  validation: []
  test: []
  validation_fraction: 0.05
  test_fraction: 0.05
  tokenizer:
    kind: byte
    path: ""
    vocabulary_size: 0
    eos: false
  lines: whole
  document_eos: true
  context: 24
  cross_documents: null
  cache: true
  listops:
    min_length: 501
    max_length: 1999
    max_depth: 10
    max_arguments: 10
    train_examples: 96000
    validation_examples: 2000
    test_examples: 2000
    seed: 1
    brackets: true
)";

TEST(DataConfig, SectionsOfEarlierVersionsAreRead) {
  for (const char* kind : {"text", "pg19", "wikitext", "self", "listops"}) {
    std::string recorded = concat("  kind: ", kind, kRecorded);
    recorded.replace(recorded.find("path: \"\""), 8, "path: books");
    const DataConfig config = parse(recorded);
    EXPECT_EQ(config.kind, kind);
    EXPECT_EQ(config.context, 24);
    EXPECT_EQ(to_config_node(config),
              to_config_node(parse(concat("{kind: ", kind, ", path: books, context: 24}"))));
  }
}

TEST(DataConfig, KeysOfAnotherKindAreRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {"{kind: pg19, path: p, validation_fraction: 0.2}",
       "conflict validation_fraction at recipe.yaml:1:44"},
      {"{kind: listops, lines: stripped}", "conflict lines at recipe.yaml:1:24"},
      {"{kind: self, listops: {brackets: false}}", "conflict listops at recipe.yaml:1:23"},
      // Also at the default that they have there.
      {"{kind: pg19, path: p, validation_fraction: 0.1}",
       "conflict validation_fraction at recipe.yaml:1:44"},
      {"{kind: self, listops: {brackets: true}}", "conflict listops at recipe.yaml:1:23"},
      {"{kind: listops, tokenizer: {kind: byte}}", "conflict tokenizer at recipe.yaml:1:28"},
  };
  for (const auto& [yaml, expected] : cases)
    EXPECT_EQ(test::causes_of<UsageError>([&yaml = yaml] { parse(yaml); }), expected) << yaml;
}

}  // namespace
}  // namespace linnet
