// GPT-2's way from text to ids: pieces by the classes of characters, then merges of bytes.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/bpe_merges.h"
#include "data/piece_cache.h"

namespace linnet {

// The end of the piece that begins at text[at], at < text.size(), as GPT-2's pattern has it:
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// with Unicode's White_Space for \s. The text must be valid UTF-8.
size_t end_of_bpe_piece(std::string_view text, size_t at);

// Tokenizer::last_cut for these pieces: before ASCII white space that follows a character which is
// no white space. A piece ends there whatever precedes it, and none begins with what is before.
size_t last_bpe_cut(std::string_view text);

// Pieces and merges with a cache between calls. Any thread may call at any time.
class ByteLevelBpe {
 public:
  // As BpeMerges.
  ByteLevelBpe(const std::unordered_map<std::string, int32_t>& ids, std::string_view merges,
               std::string_view vocabulary_name, std::string_view merges_name)
      : merges_(ids, merges, vocabulary_name, merges_name) {}
  // Appends the ids of valid UTF-8 text.
  void encode(std::string_view text, std::vector<int32_t>& ids) const;
  const BpeMerges& merges() const { return merges_; }

 private:
  struct Workspace {
    PieceCache cache;
    BpeMerges::Workspace merging;
  };
  BpeMerges merges_;
  mutable WorkspacePool<Workspace> pool_;
};

}  // namespace linnet
