// Tests of text sources, splits and tokenized corpora.
#include "data/text_dataset.h"

#include <gmock/gmock.h>

#include <map>
#include <numeric>
#include <set>

#include "data/file_list.h"
#include "data/word_tokenizer.h"
#include "tests/data/temporary_folder.h"
#include "tests/data_path.h"

namespace linnet {
namespace {

using test::causes_of;
using test::message_of;
using test::TemporaryFolder;
using testing::ElementsAre;
using testing::HasSubstr;

DataConfig config_of(const std::string& kind, const std::string& path) {
  DataConfig config;
  config.kind = kind;
  config.path = path;
  config.cache = false;
  return config;
}

std::vector<std::string> names_of(const TextSources& sources, Split split) {
  std::vector<std::string> names;
  for (const SourceFile& file : sources.files(split)) names.push_back(file.name);
  return names;
}

TEST(FileList, PatternsMatchSortedFiles) {
  TemporaryFolder folder;
  for (const char* name : {"b.txt", "a.txt", "a.md", ".hidden.txt", "sub/c.txt", "sub/deep/d.txt"})
    folder.write(name, "x");
  EXPECT_THAT(expand_pattern(folder / "*.txt"), ElementsAre(folder / "a.txt", folder / "b.txt"));
  EXPECT_THAT(expand_pattern(folder / "?.md"), ElementsAre(folder / "a.md"));
  EXPECT_THAT(expand_pattern(folder / "*/c.txt"), ElementsAre(folder / "sub/c.txt"));
  EXPECT_THAT(expand_pattern(folder / "**/*.txt"),
              ElementsAre(folder / "a.txt", folder / "b.txt", folder / "sub/c.txt",
                          folder / "sub/deep/d.txt"));
  const auto refusal = [&](const std::string& name) {
    return causes_of([&] { expand_pattern(folder / name); }, folder.path());
  };
  EXPECT_EQ(refusal("*.csv"), "not_found at *.csv");
  EXPECT_EQ(refusal("none.txt"), "not_found at none.txt");
  EXPECT_EQ(refusal("sub"), "wrong_type at sub");
  EXPECT_THAT(files_below(folder.path()),
              ElementsAre("a.md", "a.txt", "b.txt", "sub/c.txt", "sub/deep/d.txt"));
}

TEST(TextSources, SplitByFileIsADisjointCoverThatDependsOnNamesOnly) {
  TemporaryFolder one, other;
  std::set<std::string> all;
  for (int i = 0; i < 40; ++i) {
    const std::string name = concat("book", i, ".txt");
    one.write(name, "first");
    other.write(name, "second text");
    all.insert(name);
  }
  one.write("notes.csv", "left out beside text files");
  const auto a = find_text_sources(config_of("text", one.path()));
  const auto b = find_text_sources(config_of("text", other.path()));
  std::set<std::string> seen;
  for (const Split split : kSplits) {
    EXPECT_EQ(names_of(a, split), names_of(b, split));
    for (const std::string& name : names_of(a, split)) EXPECT_TRUE(seen.insert(name).second);
  }
  EXPECT_EQ(seen, all);
  EXPECT_EQ(a.files(Split::validation).size(), 2u);
  EXPECT_EQ(a.files(Split::test).size(), 2u);
}

TEST(TextSources, APatternGivesTheSplitsOfItsFolder) {
  TemporaryFolder folder, copy;
  for (int i = 0; i < 40; ++i) {
    for (const TemporaryFolder* each : {&folder, &copy}) {
      each->write(concat("sub/book", i, ".txt"), concat("text ", i));
    }
  }
  const auto whole = find_text_sources(config_of("text", folder / "sub"));
  const auto pattern = find_text_sources(config_of("text", folder / "sub/*.txt"));
  const auto moved = find_text_sources(config_of("text", copy / "sub//./*.txt"));
  const auto deep = find_text_sources(config_of("text", folder / "**/*.txt"));
  for (const Split split : kSplits) {
    EXPECT_EQ(names_of(pattern, split), names_of(whole, split));
    EXPECT_EQ(names_of(moved, split), names_of(whole, split));
    EXPECT_EQ(fingerprint_of(moved, split), fingerprint_of(pattern, split));
  }
  EXPECT_THAT(deep.files(Split::train).at(0).name, testing::StartsWith("sub/"));
  EXPECT_EQ(fixed_folder("/*.txt"), "/");
  EXPECT_EQ(fixed_folder("*.txt"), "");
  EXPECT_EQ(fixed_folder("a/b?/c.txt"), "a");
  EXPECT_EQ(fixed_folder("a/b/c.txt"), "a/b");
}

TEST(TextSources, AFingerprintIsOfNamesContentsAndParts) {
  TemporaryFolder folder;
  for (const char* name : {"a.txt", "b.txt", "c.txt"}) folder.write(name, "one\ntwo\nthree\n");
  auto config = config_of("text", folder.path());
  config.train = {"a.txt"};
  config.validation = {"b.txt"};
  std::set<std::string> seen;
  const auto print = [&](Split split) { return fingerprint_of(find_text_sources(config), split); };
  EXPECT_EQ(print(Split::test), "");
  EXPECT_TRUE(seen.insert(print(Split::train)).second);
  EXPECT_FALSE(seen.insert(print(Split::train)).second);
  EXPECT_TRUE(seen.insert(print(Split::validation)).second) << "another name";
  folder.write("a.txt", "one\ntwo\nthrew\n");
  EXPECT_TRUE(seen.insert(print(Split::train)).second) << "another byte";
  config.train = {"a.txt", "c.txt"};
  EXPECT_TRUE(seen.insert(print(Split::train)).second) << "another file";
  config.train.clear();
  config.validation.clear();
  std::string text;
  for (int i = 0; i < 20; ++i) text += concat("line ", i, "\n");
  config.path = folder.write("a.txt", text);
  config.validation_fraction = config.test_fraction = 0.3;
  EXPECT_TRUE(seen.insert(print(Split::train)).second) << "a part of it";
  EXPECT_TRUE(seen.insert(print(Split::test)).second);
}

TEST(TextSources, RunsInsideADataFolderAreNotData) {
  TemporaryFolder folder;
  for (int i = 0; i < 6; ++i) folder.write(concat(i, ".txt"), "some text");
  for (const char* kind : {"text", "self"}) {
    const auto before = find_text_sources(config_of(kind, folder.path()));
    folder.write("out/metrics.jsonl", "{}");
    folder.write("out/log.txt", "step 1");
    const auto after = find_text_sources(config_of(kind, folder.path()));
    for (const Split split : kSplits) EXPECT_EQ(names_of(after, split), names_of(before, split));
    remove_all(folder / "out");
  }
}

TEST(TextSources, OneFileIsCutAtLineEnds) {
  TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 100; ++i) text += concat("line ", i, "\n");
  auto config = config_of("text", folder.write("all.txt", text));
  TextDataset data(config);
  std::string joined;
  for (const Split split : kSplits) {
    const auto corpus = data.split(split);
    const std::string part = data.tokenizer()->decode(corpus->tokens);
    EXPECT_TRUE(part.ends_with('\n'));
    EXPECT_GT(part.size(), 20u);
    joined += part;
  }
  EXPECT_EQ(joined, text);
  config.path = folder.write("short.txt", "just one line\n");
  EXPECT_EQ(causes_of([&] { TextDataset{config}; }, folder.path()),
            "out_of_range data.train at short.txt");
}

TEST(TextSources, ListsArePatternsBelowThePathAndMustNotOverlap) {
  TemporaryFolder folder;
  for (const char* name : {"a1.txt", "a2.txt", "b.txt"}) folder.write(name, name);
  auto config = config_of("text", folder.path());
  config.train = {"a*.txt"};
  config.validation = {"b.txt"};
  TextDataset data(config);
  EXPECT_EQ(data.split(Split::train)->documents.size(), 2u);
  EXPECT_EQ(data.tokenizer()->decode(data.split(Split::validation)->tokens), "b.txt");
  EXPECT_FALSE(data.has(Split::test));
  EXPECT_EQ(causes_of([&] { data.split(Split::test); }), "not_found data.test");
  config.validation = {"a2.txt"};
  EXPECT_EQ(causes_of<UsageError>([&] { TextDataset{config}; }, folder.path()),
            "repeated data.validation at a2.txt");
}

TEST(TextSources, FoldersNamedLikeSplitsAreSplits) {
  TemporaryFolder folder;
  folder.write("train/1.txt", "one");
  folder.write("train/2.txt", "two");
  folder.write("test/3.txt", "three");
  folder.write("metadata.csv", "1,\"t by a\",1900,url");
  for (const char* kind : {"pg19", "text"}) {
    TextDataset data(config_of(kind, folder.path()));
    EXPECT_EQ(data.split(Split::train)->documents.size(), 2u);
    EXPECT_EQ(data.split(Split::test)->documents.size(), 1u);
    EXPECT_EQ(causes_of([&] { data.split(Split::validation); }), "not_found data.validation");
  }
  EXPECT_TRUE(config_of("pg19", "x").crosses_documents());
  EXPECT_FALSE(config_of("text", "x").crosses_documents());
  TemporaryFolder empty;
  EXPECT_EQ(causes_of([&] { TextDataset{config_of("pg19", empty.path())}; }),
            concat("malformed data.path at ", empty.path()));
  EXPECT_EQ(causes_of([&] { TextDataset{config_of("pg19", empty / "no")}; }, empty.path()),
            "not_found data.path at no");
}

TEST(TextSources, SelfTakesTextFilesAndLeavesBuildFoldersOut) {
  TemporaryFolder folder;
  folder.write(".gitignore", "/build/\n*.o\n/runs/\n");
  for (int i = 0; i < 20; ++i) folder.write(concat("core/file", i, ".cpp"), "int x;\n");
  folder.write("build/generated.cpp", "no");
  folder.write("runs/a/recipe.yaml", "no");
  folder.write(".git/config.txt", "no");
  folder.write("tools/quick", "#!/bin/sh\necho hi\n");
  folder.write("tools/blob",
               "\x7f"
               "ELF");
  folder.write("image.png", "no");
  const auto sources = find_text_sources(config_of("self", folder.path()));
  std::set<std::string> seen;
  for (const Split split : kSplits)
    for (const auto& name : names_of(sources, split)) seen.insert(name);
  EXPECT_EQ(seen.size(), 21u);
  EXPECT_TRUE(seen.contains("tools/quick"));
  EXPECT_FALSE(seen.contains("tools/blob"));
  EXPECT_FALSE(sources.files(Split::validation).empty());
  EXPECT_FALSE(sources.files(Split::test).empty());
}

TEST(TextSources, SelfReadsThisCheckout) {
  TextDataset data(config_of("self", test::source_dir()));
  const auto train = data.split(Split::train), test = data.split(Split::test);
  EXPECT_GT(train->size(), test->size());
  EXPECT_GT(test->size(), 1000);
  EXPECT_EQ(train->bytes(), train->size());  // byte tokenizer
}

TEST(TextDataset, DocumentsKnowTheirTokensBytesAndWords) {
  TemporaryFolder folder;
  auto config = config_of("text", folder.path());
  folder.write("a.txt", "one two\nthree");
  folder.write("b.txt", "caf\xC3\xA9 noir");
  folder.write("e.txt", "");
  config.train = {"*.txt"};
  config.tokenizer.eos = true;
  TextDataset data(config);
  const auto corpus = data.split(Split::train);
  ASSERT_EQ(corpus->documents.size(), 2u);
  EXPECT_EQ(corpus->documents[0].words, 3);
  EXPECT_EQ(corpus->documents[1].bytes, 10);
  EXPECT_EQ(corpus->documents[1].begin, 14);  // 13 bytes and eos
  EXPECT_EQ(corpus->tokens[13], 256);
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
    config.train = {name};
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
  config.train = {"gone.txt"};
  EXPECT_EQ(causes_of([&] { TextDataset{config}; }, folder.path()), "not_found at gone.txt");
}

TEST(TextDataset, WordVocabularyComesFromTrainOnly) {
  TemporaryFolder folder;
  folder.write("train.txt", "a b a\n");
  folder.write("valid.txt", "a secret\n");
  auto config = config_of("text", folder.path());
  config.train = {"train.txt"};
  config.validation = {"valid.txt"};
  config.tokenizer.kind = "word";
  TextDataset data(config);
  EXPECT_EQ(data.tokenizer()->vocabulary_size(), 4);  // a b <eos> <unk>
  EXPECT_EQ(data.tokenizer()->decode(data.split(Split::validation)->tokens), "a <unk>\n");
  EXPECT_THAT(data.take_warnings(), ElementsAre(HasSubstr("secret")));
  // With the tokenizer of a checkpoint, training text is not needed.
  config.train.clear();
  TextDataset evaluation(config, data.tokenizer());
  EXPECT_EQ(evaluation.split(Split::validation)->tokens, data.split(Split::validation)->tokens);
  EXPECT_EQ(causes_of([&] { TextDataset{config}; }), "not_found data.train");
}

TEST(TextDataset, UnknownWordsAndEmptyFilesAreOneWarningEach) {
  TemporaryFolder folder, cache;
  folder.write("train.txt", "a b a\n");
  for (const char* name : {"v1.txt", "v2.txt", "t1.txt"}) folder.write(name, "a secret word\n");
  for (const char* name : {"v0.txt", "v9.txt"}) folder.write(name, "");
  auto config = config_of("text", folder.path());
  config.train = {"train.txt"};
  config.validation = {"v*.txt"};
  config.test = {"t1.txt"};
  config.tokenizer.kind = "word";
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
  config.train = {"a.txt"};
  config.lines = "stripped";
  EXPECT_EQ(causes_of<UsageError>([&] { TextDataset{config}; }), "conflict data.lines");
  config.tokenizer.eos = true;
  TextDataset data(config);
  EXPECT_THAT(data.split(Split::train)->tokens,
              ElementsAre('o', 'n', 'e', 256, 256, 't', 'w', 'o', 256));
  EXPECT_EQ(data.measure().bytes(256), 1);
}

// The measured bytes and words of a whole document.
std::pair<int64_t, int64_t> measured(const TextDataset& data, const TokenizedCorpus& corpus,
                                     size_t document) {
  int64_t bytes = 0, words = 0;
  int32_t previous = -1;
  for (int64_t i = corpus.documents[document].begin; i < corpus.document_end(document); ++i) {
    const int32_t id = corpus.tokens[static_cast<size_t>(i)];
    bytes += data.measure().bytes(id);
    words += data.measure().words(previous, id);
    previous = id;
  }
  return {bytes, words};
}

TEST(TextDataset, MeasureOfTokensAddsUpToTheDocuments) {
  LINNET_REQUIRE_DATA(gpt2, "tokenizers/gpt2");
  TemporaryFolder folder;
  auto config = config_of("text", folder.path());
  folder.write("a.txt",
               "  Isn't it odd?\n\n\nna\xC3\xAFve \xF0\x9F\xA6\x99s,  1234567 tabs\there\n");
  folder.write("b.txt", "no\nline\nend");
  config.train = {"*.txt"};
  for (const char* kind : {"byte", "gpt2"}) {
    config.tokenizer.kind = kind;
    config.tokenizer.path = kind == std::string("gpt2") ? gpt2 : "";
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
    config.tokenizer.kind = kind;
    config.tokenizer.path = gpt2;
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
  config.tokenizer.kind = "word";
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
