// Memory of a pass over a tree of guesses, from shapes.
#pragma once

#include "recipes/engine/token_tree.h"

namespace linnet {

// Bytes of what a pass over a tree needs beside weights: decode states, and the temporaries of its
// tokens.
struct TreeMemory {
  double shared = 0;  // one state; temporaries of each node
  // A state for each candidate, which is a path from the root to a leaf; temporaries of each of its
  // tokens, as many as on the longest path, to which candidates are padded.
  double copied = 0;
  double ratio() const { return copied / shared; }
};

// state_bytes: of one decode state; token_bytes: of a token's temporaries (its q, k and v in every
// layer).
TreeMemory tree_memory(const TokenTree& tree, double state_bytes, double token_bytes);

}  // namespace linnet
