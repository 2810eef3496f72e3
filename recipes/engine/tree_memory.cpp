#include "recipes/engine/tree_memory.h"

namespace linnet {

TreeMemory tree_memory(const TokenTree& tree, double state_bytes, double token_bytes) {
  const auto candidates = static_cast<double>(tree.leaves());
  const auto length = static_cast<double>(tree.depth() + 1);
  return {state_bytes + static_cast<double>(tree.size()) * token_bytes,
          candidates * (state_bytes + length * token_bytes)};
}

}  // namespace linnet
