// `linnet model run`: what a checkpoint computes of one text, as a file for other programs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/device.h"

namespace linnet {

struct ModelRunRequest {
  std::optional<std::string> text;  // or else
  std::vector<int32_t> ids;
  std::string out;        // .safetensors, or else HDF5
  std::string layers;     // "0,4-5", "all"; empty: all
  std::string attention;  // "0-3:1,2", layers and after ':' heads (without: all); empty: none
  Device device;
};

// Writes f32 tensors, but for the ids, i32 [T]:
// - "embedded" [T,E], the vectors before the first layer, and "layers.I.hidden" [T,E] after each;
//   in an encoder_decoder "encoder.layers.I.hidden", "encoder.final" and "decoder.layers.I.hidden";
// - "final" [T,E], what the head reads (after the final norm, where there is one);
// - "logits", [T,V] of a model that predicts tokens, else [classes];
// - "layers.I.attention" [heads,T,T]: row t are the weights by which token t takes the mean of the
//   values; in an encoder_decoder of both stacks, and "decoder.layers.I.cross_attention".
// Returns lines for the log: what was written, and a sentence for each layer that was asked for
// weights and has none. Throws UsageError for a text or ids that the model cannot read, layers and
// heads that it does not have, and models that read an example in two rows.
std::vector<std::string> run_model(const std::string& run_or_checkpoint,
                                   const ModelRunRequest& request);

}  // namespace linnet
