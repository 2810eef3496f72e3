// Tests of the token cache: hits, keys, damage, and a disk that refuses.
#include "data/token_cache.h"

#include <gmock/gmock.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "data/text_dataset.h"
#include "tests/data/temporary_folder.h"
#include "tests/data/text_config.h"
#include "tests/data/token_arrays.h"
#include "tests/data_path.h"

namespace linnet {
namespace {

using test::ids_of;
using test::lists_of;
using test::TemporaryFolder;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

void write_cache(const std::string& path, const std::vector<int32_t>& ids,
                 const std::vector<Document>& documents) {
  TokenCacheWriter writer(path, 256);
  writer.add(ids);
  writer.finish({documents, static_cast<int64_t>(ids.size())});
}

// A data set of two files with its own cache folder.
class TokenCacheTest : public testing::Test {
 protected:
  TokenCacheTest() {
    setenv("LINNET_CACHE", (cache / "new/folder").c_str(), 1);
    texts.write("a.txt", "one two three\n");
    texts.write("b.txt", "four");
    texts.write("empty.txt", "");
    config.path = texts.path();
    lists_of(config).train = {"*.txt"};
  }
  ~TokenCacheTest() override { unsetenv("LINNET_CACHE"); }

  std::vector<std::string> cached_files() const {
    const std::string folder = cache / "new/folder";
    std::vector<std::string> files;
    if (exists(folder))
      for (const auto& name : file_system().list(folder)) files.push_back(join_path(folder, name));
    return files;
  }
  std::string load(std::vector<std::string>* warnings = nullptr) {
    TextDataset data(config);
    const auto corpus = data.split(Split::train);
    if (warnings != nullptr) *warnings = data.take_warnings();
    return data.tokenizer()->decode(ids_of(corpus->tokens));
  }

