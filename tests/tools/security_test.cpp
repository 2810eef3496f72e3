// README's section "Security": its table and its sentences say what the program does, and the
// program does it. A claim that is changed or added there must be changed or added here.

#include <cstdlib>
#include <cstring>
#include <regex>

#include "data/archive.h"
#include "data/image.h"
#include "tests/data_path.h"
#include "tests/tools/cli.h"

namespace linnet {
namespace {

using test::Outcome;
using testing::HasSubstr;
using testing::Not;

class Security : public test::Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    const std::string readme = read_file(join_path(test::source_dir(), "README.md"));
    const size_t begin = readme.find("\n## Security\n");
    ASSERT_NE(begin, std::string::npos);
    section_ = readme.substr(begin, readme.find("\n## ", begin + 1) - begin);
    // As one line, however it is broken.
    section_ = std::regex_replace(section_, std::regex("\\s+"), " ");
  }
  void expect_claimed(const std::string& words) const {
    EXPECT_THAT(section_, HasSubstr(words)) << "README's Security says this no longer";
  }
  // A claim in these words, and what the program says where it refuses.
  void expect_refused(const std::string& words, const std::vector<std::string>& command, int code,
                      const std::string& said) {
    expect_claimed(words);
    expect_error(command, code, said);
  }
  std::string section_;
};

TEST_F(Security, TheTableHasTheRowsThatAreTestedHere) {
  std::vector<std::string> rows;
  const std::regex row("\\| ([^|]+) \\| [^|]+ \\|");
  for (std::sregex_iterator at(section_.begin(), section_.end(), row), end; at != end; ++at) {
    rows.push_back((*at)[1]);
  }
  EXPECT_THAT(
      rows, testing::ElementsAre("what", "all files", "recipes, overrides", "checkpoints",
                                 "safetensors, `config.json`", "decode states (`generate --state`)",
                                 "HDF5 (cases, weights, optimizer states, token caches)",
                                 "tokenizers", "archives (tar, tar.gz, tar.xz, zip)",
                                 "tables and JSON lines of labelled texts", "PNG and JPEG images",
                                 "JSON, `metrics.jsonl`", "what errors and logs echo"));
}

TEST_F(Security, PretrainedModels) {
  const std::string config =
      R"({"model_type": "bert", "hidden_size": 8, "num_hidden_layers": 1,
          "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 256})";
  folder_.write("bert/config.json", config);
  const test::Outcome recipe = linnet({"model", "import", "bert"});
  ASSERT_EQ(recipe.code, 0) << recipe.err;
  folder_.write("bert.yaml", recipe.out);
  folder_.write("rows.tsv", "text\tlabel\na\tx\nb\ty\nc\tx\nd\ty\n");
  folder_.write("bert/vocab.txt", "[UNK]\n");
  const std::vector<std::string> train = {"train", "bert.yaml", "data.tokenizer={kind: byte}",
                                          "--out", "run"};
  const auto file = [&](uint64_t length, const std::string& header, size_t data) {
    std::string bytes(sizeof(length), '\0');
    std::memcpy(bytes.data(), &length, sizeof(length));
    folder_.write("bert/model.safetensors", bytes + header + std::string(data, 'x'));
  };
  file(100'000'001, "{}", 0);
  expect_refused("a header of at most 100 MB", train, 1, "exceeds the format's 100000000");
  const std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  file(a.size() + 2, "{" + a + "}", 9);
  expect_refused("every byte of one tensor", train, 1, "the tensors end at byte 8 of 9 of data");
  file(2 * a.size() + 3, "{" + a + "," + a + "}", 8);
  expect_refused("no name twice", train, 1, "has 'a' twice");
  const std::string huge =
      R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}})";
  file(huge.size(), huge, 8);
  expect_refused("checked products", train, 1, "more elements than memory can hold");
  folder_.write("bert/config.json", std::string((1 << 20) + 1, ' '));
  expect_refused("1 MiB", {"model", "import", "bert"}, 1, "1048576");
}

TEST_F(Security, DecodeStates) {
  for (const char* seed : {"1", "2"}) {
    const std::string changed = concat("seed=", seed);
    ASSERT_EQ(linnet({"train", "tiny.yaml", changed, "generate.tokens=0", "--out", seed}).code, 0);
  }
  const std::vector<std::string> save = {"generate", "1", "--prompt",     "line",
                                         "--tokens", "0", "--save-state", "saved"};
  ASSERT_EQ(linnet(save).code, 0);
  expect_refused("of the model's weights", {"generate", "2", "--state", "saved"}, 1,
                 "was made with other weights");
  std::string changed = read_file(folder_ / "saved");
  changed.back() ^= 1;
  write_file(folder_ / "saved", changed);
  expect_refused("hashes of the tensors", {"generate", "1", "--state", "saved"}, 1, "is damaged");
  expect_claimed("names, dtypes and shapes");  // tests/recipes/saved_state_test.cpp
}

