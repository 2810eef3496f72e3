// A kind of data that is registered by one line: recipes, reports and training follow.
#include <gmock/gmock.h>

#include "core/files.h"
#include "core/hash.h"
#include "core/yaml.h"
#include "data/inspect.h"
#include "data/registry.h"
#include "recipes/engine/evaluate.h"
#include "recipes/engine/recipe_check.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

using testing::Contains;
using testing::HasSubstr;

// Rows of bits, a line each, or generated; the label says whether the number of ones is odd.
struct BitsOptions {
  int64_t bits = 5;
  int64_t rows = 40;
  static void describe(ConfigDescription<BitsOptions>& d) {
    d.field("bits", &BitsOptions::bits, "length of a generated row").range(1, 30);
    d.field("rows", &BitsOptions::rows, "generated rows of a split").range(1, 1000);
  }
};

const char* const kBitsFile = "bits.txt";

void add_row(const std::string& row, ClassificationSplit& split) {
  std::vector<int32_t> ids;
  for (const char bit : row) ids.push_back(bit == '1' ? 2 : 1);
  split.add(ids, static_cast<int32_t>(std::count(row.begin(), row.end(), '1') % 2));
}

ClassificationDataset load_bits(const DataConfig& config) {
  const auto& options = config.options.as<BitsOptions>();
  ClassificationDataset data;
  data.layout = config.path.empty() ? "generated bits" : "a file of bits";
  data.vocabulary_size = 4;
  data.classes = 2;
  for (const Split split : kSplits) {
    auto examples = std::make_shared<ClassificationSplit>();
    for (int64_t i = 0; config.path.empty() && i < options.rows; ++i) {
      std::string row;
      for (int64_t k = 0; k < options.bits; ++k)
        row += hash64(concat(name_of(split), i, " ", k)) % 2 == 0 ? '0' : '1';
      add_row(row, *examples);
    }
    if (!config.path.empty()) add_row(read_file(join_path(config.path, kBitsFile)), *examples);
    data.splits[static_cast<size_t>(split)] = std::move(examples);
  }
  return data;
}

DataKind bits_kind() {
  return {.name = "bits",
          .help = "rows of bits and their parity",
          .options = KindOptions(BitsOptions()),
          .gives = LabelledData{.load = load_bits},
          .likeness =
              [](const std::string& path) {
                return exists(join_path(path, kBitsFile)) ? Likeness::files : Likeness::none;
              },
          .without_path = "generated rows",
          .source_keys = {"bits", "rows"},
          .drop_generator = [](ConfigNode& section) { section.erase("rows"); }};
}

class NewDataKind : public test::TinyRun {
 protected:
  static void SetUpTestSuite() {
    static const bool once = [] {
      register_data_kind(bits_kind());
      return true;
    }();
    EXPECT_TRUE(once);
  }
  // The classifier of TinyRun on these data.
  Recipe bits(std::vector<std::string> overrides = {}) const {
    overrides.insert(overrides.begin(), "data={kind: bits, context: 8}");
    return classifier(overrides);
  }
  std::string refusal(const std::string& data) const {
    return test::message_of<UsageError>([&] { classifier({"data=" + data}); });
  }
};

TEST_F(NewDataKind, ANameIsRegisteredOnceAndWhole) {
  EXPECT_THAT(test::message_of<UsageError>([] { register_data_kind(bits_kind()); }),
              HasSubstr("registered twice"));
  DataKind empty = bits_kind();
  empty.name = "empty";
  empty.gives = LabelledData{};
  EXPECT_THAT(test::message_of<UsageError>([&] { register_data_kind(empty); }),
              HasSubstr("incomplete"));
  empty.gives = TextData{.find = [](const DataConfig&) { return TextSources(); }};
  EXPECT_THAT(test::message_of<UsageError>([&] { register_data_kind(empty); }),
              HasSubstr("TextEncoding"));
}

TEST_F(NewDataKind, ChoicesHelpAndSuggestionsFollow) {
  const ConfigSchema schema = schema_of<DataConfig>();
  EXPECT_THAT(schema.find("kind")->choices, Contains("bits"));
  EXPECT_EQ(schema.find("rows")->kinds, std::vector<std::string>{"bits"});
  EXPECT_THAT(schema.find("path")->help, HasSubstr("bits without it: generated rows"));
  EXPECT_THAT(refusal("{kind: bitts}"), HasSubstr("did you mean 'bits'?"));
  EXPECT_THAT(refusal("{kind: bits, rosw: 3}"), HasSubstr("did you mean 'rows'?"));
  EXPECT_THAT(refusal("{kind: bits, rows: 0}"), HasSubstr("'data.rows' must be 1 to 1000"));
  EXPECT_THAT(refusal("{kind: bits, lines: stripped}"), HasSubstr("'data.lines' belongs to kinds"));
  EXPECT_THAT(refusal("{kind: listops, rows: 3}"), HasSubstr("belongs to kind bits"));
  EXPECT_THROW(find_data_kind("bitts"), UsageError);
}

TEST_F(NewDataKind, ItIsFoundInspectedAndRefusedToPrepare) {
  folder_.write("rows/bits.txt", "0110");
  EXPECT_EQ(detect_data_kind(folder_ / "rows"), "bits");
  const DataReport report = inspect_data(folder_ / "rows");
  EXPECT_EQ(report.kind, "bits");
  EXPECT_TRUE(report.labelled);
  EXPECT_EQ(report.splits[0].documents, 1);
  EXPECT_EQ(report.splits[0].tokens, 4);
  EXPECT_EQ(test::causes_of<UsageError>(
                [&] { prepare_data(DataConfig("bits", folder_ / "rows"), folder_ / "prepared"); }),
            "conflict KIND");
}

TEST_F(NewDataKind, ARecipeOfItTrainsEvaluatesAndReadsBack) {
  const Recipe recipe = bits({"data.bits=6", "data.rows=30"});
  EXPECT_EQ(form_of(recipe.data), DataForm::labels);
  EXPECT_EQ(recipe.resolved.find("data")->find("listops"), nullptr);
  EXPECT_EQ(parse_recipe(recipe.resolved).resolved, recipe.resolved);
  check_run(recipe);
  const TrainOutcome outcome = run(recipe, "bits");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.progress.step, 7);
  EXPECT_EQ(evaluate(out("bits"), {}).scores.at(0).tokens, 30);
  EXPECT_EQ(test::causes_of<UsageError>([&] { check_run(this->recipe({"data={kind: bits}"})); }),
            "conflict model.kind");
}

TEST_F(NewDataKind, APathReplacesItsGenerator) {
  folder_.write("rows/bits.txt", "0110");
  const Recipe recipe = bits({"data.rows=7", "data.bits=4"});
  const ConfigNode base = recipe.given;
  const ConfigNode over =
      parse_yaml(concat("{data: {kind: bits, path: ", folder_ / "rows", "}}"), "top.yaml");
  const ConfigNode merged = *merge_recipes(base, over).find("data");
  EXPECT_FALSE(merged.contains("rows"));
  EXPECT_TRUE(merged.contains("bits"));
}

}  // namespace
}  // namespace linnet
