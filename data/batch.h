// Batch: the examples of one step, as plain arrays.
#pragma once

#include <cstdint>
#include <vector>

namespace linnet {

inline constexpr int32_t kNotScored = -1;  // the target of a token that is not scored

// B rows of T tokens, row-major. Owns its arrays.
struct Batch {
  int64_t B = 0, T = 0;
  std::vector<int32_t> tokens;   // [B,T] ids
  std::vector<int32_t> targets;  // [B,T] the id to predict, or kNotScored; empty for classification
  std::vector<int32_t> positions;    // [B,T] inside the document, or inside the window
  std::vector<int32_t> segments;     // [B,T] tokens attend within equal numbers; empty: one a row
  std::vector<uint8_t> mask;         // [B,T] 1 = valid; empty: all valid
  std::vector<int64_t> example_ids;  // [B] stable: the same example has it in every epoch
  std::vector<int32_t> labels;       // [B] classes; empty for language models
  // The state that the previous batch left is carried into this one (streaming evaluation).
  bool continues = false;
  // Of the scored targets (classification: of the rows).
  int64_t target_count = 0;
  int64_t scored_bytes = 0, scored_words = 0;
};

}  // namespace linnet
