// A set of byte strings with ids that finds the longest one at a place of a text.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace linnet {

class ByteTrie {
 public:
  struct Match {
    int32_t id = -1;  // -1: none
    size_t bytes = 0;
  };

  // Room for strings of so many bytes together.
  explicit ByteTrie(size_t bytes);
  // The string must not be empty.
  void insert(std::string_view string, int32_t id);
  // The longest string that `text` begins with; with `from`, of what follows it in the trie.
  Match longest(std::string_view text, int32_t from = kRoot) const;
  // Calls visit(match) for the strings that `text` begins with, the shortest first.
  template <typename Visit>
  void for_each_prefix(std::string_view text, const Visit& visit) const {
    int32_t node = kRoot;
    for (size_t i = 0; i < text.size(); ++i) {
      node = child(node, static_cast<unsigned char>(text[i]));
      if (node < 0) return;
      if (const int32_t id = ids_[static_cast<size_t>(node)]; id >= 0) visit(Match{id, i + 1});
    }
  }
  // Where `prefix` leads; -1 if no string begins with it.
  int32_t node_of(std::string_view prefix) const;
  static constexpr int32_t kRoot = 0;

 private:
  int32_t child(int32_t node, unsigned char byte) const;
  size_t slot_of(uint64_t key) const;
  struct Edge {
    uint64_t key = 0;  // node and byte, plus one; 0: empty
    int32_t child = 0;
  };
  std::vector<Edge> edges_;   // open addressing, at most half full
  std::vector<int32_t> ids_;  // by node; -1: no string ends here
};

}  // namespace linnet
