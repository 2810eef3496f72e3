// A text data set: its tokenizer and its tokenized splits.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/corpus.h"
#include "data/data_config.h"
#include "data/text_sources.h"
#include "data/token_cache.h"

namespace linnet {

// Throws UsageError for data.lines: stripped with a tokenizer that has no eos, or ends lines
// itself, as the constructor of TextDataset does where only the tokenizer's file tells.
void check_line_ends(const DataConfig& config);

struct SplitCounts {
  int64_t documents = 0, bytes = 0, words = 0, tokens = 0;
};

// Splits are read at first use, from the token cache where that is on. Not for concurrent use.
class TextDataset {
 public:
  // Finds the files and makes the tokenizer; a given tokenizer (of a checkpoint) is used instead of
  // the one in the configuration. A word tokenizer without a path is built from the training split.
  // Throws Error naming what is missing.
  // `cache_folder` is where cached tokens are kept (empty: token_cache_folder()).
  explicit TextDataset(const DataConfig& config,
                       std::shared_ptr<const Tokenizer> tokenizer = nullptr,
                       std::string cache_folder = "");

  const DataConfig& config() const { return config_; }
  const TextSources& sources() const { return sources_; }
  const std::shared_ptr<const Tokenizer>& tokenizer() const { return tokenizer_; }
  // How many bytes and words its tokens stand for.
  const TokenMeasure& measure() const { return measure_; }

  bool has(Split split) const { return !sources_.files(split).empty(); }
  // The tokens of a split: in a mapped file of the cache, or in memory without one. Throws Error
  // that says why the split is missing or empty, or names the file that is broken.
  std::shared_ptr<const TokenizedCorpus> split(Split split);

  // Its size; without a cache its tokens are counted, not kept. Throws as split() does.
  SplitCounts counts(Split split);

  // fingerprint_of() the split, computed at first use.
  const std::string& fingerprint(Split split);

  // Warnings to the user, gathered since the last call: files that are not complete, unknown
  // words, a cache that had to be rebuilt.
  std::vector<std::string> take_warnings();

 private:
  using TokenSink = std::function<void(std::span<const int32_t>)>;
  // Gives the tokens to `sink` in their order.
  SplitFacts tokenize(Split split, const TokenSink& sink) const;
  CachedSplit tokenize_in_memory(Split split) const;
  CachedSplit load_through_cache(Split split);
  void keep_warnings(Split split, SplitFacts& facts);
  void report_unknown_words();

  DataConfig config_;
  TextSources sources_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  TokenMeasure measure_;
  std::string cache_folder_;
  std::array<std::shared_ptr<const TokenizedCorpus>, 3> splits_;
  std::array<std::optional<std::string>, 3> fingerprints_;
  struct Unknown {
    UnknownWords words;
    int64_t tokens = 0;  // of the split
  };
  std::array<Unknown, 3> unknown_;  // not reported yet
  std::vector<std::string> warnings_;
};

}  // namespace linnet
