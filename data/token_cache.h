// The token cache: tokenized splits in files, named by a hash of everything they depend on. They
// are written in a stream, and mapped to be read.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/atomic_file.h"
#include "core/hash.h"
#include "data/corpus.h"
#include "data/data_config.h"
#include "data/tokenizer.h"

namespace linnet {

// What is known of a tokenized split beside its tokens, and what the user was told when it was
// made.
struct SplitFacts {
  std::vector<Document> documents{};
  int64_t tokens = 0;
  UnknownWords unknown{};
  std::vector<std::string> warnings{};
};

struct CachedSplit {
  TokenArray tokens;
  SplitFacts facts;
};

// $LINNET_CACHE, or ~/.cache/linnet; "" when neither variable is set.
std::string token_cache_folder();

// The file, in `folder`, of a split with that fingerprint (fingerprint_of): its name is a hash of
// the fingerprint, the tokenizer, the options that change tokens, and the version of the format.
std::string token_cache_path(const std::string& folder, const DataConfig& config,
                             const std::string& fingerprint, const Tokenizer& tokenizer);

// The contents, or nothing when the file does not exist. A file that is truncated, changed or of
// another format also gives nothing, and a sentence about it is appended to `warnings`. The XXH3
// hash in the last line of the file is compared, and every id, before anything else is believed.
std::optional<CachedSplit> read_token_cache(const std::string& path, int32_t vocabulary_size,
                                            std::vector<std::string>& warnings);

// Writes the file under a temporary name, which it gives up at the end, making its folder. Without
// finish() nothing is left. Every function throws Error when the disk refuses.
class TokenCacheWriter {
 public:
  TokenCacheWriter(const std::string& path, int32_t vocabulary_size);
  // The next tokens.
  void add(std::span<const int32_t> ids);
  // `facts` of all tokens.
  void finish(const SplitFacts& facts);

 private:
  void write(std::string_view bytes);

  AtomicFile file_;
  int32_t vocabulary_size_;
  Hash128 hash_;
  std::string waiting_;  // tokens that are not written yet
  size_t unsynced_ = 0;  // bytes that are
};

}  // namespace linnet
