// Tests of tokens in memory and in mapped files.
#include "data/token_array.h"

#include <gmock/gmock.h>

#include "tests/data/temporary_folder.h"
#include "tests/data/token_arrays.h"

namespace linnet {
namespace {

using test::array_of;
using test::causes_of;
using test::ids_of;
using test::TemporaryFolder;
using testing::ElementsAre;

TEST(TokenArray, EveryWidthKeepsItsIds) {
  TemporaryFolder folder;
  for (const auto& [vocabulary, width] :
       {std::pair(1, 1), {256, 1}, {257, 2}, {65'536, 2}, {65'537, 4}, {INT32_MAX, 4}}) {
    SCOPED_TRACE(vocabulary);
    EXPECT_EQ(token_bytes(vocabulary), width);
    const std::vector<int32_t> ids = {0, vocabulary - 1, vocabulary / 2, 0};
    std::string stored;
    append_tokens(std::span(ids).first(1), vocabulary, stored);
    append_tokens(std::span(ids).subspan(1), vocabulary, stored);
    EXPECT_EQ(stored.size(), 4u * static_cast<size_t>(width));
    EXPECT_EQ(ids_of(TokenArray(stored, vocabulary)), ids);
    const auto file = std::make_shared<const MappedFile>(folder.write("ids", stored + "rest"));
    const TokenArray mapped(file, 4, vocabulary);
    EXPECT_EQ(mapped.size(), 4);
    EXPECT_EQ(ids_of(mapped), ids);
  }
}

TEST(TokenArray, PartsAndBlocks) {
  std::vector<int32_t> ids(200'000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 7 % 60'000);
  const TokenArray tokens = array_of(ids, 60'000);
  std::vector<int32_t> part(3);
  tokens.read(199'997, part);
  EXPECT_EQ(part, std::vector<int32_t>(ids.end() - 3, ids.end()));
  std::vector<int32_t> visited;
  tokens.for_each(1, 199'999, [&](int32_t id) { visited.push_back(id); });
  EXPECT_EQ(visited, std::vector<int32_t>(ids.begin() + 1, ids.end() - 1));
  tokens.for_each(7, 7, [](int32_t) { FAIL(); });
  for (const int64_t begin : {int64_t{-1}, int64_t{199'998}, INT64_MAX}) {
    EXPECT_EQ(causes_of([&] { tokens.read(begin, part); }), "general") << begin;
  }
  EXPECT_EQ(TokenArray().size(), 0);
  TokenArray().read(0, std::span<int32_t>());
}

// Another program may do anything to a file that is in use.
TEST(TokenArray, AFileThatChangesIsNoticed) {
  TemporaryFolder folder;
  const std::string path = folder / "ids";
  for (const auto& [vocabulary, spoilt] : {std::pair(200, "\xFF"), {300, "\xFF\xFF"}}) {
    std::string stored;
    append_tokens(std::vector<int32_t>{1, 2, 3}, vocabulary, stored);
    folder.write("ids", stored);
    const TokenArray tokens(std::make_shared<const MappedFile>(path), 3, vocabulary);
    EXPECT_THAT(ids_of(tokens), ElementsAre(1, 2, 3));
    write_file(path, spoilt + stored.substr(std::string(spoilt).size()));
    EXPECT_EQ(causes_of([&] { ids_of(tokens); }, folder.path()), "malformed at ids");
    write_file(path, stored);
    EXPECT_THAT(ids_of(tokens), ElementsAre(1, 2, 3));
    file_system().truncate(path, stored.size() - 1);
    EXPECT_EQ(causes_of([&] { ids_of(tokens); }, folder.path()), "malformed at ids");
  }
  // Of four bytes, ids below zero.
  const std::string path4 = folder.write("wide", "\xFF\xFF\xFF\xFF");
  const TokenArray negative(std::make_shared<const MappedFile>(path4), 1, INT32_MAX);
  EXPECT_EQ(causes_of([&] { ids_of(negative); }, folder.path()), "malformed at wide");
}

}  // namespace
}  // namespace linnet
