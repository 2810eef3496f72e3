// Tests of text sources and their splits.
#include <gmock/gmock.h>

#include <filesystem>
#include <set>

#include "data/file_list.h"
#include "data/text_dataset.h"
#include "tests/data/temporary_folder.h"
#include "tests/data/text_config.h"
#include "tests/data/token_arrays.h"
#include "tests/data_path.h"

namespace linnet {
namespace {

using test::causes_of;
using test::config_of;
using test::lists_of;
using test::TemporaryFolder;
using testing::ElementsAre;

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

TEST(FileList, LinksThatLeadInCirclesEndNothing) {
  const TemporaryFolder folder;
  folder.write("a.txt", "a");
  folder.write("sub/b.txt", "b");
  for (const char* name : {"up", "again"})
    std::filesystem::create_symlink("..", folder / concat("sub/", name));
  std::filesystem::create_symlink(".", folder / "here");
  std::filesystem::create_symlink("itself.txt", folder / "itself.txt");
  std::filesystem::create_symlink("nothing", folder / "dangling.txt");
  std::filesystem::create_symlink("a.txt", folder / "c.txt");
  const auto all = ElementsAre(folder / "a.txt", folder / "c.txt", folder / "sub/b.txt");
  EXPECT_THAT(expand_pattern(folder / "**/*.txt"), all);
  EXPECT_THAT(expand_pattern(folder / "**"), all);
  EXPECT_THAT(expand_pattern(folder / "here/*.txt"),
              ElementsAre(folder / "here/a.txt", folder / "here/c.txt"));
  EXPECT_THAT(files_below(folder.path()), ElementsAre("a.txt", "c.txt", "sub/b.txt"));
  EXPECT_EQ(causes_of([&] { expand_pattern(folder / "itself.txt"); }, folder.path()),
            "not_found at itself.txt");
}

// Without memory of what was searched, this would take longer than anyone waits.
TEST(FileList, PatternsOfManyWildcardsAreQuick) {
  const TemporaryFolder folder;
  std::string deep = "x", pattern = "**";
  for (int i = 0; i < 20; ++i) deep += "/x";
  folder.write(deep + "/a.txt", "a");
  for (int i = 0; i < 15; ++i) pattern += i % 2 == 0 ? "/x/**" : "/**";
  EXPECT_THAT(expand_pattern(folder / (pattern + "/*.txt")),
              ElementsAre(folder / (deep + "/a.txt")));
  const std::string stars = [] {
    std::string text;
    for (int i = 0; i < 60; ++i) text += "a*";
    return text;
  }();
  folder.write(std::string(200, 'a'), "");
  for (const std::string& absent : {stars + "b", std::string(5000, '?'), std::string(5000, 'a')})
    EXPECT_EQ(test::causes_of([&] { expand_pattern(folder / absent); }).substr(0, 9), "not_found");
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
  lists_of(config).train = {"a.txt"};
  lists_of(config).validation = {"b.txt"};
  std::set<std::string> seen;
  const auto print = [&](Split split) { return fingerprint_of(find_text_sources(config), split); };
  EXPECT_EQ(print(Split::test), "");
  EXPECT_TRUE(seen.insert(print(Split::train)).second);
  EXPECT_FALSE(seen.insert(print(Split::train)).second);
  EXPECT_TRUE(seen.insert(print(Split::validation)).second) << "another name";
  folder.write("a.txt", "one\ntwo\nthrew\n");
  EXPECT_TRUE(seen.insert(print(Split::train)).second) << "another byte";
  lists_of(config).train = {"a.txt", "c.txt"};
  EXPECT_TRUE(seen.insert(print(Split::train)).second) << "another file";
  lists_of(config).train.clear();
  lists_of(config).validation.clear();
  std::string text;
  for (int i = 0; i < 20; ++i) text += concat("line ", i, "\n");
  config.path = folder.write("a.txt", text);
  auto& fractions = config.options.as<SplitFractions>();
  fractions.validation_fraction = fractions.test_fraction = 0.3;
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
    const std::string part = data.tokenizer()->decode(test::ids_of(corpus->tokens));
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
  lists_of(config).train = {"a*.txt"};
  lists_of(config).validation = {"b.txt"};
  TextDataset data(config);
  EXPECT_EQ(data.split(Split::train)->documents.size(), 2u);
  EXPECT_EQ(data.tokenizer()->decode(test::ids_of(data.split(Split::validation)->tokens)), "b.txt");
  EXPECT_FALSE(data.has(Split::test));
  EXPECT_EQ(causes_of([&] { data.split(Split::test); }), "not_found data.test");
  lists_of(config).validation = {"a2.txt"};
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
  folder.write(".gitignore", "\xEF\xBB\xBF/build/\r\n*.o\r\n/runs/\r\n");
  EXPECT_EQ(names_of(find_text_sources(config_of("self", folder.path())), Split::train),
            names_of(sources, Split::train));
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

}  // namespace
}  // namespace linnet
