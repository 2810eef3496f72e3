// Byte-pair merging: from the bytes of one piece of text to ids, by ranked merges.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace linnet {

// Maps GPT-2's printable spelling of a byte string (each byte as one character: 33-126, 161-172 and
// 174-255 as themselves, the other 68 ascending from U+0100) back to the bytes. Returns false when
// a character stands for no byte.
bool bytes_of_bpe_spelling(std::string_view spelling, std::string& bytes);

// The ranked merges of a vocabulary.
class BpeMerges {
 public:
  // Memory that encode_piece reuses between calls.
  struct Workspace {
    struct Symbol {
      int32_t id;  // -1 once merged into its left neighbour
      int32_t previous, next;
    };
    struct Candidate {
      uint32_t rank;
      int32_t position;
      int32_t left, right;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  // `ids` maps byte strings to ids; `merges` is the text of vocab.bpe: an optional "#version" line,
  // then one merge per line, most important first. Throws Error that begins with the name of the
  // vocabulary when a byte has no id, and with the name of the merges when one of these is
  // malformed, repeated, or uses a string no earlier merge makes.
  BpeMerges(const std::unordered_map<std::string, int32_t>& ids, std::string_view merges,
            std::string_view vocabulary_name, std::string_view merges_name);

  // Which of the ids 0 .. count-1 are bytes or made by a merge: no text has others.
  std::vector<bool> reached(size_t count) const;

  // Appends the ids of `piece` (under 2^31 bytes): all occurrences, left to right, of the pair of
  // lowest rank are merged until no pair has a rank. O(n log n).
  void encode_piece(std::string_view piece, Workspace& workspace, std::vector<int32_t>& ids) const;

 private:
  struct Merge {
    uint64_t pair = 0;  // left id in the high half
    uint32_t rank = 0;
    int32_t result = -1;  // -1 marks an empty slot
  };
  const Merge* find(int32_t left, int32_t right) const;
  void insert(const Merge& merge);

  std::vector<int32_t> byte_ids_;
  std::vector<Merge> table_;  // open addressing, at most half full
};

}  // namespace linnet