TEST_F(Security, FilesAndRecipes) {
  expect_refused("regular files only", {"data", "inspect", "/dev/zero"}, 1, "a regular file");
  folder_.write("long.yaml", std::string((256 << 10) + 1, '#'));
  expect_refused("256 KiB", {"recipe", "check", "long.yaml"}, 2, "the limit of 262144");
  std::string seeds = "0";
  for (int i = 1; i <= 1000; ++i) seeds += concat(", ", i);
  folder_.write("points.yaml", concat("extends: tiny.yaml\nsweep: {seed: [", seeds, "]}\n"));
  expect_refused("1,000 points of a sweep", {"recipe", "check", "points.yaml"}, 2,
                 "more than 1000 combinations");
  for (const auto& [seed, said] :
       {std::pair("&a 3", "anchors"), std::pair("*a", "aliases"), std::pair("!!int 3", "tags")}) {
    folder_.write("odd.yaml", concat("extends: tiny.yaml\nseed: ", seed, "\n"));
    expect_refused("no anchors, aliases, tags", {"recipe", "check", "odd.yaml"}, 2, said);
  }
  expect_refused("every count has a bound",
                 {"recipe", "check", "tiny.yaml", "model.layers=1000000000"}, 2, "1 to 1000");
  expect_refused("Loading runs no code of a file", {"recipe", "check", "tiny.yaml", "plugin=x.so"},
                 2, "unknown key 'plugin'");
}

TEST_F(Security, CheckpointsAndRuns) {
  ASSERT_EQ(linnet({"train", "tiny.yaml", "--out", "run"}).code, 0);
  const std::string checkpoint = "run/checkpoints/step-00000004";
  const std::string weights = folder_ / (checkpoint + "/weights.h5");
  const std::string kept = read_file(weights);
  std::string changed = kept;
  changed.back() ^= 1;
  write_file(weights, changed);
  expect_refused("XXH3-128 of `manifest.json`", {"evaluate", checkpoint}, 1, "have the hash");
  write_file(weights, kept + "x");
  expect_refused("against the size and", {"evaluate", checkpoint}, 1, "bytes");
  const std::string manifest = folder_ / (checkpoint + "/manifest.json");
  ASSERT_EQ(::truncate(manifest.c_str(), (16 << 20) + 1), 0);
  expect_refused("(16 MiB at most)", {"evaluate", checkpoint}, 1, "the limit of 16777216");
  const std::string metrics = folder_ / "run/metrics.jsonl";
  write_file(metrics, read_file(metrics) + "{\"kind\": oops\n");
  expect_claimed("malformed lines are left out, counted and named");
  const Outcome report = linnet({"report", "run"});
  EXPECT_EQ(report.code, 0) << report.err;
  EXPECT_THAT(report.out + report.err, HasSubstr("1 line of metrics.jsonl is malformed"));
}

TEST_F(Security, WhatIsReadBesideThem) {
  folder_.write("case.h5", "no HDF5");
  expect_refused("[without the HDF5 library]", {"attention", "run", "case.h5", "--out", "out.h5"},
                 1, "is not an HDF5 file");
  folder_.write("bpe/encoder.json", std::string((8 << 20) + 1, ' '));
  folder_.write("bpe/vocab.bpe", "#version: 0.2\n");
  expect_refused("`encoder.json` 8 MiB",
                 {"train", "tiny.yaml", "--dry-run", "data.tokenizer={kind: gpt2, path: bpe}"}, 1,
                 "the limit of 8388608");
  for (const char* name : {"rows.tsv", "more.tsv"})
    folder_.write(name, "text\tlabel\ngood\t1\nbad\n");
  expect_refused("refused by file and line",
                 {"recipe", "check", "tiny.yaml",
                  "data={kind: tsv, train: [rows.tsv], validation: [more.tsv], context: 16}",
                  "model={kind: encoder, attention: {name: softmax}}",
                  "train={tokens_per_update: null, examples_per_update: 4, max_steps: 2}"},
                 1, "rows.tsv:3: has 1 columns");
  const ArchiveLimits limits;
  EXPECT_EQ(limits.bytes, uint64_t{64} << 30);
  EXPECT_EQ(limits.members, 1'000'000U);
  EXPECT_EQ(limits.ratio, 250U);
  expect_claimed("at most 64 GiB, 1,000,000 members and 250 times the archive's size");
  const std::string make = concat("cd '", folder_.path(),
                                  "' && ln -s a.txt text/link && tar cf links.tar text && "
                                  "tar cPf outside.tar text/../tiny.yaml 2> /dev/null");
  ASSERT_EQ(std::system(make.c_str()), 0);
  expect_claimed("no links, devices or encryption");
  EXPECT_THAT(test::message_of([&] { unpacked(folder_ / "links.tar", folder_ / "cache"); }),
              HasSubstr("is a symbolic link"));
  expect_claimed("inside the archive's own folder");
  EXPECT_THAT(test::message_of([&] { unpacked(folder_ / "outside.tar", folder_ / "cache"); }),
              HasSubstr("'..' in its name"));
  expect_claimed("4,096 pixels a side");
  EXPECT_EQ(kMaxImageSide, 4096);
  expect_claimed("control characters made visible");
  const Outcome echoed = linnet({"train", "no\x1b[31mred.yaml"});
  EXPECT_THAT(echoed.err, HasSubstr("no\\x1b[31mred.yaml"));
  EXPECT_THAT(echoed.err, Not(HasSubstr("\x1b")));
}

}  // namespace
}  // namespace linnet