  TemporaryFolder texts, cache;
  DataConfig config;
};

TEST_F(TokenCacheTest, SecondLoadGivesTheSameCorpusAndWarnings) {
  TextDataset first(config), second(config);
  const auto a = first.split(Split::train);
  ASSERT_EQ(cached_files().size(), 1u);
  const auto b = second.split(Split::train);
  EXPECT_EQ(ids_of(a->tokens), ids_of(b->tokens));
  ASSERT_EQ(b->documents.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(a->documents[i].name, b->documents[i].name);
    EXPECT_EQ(a->documents[i].begin, b->documents[i].begin);
    EXPECT_EQ(a->documents[i].bytes, b->documents[i].bytes);
    EXPECT_EQ(a->documents[i].words, b->documents[i].words);
  }
  EXPECT_THAT(first.take_warnings(), ElementsAre(HasSubstr("empty.txt")));
  EXPECT_THAT(second.take_warnings(), ElementsAre(HasSubstr("empty.txt")));
}

TEST_F(TokenCacheTest, TheCacheIsReallyUsed) {
  load();
  // Planted ids can only come from the cache.
  write_cache(cached_files().at(0), {'h', 'i'}, {{"planted", 0, 2, 1}});
  std::vector<std::string> warnings;
  EXPECT_EQ(load(&warnings), "hi");
  EXPECT_THAT(warnings, IsEmpty());
}

TEST_F(TokenCacheTest, EveryInputChangesTheKey) {
  load();
  auto expect_new_file = [&, count = size_t{1}](const char* what) mutable {
    load();
    EXPECT_EQ(cached_files().size(), ++count) << what;
  };
  texts.write("b.txt", "five!");
  expect_new_file("contents");
  texts.write("c.txt", "six");
  expect_new_file("another file");
  config.text().tokenizer.eos = true;
  expect_new_file("tokenizer");
  config.text().document_eos = false;
  expect_new_file("document_eos");
  config.text().lines = "stripped";
  expect_new_file("lines");
  config.cache = false;
  config.text().lines = "whole";
  config.text().document_eos = true;
  texts.write("d.txt", "seven");
  load();
  EXPECT_EQ(cached_files().size(), 6u) << "cache: false";
}

TEST_F(TokenCacheTest, TheKeyIsTheContentsNotTheTimeOrThePlace) {
  namespace fs = std::filesystem;
  const std::string a = texts / "train/a.txt", elsewhere = cache / "elsewhere";
  texts.write("train/a.txt", "one two three\n");
  config = DataConfig("pg19", texts.path());
  EXPECT_EQ(load(), "one two three\n");
  // The same size and time, other contents.
  const auto time = fs::last_write_time(a);
  texts.write("train/a.txt", "one two seven\n");
  fs::last_write_time(a, time);
  EXPECT_EQ(load(), "one two seven\n");
  EXPECT_EQ(cached_files().size(), 2u);
  // Another time and place, the same contents.
  fs::create_directories(elsewhere);
  fs::copy(texts / "train", elsewhere + "/train", fs::copy_options::recursive);
  fs::last_write_time(elsewhere + "/train/a.txt", time + std::chrono::hours(1));
  config.path = elsewhere;
  EXPECT_EQ(load(), "one two seven\n");
  EXPECT_EQ(cached_files().size(), 2u);
}

TEST_F(TokenCacheTest, AnyDamagedByteOrTruncationIsNoticedAndRepaired) {
  const std::string expected = load();
  const std::string path = cached_files().at(0);
  const std::string good = read_file(path);
  std::vector<std::string> damaged = {"", good.substr(0, 20), good.substr(0, good.size() - 1),
                                      good + "x"};
  for (size_t at = 0; at < good.size(); at += good.size() / 23) {
    std::string flipped = good;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    damaged.push_back(flipped);
  }
  for (const std::string& bytes : damaged) {
    write_file(path, bytes);
    std::vector<std::string> warnings;
    EXPECT_EQ(load(&warnings), expected);
    EXPECT_THAT(warnings, testing::Contains(HasSubstr("cache is rebuilt")));
    EXPECT_EQ(read_file(path), good);
  }
}

TEST_F(TokenCacheTest, AFullDiskAtAnyCallOnlyWarns) {
  int64_t calls_of_writing = 0;
  {
    test::FailingFileSystem disk(-1, test::Failure::no_space);
    TextDataset data(config);
    data.split(Split::train);
    calls_of_writing = disk.calls();
  }
  remove_all(cache / "new");
  for (int64_t fail_at = 0;; ++fail_at) {
    std::vector<std::string> warnings;
    bool failed = false;
    {
      test::FailingFileSystem disk(fail_at, test::Failure::no_space, /*persistent=*/true);
      EXPECT_EQ(load(&warnings), "one two three\nfour");
      failed = disk.failed();
    }
    if (!failed) {
      EXPECT_GT(fail_at, 3);
      break;
    }
    // Behind the last call that makes the file, only files that were read are closed.
    if (fail_at < calls_of_writing)
      EXPECT_THAT(warnings, testing::Contains(HasSubstr("could not be cached"))) << fail_at;
    else
      EXPECT_THAT(warnings, ElementsAre(HasSubstr("empty.txt"))) << fail_at;
    remove_all(cache / "new");
  }
}

// Its hash is right: whoever makes such a file can make that too.
TEST_F(TokenCacheTest, DocumentsOfImpossibleSizesAreRefused) {
  const std::string path = cache / "made.bin";
  for (const int64_t size :
       {INT64_MAX, INT64_MIN, int64_t{-1}, (int64_t{1} << 40) + 1, int64_t{9}}) {
    for (int64_t Document::*member : {&Document::bytes, &Document::words}) {
      std::vector<Document> documents = {{"a", 0, 1, 1}, {"b", 1, 1, 1}};
      documents[1].*member = size;
      write_cache(path, {1, 2}, documents);
      std::vector<std::string> warnings;
      EXPECT_EQ(read_token_cache(path, 256, warnings).has_value(), size == 9) << size;
      EXPECT_EQ(warnings.size(), size == 9 ? 0u : 1u);
    }
  }
}

TEST_F(TokenCacheTest, WideIdsComeBack) {
  LINNET_REQUIRE_DATA(gpt2, "tokenizers/gpt2");
  config.text().tokenizer.kind = "gpt2";
  config.text().tokenizer.path = gpt2;
  const std::string first = load();
  EXPECT_EQ(load(), first);
  EXPECT_EQ(first, "one two three\nfour");
}

}  // namespace
}  // namespace linnet
