// Tests of tokenized corpora.
#include "data/text_dataset.h"

#include <gmock/gmock.h>

#include <map>

#include "data/word_tokenizer.h"
#include "tests/data/temporary_folder.h"
#include "tests/data/text_config.h"
#include "tests/data/token_arrays.h"
#include "tests/data_path.h"

namespace linnet {
namespace {

using test::causes_of;
using test::config_of;
using test::ids_of;
using test::lists_of;
using test::message_of;
using test::TemporaryFolder;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(TextDataset, DocumentsKnowTheirTokensBytesAndWords) {
  TemporaryFolder folder;
  auto config = config_of("text", folder.path());
  folder.write("a.txt", "one two\nthree");
  folder.write("b.txt", "caf\xC3\xA9 noir");
  folder.write("e.txt", "");
  lists_of(config).train = {"*.txt"};
  config.text().tokenizer.eos = true;
  TextDataset data(config);
  const auto corpus = data.split(Split::train);
  ASSERT_EQ(corpus->documents.size(), 2u);
  EXPECT_EQ(corpus->documents[0].words, 3);
  EXPECT_EQ(corpus->documents[1].bytes, 10);
  EXPECT_EQ(corpus->documents[1].begin, 14);  // 13 bytes and eos
  EXPECT_EQ(ids_of(corpus->tokens).at(13), 256);
  EXPECT_EQ(corpus->size(), 25);
  EXPECT_EQ(corpus->document_end(1), 25);
  EXPECT_EQ(corpus->document_of(13), 0u);
  EXPECT_EQ(corpus->document_of(14), 1u);
  EXPECT_EQ(corpus->bytes(), 23);
  EXPECT_THAT(data.take_warnings(), ElementsAre(HasSubstr("e.txt is empty")));
  EXPECT_TRUE(data.take_warnings().empty());
}

TEST(TextDataset, BrokenFilesAreNamedInOneSentence) {
  TemporaryFolder folder;
  auto config = config_of("text", folder.path());
  const auto failure = [&](const std::string& name, std::string_view text) {
    folder.write(name, text);
    lists_of(config).train = {name};
    return causes_of([&] { TextDataset(config).split(Split::train); }, folder.path());
  };
  const auto sentence = [&] {
    return message_of([&] { TextDataset(config).split(Split::train); });
  };
  EXPECT_EQ(failure("bad.txt", "abc\xFFzyx and more"), "malformed at bad.txt");
  EXPECT_THAT(sentence(), HasSubstr("byte offset 3"));
  EXPECT_EQ(failure("cut.txt", "a caf\xC3"), "malformed at cut.txt");
  EXPECT_THAT(sentence(), HasSubstr("truncated"));
  EXPECT_EQ(failure("void.txt", ""), "out_of_range data.train at void.txt");
  lists_of(config).train = {"gone.txt"};
  EXPECT_EQ(causes_of([&] { TextDataset{config}; }, folder.path()), "not_found at gone.txt");
}

TEST(TextDataset, WordVocabularyComesFromTrainOnly) {
  TemporaryFolder folder;
  folder.write("train.txt", "a b a\n");
  folder.write("valid.txt", "a secret\n");
  auto config = config_of("text", folder.path());
  lists_of(config).train = {"train.txt"};
  lists_of(config).validation = {"valid.txt"};
  config.text().tokenizer.kind = "word";
  TextDataset data(config);
  EXPECT_EQ(data.tokenizer()->vocabulary_size(), 4);  // a b <eos> <unk>
  EXPECT_EQ(data.tokenizer()->decode(ids_of(data.split(Split::validation)->tokens)), "a <unk>\n");
  EXPECT_THAT(data.take_warnings(), ElementsAre(HasSubstr("secret")));
  // With the tokenizer of a checkpoint, training text is not needed.
  lists_of(config).train.clear();
  TextDataset evaluation(config, data.tokenizer());
  EXPECT_EQ(ids_of(evaluation.split(Split::validation)->tokens),
            ids_of(data.split(Split::validation)->tokens));
  EXPECT_EQ(causes_of([&] { TextDataset{config}; }), "not_found data.train");
}

TEST(TextDataset, UnknownWordsAndEmptyFilesAreOneWarningEach) {
  TemporaryFolder folder, cache;
  folder.write("train.txt", "a b a\n");
  for (const char* name : {"v1.txt", "v2.txt", "t1.txt"}) folder.write(name, "a secret word\n");
  for (const char* name : {"v0.txt", "v9.txt"}) folder.write(name, "");
  auto config = config_of("text", folder.path());
  lists_of(config).train = {"train.txt"};
  lists_of(config).validation = {"v*.txt"};
  lists_of(config).test = {"t1.txt"};
  config.text().tokenizer.kind = "word";
  config.cache = true;
  for (const char* source : {"files", "cache"}) {
    TextDataset data(config, nullptr, cache.path());
    for (const Split split : kSplits) data.split(split);
    EXPECT_THAT(data.take_warnings(),
                ElementsAre(testing::AllOf(HasSubstr("2 files of validation are empty"),
                                           HasSubstr("v0.txt")),
                            "words that the vocabulary lacks became <unk>: 4 of the 8 tokens of "
                            "validation, 2 of the 4 tokens of test; the first is 'secret'"))
        << source;
    EXPECT_TRUE(data.take_warnings().empty()) << source;
  }
}

TEST(TextDataset, StrippedLinesEndWithEos) {
  TemporaryFolder folder;
  folder.write("a.txt", "  one \n\ntwo");
  auto config = config_of("text", folder.path());
  lists_of(config).train = {"a.txt"};
  config.text().lines = "stripped";
  EXPECT_EQ(causes_of<UsageError>([&] { TextDataset{config}; }), "conflict data.lines");
  config.text().tokenizer.eos = true;
  TextDataset data(config);
  EXPECT_THAT(ids_of(data.split(Split::train)->tokens),
              ElementsAre('o', 'n', 'e', 256, 256, 't', 'w', 'o', 256));
  EXPECT_EQ(data.measure().bytes(256), 1);
}

// The measured bytes and words of a whole document.
std::pair<int64_t, int64_t> measured(const TextDataset& data, const TokenizedCorpus& corpus,
                                     size_t document) {
  int64_t bytes = 0, words = 0;
  int32_t previous = -1;
  corpus.tokens.for_each(corpus.documents[document].begin, corpus.document_end(document),
                         [&](int32_t id) {
                           bytes += data.measure().bytes(id);
                           words += data.measure().words(previous, id);
                           previous = id;
                         });
  return {bytes, words};
}

TEST(TextDataset, MeasureOfTokensAddsUpToTheDocuments) {
  LINNET_REQUIRE_DATA(gpt2, "tokenizers/gpt2");
  TemporaryFolder folder;
  auto config = config_of("text", folder.path());
  folder.write("a.txt",
               "  Isn't it odd?\n\n\nna\xC3\xAFve \xF0\x9F\xA6\x99s,  1234567 tabs\there\n");
  folder.write("b.txt", "no\nline\nend");
  lists_of(config).train = {"*.txt"};
  for (const char* kind : {"byte", "gpt2"}) {
    config.text().tokenizer.kind = kind;
    config.text().tokenizer.path = kind == std::string("gpt2") ? gpt2 : "";
    TextDataset data(config);
    const auto corpus = data.split(Split::train);
    for (size_t d = 0; d < corpus->documents.size(); ++d) {
      const auto [bytes, words] = measured(data, *corpus, d);
      EXPECT_EQ(bytes, corpus->documents[d].bytes) << kind;
      EXPECT_EQ(words, corpus->documents[d].words) << kind;
    }
  }
}

TEST(WikiText, PublishedCountsHoldForEveryForm) {
  LINNET_REQUIRE_DATA(gpt2, "tokenizers/gpt2");
  const std::map<std::string, std::string> forms = {
      {"wikitext-103", "word"}, {"wikitext-2", "word"}, {"wikitext-2-raw", "gpt2"}};
  WordVocabularyBuilder builder;
  builder.add("<unk>\n");
  const std::shared_ptr<const Tokenizer> unknown = builder.build();
  for (const auto& [folder, kind] : forms) {
    LINNET_REQUIRE_DATA(path, folder);
    auto config = config_of("wikitext", path);
    config.text().tokenizer.kind = kind;
    config.text().tokenizer.path = gpt2;
    TextDataset data(config, kind == "word" ? unknown : nullptr);
    const auto validation = data.split(Split::validation), test = data.split(Split::test);
    EXPECT_EQ(validation->words(), 217'646) << folder;
    EXPECT_EQ(test->words(), 245'569) << folder;
    if (kind == "word") {
      EXPECT_EQ(validation->size(), 217'646) << folder;
      EXPECT_EQ(test->size(), 245'569) << folder;
    } else {
      // <|endoftext|> follows the document.
      EXPECT_EQ(validation->size(), 249'887 + 1);
      EXPECT_EQ(test->size(), 286'221 + 1);
      EXPECT_EQ(measured(data, *test, 0).second, 245'569);
    }
    EXPECT_EQ(causes_of([&] { data.split(Split::train); }), "not_found data.train");
  }
}

TEST(WikiText, IncompleteAndAlteredFilesAreNoticed) {
  LINNET_REQUIRE_DATA(path, "wikitext-103/wiki.valid.tokens");
  const std::string text = read_file(path);
  TemporaryFolder folder;
  auto config = config_of("wikitext", folder.path());
  config.text().tokenizer.kind = "word";
  WordVocabularyBuilder builder;
  builder.add("<unk>\n");
  const std::shared_ptr<const Tokenizer> tokenizer = builder.build();
  const auto load = [&](const std::string& contents) {
    folder.write("wiki.valid.tokens", contents);
    TextDataset data(config, tokenizer);
    data.split(Split::validation);
    std::string warnings;
    for (const std::string& warning : data.take_warnings()) warnings += warning + "|";
    return warnings;
  };
  EXPECT_THAT(message_of([&] { load(text.substr(0, text.size() / 2)); }), HasSubstr("truncated"));
  const std::string whole_lines = text.substr(0, text.rfind('\n', text.size() / 2) + 1);
  EXPECT_THAT(load(whole_lines), HasSubstr("not a complete published file"));
  std::string altered = text;
  altered.replace(altered.find("lobster"), 7, "lob ter");
  EXPECT_THAT(message_of([&] { load(altered); }),
              testing::AllOf(HasSubstr("altered"), HasSubstr("217647")));
  EXPECT_THAT(load(text), testing::Not(HasSubstr("complete")));
}

}  // namespace
}  // namespace linnet
