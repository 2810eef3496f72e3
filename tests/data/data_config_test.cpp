// Tests of the `data` section: defaults, round trip, and settings that contradict each other.
#include "data/data_config.h"

#include <gmock/gmock.h>

#include "core/yaml.h"
#include "tests/data/temporary_folder.h"

namespace linnet {
namespace {

using testing::HasSubstr;

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
      {"{kind: txt}", "text"},
      {"{kind: pg19}", "needs data.path"},
      {"{kind: pg19, path: p, train: [x]}", "belong to kind text"},
      {"{path: p, tokenizer: {path: v}}", "reads no file"},
      {"{path: p, tokenizer: {kind: gpt2}}", "encoder.json"},
      {"{path: p, tokenizer: {kind: word, eos: true}}", "belongs to the byte tokenizer"},
      {"{path: p, tokenizer: {vocabulary_size: 9}}", "has no meaning"},
      {"{kind: listops, tokenizer: {kind: word}}", "symbols of its own"},
      {"{path: p, listops: {seed: 2}}", "has no meaning"},
      {"{kind: listops, path: p, listops: {seed: 2}}", "only brackets"},
      {"{kind: listops, listops: {min_length: 70, max_length: 60}}", "must not be below"},
      {"{path: p, validation_fraction: 0.6, test_fraction: 0.5}", "leave nothing"},
      {"{path: p, context: 0}", "context"},
  };
  for (const auto& [yaml, expected] : cases)
    EXPECT_THAT(test::message_of<UsageError>([&yaml = yaml] { parse(yaml); }),
                testing::AllOf(HasSubstr("recipe.yaml:1:"), HasSubstr(expected)))
        << yaml;
}

}  // namespace
}  // namespace linnet
