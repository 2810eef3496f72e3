// The token cache: tokenized splits in HDF5 files, named by a hash of everything they depend on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/corpus.h"
#include "data/data_config.h"
#include "data/tokenizer.h"

namespace linnet {

// A tokenized split and what the user was told when it was made.
struct CachedCorpus {
  TokenizedCorpus corpus;
  UnknownWords unknown{};
  std::vector<std::string> warnings{};
};

// $LINNET_CACHE, or ~/.cache/linnet; "" when neither variable is set.
std::string token_cache_folder();

// The file, in `folder`, of a split with that fingerprint (fingerprint_of): its name is a hash of
// the fingerprint, the tokenizer, the options that change tokens, and the version of the format.
std::string token_cache_path(const std::string& folder, const DataConfig& config,
                             const std::string& fingerprint, const Tokenizer& tokenizer);

// The contents, or nothing when the file does not exist. A file that is truncated, changed or of
// another format also gives nothing, and a sentence about it is appended to `warnings`. The XXH3
// hash in the last line of the file is compared before HDF5 sees the rest.
std::optional<CachedCorpus> read_token_cache(const std::string& path, int32_t vocabulary_size,
                                             std::vector<std::string>& warnings);

// Writes the file under a temporary name and renames it, making its folder. Throws Error when the
// disk refuses; nothing is left behind then.
void write_token_cache(const std::string& path, const CachedCorpus& cached,
                       int32_t vocabulary_size);

}  // namespace linnet
