// Labelled texts of one's own: kinds tsv, csv, jsonl and folder.
#include "data/labelled_text.h"

#include <gmock/gmock.h>

#include <numeric>

#include "core/yaml.h"
#include "data/inspect.h"
#include "data/registry.h"
#include "tests/data/temporary_folder.h"
#include "tests/data_path.h"

namespace linnet {
namespace {

using test::causes_of;
using test::message_of;
using test::TemporaryFolder;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class LabelledText : public testing::Test {
 protected:
  // Of the section `data`, whose path is that folder unless it says another.
  DataConfig config(const std::string& kind, const std::string& keys = "",
                    const std::string& path = ".") const {
    return parse_config<DataConfig>(parse_yaml(
        concat("{kind: ", kind, ", path: ", path == "." ? folder_.path() : folder_ / path,
               keys.empty() ? "" : ", ", keys, "}"),
        "test"));
  }
  ClassificationDataset load(const std::string& kind, const std::string& keys = "",
                             const std::string& path = ".") const {
    return load_classification(config(kind, keys, path));
  }
  std::string vocabulary() const {
    return folder_.write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n##c\n");
  }

  TemporaryFolder folder_;
};

TEST_F(LabelledText, AFolderOfTablesGivesSplitsAndClasses) {
  folder_.write("train.tsv", "text\tlabel\nab\tno\nc\tyes\nd\tno\n");
  folder_.write("dev.tsv", "label\ttext\nyes\tx\n");
  folder_.write("test.tsv", "text\ny\n");
  const auto data = load("tsv");
  EXPECT_THAT(data.class_names, ElementsAre("no", "yes"));
  EXPECT_EQ(data.vocabulary_size, 259);
  const auto& train = *data.split(Split::train);
  EXPECT_THAT(train.labels, ElementsAre(0, 1, 0));
  // CLS a b SEP; bytes + 1.
  EXPECT_THAT(train.example(0), ElementsAre(258, 'a' + 1, 'b' + 1, 257));
  EXPECT_THAT(train.types, IsEmpty());
  EXPECT_TRUE(data.begins_with_cls);
  EXPECT_THAT(data.split(Split::validation)->labels, ElementsAre(1));
  EXPECT_THAT(data.split(Split::test)->labels, ElementsAre(kUnlabelled));
  EXPECT_THAT(data.notes, IsEmpty());
}

TEST_F(LabelledText, TheFourKindsReadTheSameExamples) {
  folder_.write("t/train.tsv", "text\tlabel\nab\t1\ncd\t0\n");
  folder_.write("t/validation.tsv", "text\tlabel\nef\t1\n");
  folder_.write("c/train.csv", "label,text\n1,\"ab\"\n0,cd\n");
  folder_.write("c/valid.csv", "label,text\n1,ef\n");
  folder_.write("j/train.jsonl", "{\"text\":\"ab\",\"label\":1}\n{\"text\":\"cd\",\"label\":0}\n");
  folder_.write("j/val.jsonl", "{\"text\":\"ef\",\"label\":\"1\"}\n");
  folder_.write("f/train/0/x.txt", "cd");
  folder_.write("f/train/1/x.txt", "ab");
  folder_.write("f/dev/1/x.txt", "ef");
  folder_.write("f/test/1/x.txt", "ef");
  const auto tsv = load("tsv", "", "t");
  const auto csv = load("csv", "", "c"), jsonl = load("jsonl", "", "j");
  const auto folder = load("folder", "", "f");
  for (const Split split : {Split::train, Split::validation}) {
    EXPECT_EQ(csv.fingerprint(split), tsv.fingerprint(split));
    EXPECT_EQ(jsonl.fingerprint(split), tsv.fingerprint(split));
  }
  EXPECT_EQ(folder.fingerprint(Split::validation), tsv.fingerprint(Split::validation));
  EXPECT_THAT(folder.split(Split::train)->labels, ElementsAre(0, 1));
  EXPECT_EQ(detect_data_kind(folder_ / "t"), "tsv");
  EXPECT_EQ(detect_data_kind(folder_ / "c/train.csv"), "csv");
  EXPECT_EQ(detect_data_kind(folder_ / "j"), "jsonl");
  EXPECT_EQ(detect_data_kind(folder_ / "f"), "folder");
}

TEST_F(LabelledText, PairsHaveTypesAndTheTokenizersIds) {
  folder_.write("train.tsv", "p\tq\ty\na\tb ac\t10\nb\ta\t9\n");
  const std::string tokenizer = concat("tokenizer: {kind: wordpiece, path: ", vocabulary(), "}");
  const std::string columns =
      "text: p, text_pair: q, label: y, validation_fraction: 0.5, test_fraction: 0, ";
  const auto data = load("tsv", columns + tokenizer, "train.tsv");
  EXPECT_EQ(data.vocabulary_size, 8);
  EXPECT_THAT(data.class_names, ElementsAre("9", "10"));
  EXPECT_EQ(data.tokenizer->kind(), "wordpiece");
  const bool first_trains = data.split(Split::train)->labels[0] == 1;
  const auto& of_first = *data.split(first_trains ? Split::train : Split::validation);
  const auto& of_second = *data.split(first_trains ? Split::validation : Split::train);
  EXPECT_THAT(of_first.example(0), ElementsAre(2, 5, 3, 6, 5, 7, 3));
  EXPECT_THAT(of_first.types, ElementsAre(0, 0, 0, 1, 1, 1, 1));
  EXPECT_THAT(of_second.types, ElementsAre(0, 0, 0, 1, 1));
  // Cut to the context, the longer text first.
  const auto cut = load("tsv", columns + tokenizer + ", context: 5", "train.tsv");
  EXPECT_EQ(cut.split(Split::train)->longest(), 5);
  EXPECT_THAT(cut.notes, ElementsAre(HasSubstr("1 of 2 examples are longer than 5 tokens")));
  // Types and padding reach batches.
  const ClassificationSampler sampler(data.split(first_trains ? Split::train : Split::validation),
                                      9, -1, 1);
  const Batch batch = sampler.in_order(0, 1);
  EXPECT_THAT(batch.token_types, ElementsAre(0, 0, 0, 1, 1, 1, 1, 0, 0));
  EXPECT_THAT(batch.mask, ElementsAre(1, 1, 1, 1, 1, 1, 1, 0, 0));
}

TEST_F(LabelledText, TextsCanStandWithoutSpecialTokens) {
  folder_.write("train.tsv", "p\tq\tlabel\nac\td\t0\n \t \t1\n");
  folder_.write("dev.tsv", "p\tq\tlabel\nab\tc\t0\n");
  const std::string pairs = "text: p, text_pair: q, special_tokens: none";
  const auto bytes = load("tsv", pairs);
  EXPECT_EQ(bytes.vocabulary_size, 256);
  EXPECT_THAT(bytes.split(Split::train)->example(0), ElementsAre('a', 'c', 'd'));
  EXPECT_THAT(bytes.split(Split::train)->types, IsEmpty());
  const auto words =
      load("tsv", concat(pairs, ", tokenizer: {kind: wordpiece, path: ", vocabulary(), "}"));
  EXPECT_EQ(words.vocabulary_size, 8);
  EXPECT_THAT(words.split(Split::train)->example(0), ElementsAre(5, 7, 1));
  EXPECT_THAT(words.split(Split::train)->example(1), ElementsAre(0));  // no token but padding
  EXPECT_THAT(words.split(Split::train)->types, IsEmpty());
}

TEST_F(LabelledText, Gpt2PadsWithItsEndOfText) {
  LINNET_REQUIRE_DATA(gpt2, "tokenizers/gpt2");
  folder_.write("train.tsv", "p\tq\tlabel\na\tb\t0\na\tb\t1\n");
  folder_.write("dev.tsv", "p\tq\tlabel\na\tb\t0\n");
  const auto data = load("tsv", concat("text: p, text_pair: q, special_tokens: none, tokenizer: ",
                                       "{kind: gpt2, path: ", gpt2, "}"));
  EXPECT_EQ(data.vocabulary_size, 50257);
  const ClassificationSampler sampler(data.split(Split::train), 4, -1, 1);
  const Batch batch = sampler.in_order(0, 1);
  EXPECT_THAT(batch.tokens, ElementsAre(64, 65, 50256, 50256));
  EXPECT_THAT(batch.mask, ElementsAre(1, 1, 0, 0));
}

TEST_F(LabelledText, RobertaKeepsItsIdsAndItsPadding) {
  LINNET_REQUIRE_DATA(roberta, "tokenizers/roberta-base");
  folder_.write("train.tsv", "text\tq\tlabel\na\tb\t1\na\tc\t0\n");
  folder_.write("dev.tsv", "text\tq\tlabel\na\tb\t1\n");
  for (const std::string kind : {"roberta", "tokenizer_json"}) {
    const auto data =
        load("tsv", concat("text_pair: q, tokenizer: {kind: ", kind, ", path: ", roberta,
                           kind == "roberta" ? "" : "/tokenizer.json", "}"));
    EXPECT_EQ(data.vocabulary_size, 50265);
    const auto& split = *data.split(Split::validation);
    EXPECT_THAT(split.example(0), ElementsAre(0, 102, 2, 2, 428, 2));
    EXPECT_THAT(split.types, IsEmpty());
    const Batch batch =
        ClassificationSampler(data.split(Split::validation), 8, -1, 1).in_order(0, 1);
    EXPECT_THAT(batch.tokens, ElementsAre(0, 102, 2, 2, 428, 2, 1, 1));
    EXPECT_THAT(batch.mask, ElementsAre(1, 1, 1, 1, 1, 1, 0, 0));
  }
}

TEST_F(LabelledText, OneFileIsSplitByTheSeed) {
  std::string table = "text,label\n";
  for (int i = 0; i < 100; ++i) table += concat("t", i, ",", i % 2, "\n");
  folder_.write("all.csv", table);
  const auto data = load("csv", "", "all.csv");
  EXPECT_EQ(data.split(Split::train)->size(), 80);
  EXPECT_EQ(data.split(Split::validation)->size(), 10);
  EXPECT_EQ(data.split(Split::test)->size(), 10);
  std::vector<std::vector<int32_t>> seen;
  for (const Split split : kSplits)
    for (int64_t i = 0; i < data.split(split)->size(); ++i) {
      const auto ids = data.split(split)->example(i);
      seen.emplace_back(ids.begin(), ids.end());
    }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(std::unique(seen.begin(), seen.end()) - seen.begin(), 100);
  EXPECT_EQ(load("csv", "", "all.csv").fingerprint(Split::test), data.fingerprint(Split::test));
  EXPECT_NE(load("csv", "seed: 2", "all.csv").fingerprint(Split::test),
            data.fingerprint(Split::test));
  EXPECT_FALSE(load("csv", "test_fraction: 0", "all.csv").has(Split::test));
}

TEST_F(LabelledText, ListedFilesMakeTheSplits) {
  folder_.write("a1.tsv", "text\tlabel\na\t0\n");
  folder_.write("a2.tsv", "text\tlabel\nb\t1\n");
  folder_.write("b.tsv", "text\tlabel\nc\t1\n");
  const auto data = load("tsv", "train: [a*.tsv], validation: [b.tsv]");
  EXPECT_EQ(data.split(Split::train)->size(), 2);
  EXPECT_THAT(data.split(Split::train)->rows, ElementsAre(0, 1));
  EXPECT_EQ(data.split(Split::validation)->size(), 1);
  EXPECT_FALSE(data.has(Split::test));
  EXPECT_EQ(causes_of<UsageError>([&] { load("tsv", "train: [a*.tsv], test: [a1.tsv]"); },
                                  folder_.path()),
            "repeated data.test at a1.tsv");
}

TEST_F(LabelledText, LabelsOutsideTheClassesAreBadRows) {
  folder_.write("train.tsv", "text\tlabel\na\t0\nb\t1\n");
  folder_.write("dev.tsv", "text\tlabel\na\t1\nb\t2\n");
  EXPECT_EQ(causes_of([&] { load("tsv"); }, folder_.path()), "malformed at dev.tsv:3");
  EXPECT_THAT(message_of([&] { load("tsv"); }),
              HasSubstr("the label '2' is none of the classes 0, 1"));
  const auto data = load("tsv", "bad_rows: skip");
  EXPECT_EQ(data.split(Split::validation)->size(), 1);
  EXPECT_THAT(data.notes, ElementsAre(AllOf(HasSubstr("dev.tsv: 1 row is left out, line 3"),
                                            HasSubstr("the label '2'"))));
  const auto three = load("tsv", "classes: [2, 1, 0]");
  EXPECT_THAT(three.split(Split::validation)->labels, ElementsAre(1, 0));
  EXPECT_EQ(causes_of([&] { load("tsv", "classes: [5, 6], bad_rows: skip"); }, folder_.path()),
            "malformed at train.tsv");
  folder_.write("train.tsv", "text\tlabel\na\t0\nb\t0\n");
  EXPECT_EQ(causes_of([&] { load("tsv"); }), "out_of_range data.classes");
}

TEST_F(LabelledText, BadTextsOfFoldersAreNamed) {
  folder_.write("a/1.txt", "x");
  folder_.write("b/1.txt", "y");
  folder_.write("b/2.txt", "\xff");
  EXPECT_EQ(causes_of([&] { load("folder"); }, folder_.path()), "malformed at b/2.txt");
  const auto data = load("folder", "bad_rows: skip, test_fraction: 0");
  EXPECT_EQ(data.split(Split::train)->size() + data.split(Split::validation)->size(), 2);
  EXPECT_THAT(data.notes, ElementsAre(HasSubstr("b/2.txt is left out: ")));
  EXPECT_EQ(causes_of([&] { load("folder", "", "a"); }, folder_.path()),
            "not_found data.path at a");
}

TEST_F(LabelledText, KeysAreChecked) {
  const auto causes = [&](const std::string& keys) {
    return causes_of<UsageError>([&] { config("tsv", keys); });
  };
  EXPECT_THAT(causes("validation_fraction: 0.5, test_fraction: 0.5"), HasSubstr("out_of_range"));
  EXPECT_THAT(causes("classes: [a]"), HasSubstr("out_of_range"));
  EXPECT_THAT(causes("classes: [a, a]"), HasSubstr("out_of_range"));
  EXPECT_THAT(causes("tokenizer: {kind: word}"), HasSubstr("missing_key"));
  EXPECT_THAT(causes("txet: a"), HasSubstr("unknown_key"));
  EXPECT_EQ(config("tsv", "text: 2").options.find<LabelledTextOptions>() != nullptr, true);
  EXPECT_EQ(causes_of([&] { load("tsv"); }, folder_.path()),
            concat("not_found data.path at ", folder_.path()));
}

TEST_F(LabelledText, ReportsCountClasses) {
  folder_.write("train.tsv", "text\tlabel\na\tno\nb\tyes\nc\tno\n");
  folder_.write("test.tsv", "text\na\n");
  const DataReport report = inspect_data(folder_.path());
  EXPECT_EQ(report.kind, "tsv");
  EXPECT_THAT(report.classes, ElementsAre("no", "yes"));
  ASSERT_EQ(report.splits.size(), 3u);
  EXPECT_EQ(report.splits[0].documents + report.splits[1].documents, 3);
  EXPECT_EQ(std::accumulate(report.splits[0].of_class.begin(), report.splits[0].of_class.end(),
                            int64_t{0}),
            report.splits[0].documents);
  EXPECT_THAT(report.splits[2].of_class, IsEmpty());
  EXPECT_EQ(report.tokenizer, "byte");
  EXPECT_EQ(causes_of<UsageError>([&] { prepare_data(config("tsv"), folder_ / "out"); }),
            "conflict KIND");
}

}  // namespace
}  // namespace linnet
