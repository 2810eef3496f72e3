// A trie whose edges are in one hash table.
#include "data/byte_trie.h"

#include <bit>

namespace linnet {
namespace {

uint64_t key_of(int32_t node, unsigned char byte) {
  return (static_cast<uint64_t>(node) << 8 | byte) + 1;
}

}  // namespace

ByteTrie::ByteTrie(size_t bytes) : edges_(std::bit_ceil(2 * bytes + 2)), ids_(1, -1) {}

size_t ByteTrie::slot_of(uint64_t key) const {
  const size_t mask = edges_.size() - 1;
  size_t slot = (key * 0x9E3779B97F4A7C15u) >> 32 & mask;
  while (edges_[slot].key != 0 && edges_[slot].key != key) slot = (slot + 1) & mask;
  return slot;
}

int32_t ByteTrie::child(int32_t node, unsigned char byte) const {
  const Edge& edge = edges_[slot_of(key_of(node, byte))];
  return edge.key == 0 ? -1 : edge.child;
}

void ByteTrie::insert(std::string_view string, int32_t id) {
  int32_t node = kRoot;
  for (const char c : string) {
    const uint64_t key = key_of(node, static_cast<unsigned char>(c));
    Edge& edge = edges_[slot_of(key)];
    if (edge.key == 0) {
      edge = {key, static_cast<int32_t>(ids_.size())};
      ids_.push_back(-1);
    }
    node = edge.child;
  }
  ids_[static_cast<size_t>(node)] = id;
}

ByteTrie::Match ByteTrie::longest(std::string_view text, int32_t from) const {
  Match best;
  int32_t node = from;
  for (size_t i = 0; i < text.size(); ++i) {
    node = child(node, static_cast<unsigned char>(text[i]));
    if (node < 0) break;
    if (const int32_t id = ids_[static_cast<size_t>(node)]; id >= 0) best = {id, i + 1};
  }
  return best;
}

int32_t ByteTrie::node_of(std::string_view prefix) const {
  int32_t node = kRoot;
  for (size_t i = 0; i < prefix.size() && node >= 0; ++i)
    node = child(node, static_cast<unsigned char>(prefix[i]));
  return node;
}

}  // namespace linnet
