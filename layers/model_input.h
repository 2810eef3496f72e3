// A batch as a model sees it, and the sizes of a model that its data determine.
#pragma once

#include <vector>

#include "autograd/dropout.h"
#include "core/random.h"
#include "core/tensor.h"

namespace linnet {

// Tokens by band of the vocabulary (layers/bands.h), on the device.
struct BandTensors {
  std::vector<int64_t> sizes;
  Tensor ids, rows;  // i32 [sum of sizes]
};

// Undefined tensors take their defaults.
struct ModelInput {
  Tensor tokens;     // i32 [B,T]; of kind encoder_decoder with a `source`: the decoder's
  Tensor positions;  // i32 [B,T]; undefined: offset, offset + 1, ...
  Tensor key_mask;   // u8 [B,T]; undefined: all valid
  Tensor segments;   // i32 [B,T]; undefined: one document a row
  // i32 [B,T], which text of a pair a token is of; undefined: all of the first.
  Tensor token_types;
  // Of kind encoder_decoder, i32 and u8 [B,S]: what the encoder reads, and which of it is valid
  // (undefined: all). Without a source it reads `tokens`, and the decoder has the same one place to
  // the right.
  Tensor source, source_mask;
  // For models with adaptive inputs and softmax; undefined: gathered when they are needed, for
  // which the host waits.
  BandTensors token_bands, target_tails;
  Tensor head_targets;           // i32 [B,T]: see TargetBands
  int64_t rows_per_example = 1;  // 2: rows 2i and 2i+1 are one example, a pair
  DrawPlace place;               // examples must be set while training with dropout
  RandomKey random;
  bool training = false;
  bool recompute = false;  // discard activations inside blocks, recompute them in backward
};

struct ModelSizes {
  int64_t vocabulary = 0;
  int64_t length = 0;            // training context
  int64_t classes = 0;           // of examples, 1 for a value to predict; 0: tokens are predicted
  int64_t rows_per_example = 1;  // 2: examples are pairs for two towers
};

}  // namespace linnet
