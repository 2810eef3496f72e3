// What a forward pass computes inside a model, kept for a look: vectors of layers, attention
// weights.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "layers/token_mixer.h"

namespace linnet {

// While one exists, the forward passes of its thread add to it: one example, no padding, no carried
// state. Tensors are f32 copies on the host.
class ForwardRecord {
 public:
  // Layers whose vectors are kept, and the heads of each layer whose weights are, in their order.
  ForwardRecord(std::set<int64_t> hidden, std::map<int64_t, std::vector<int64_t>> attention);
  ~ForwardRecord();
  ForwardRecord(const ForwardRecord&) = delete;
  ForwardRecord& operator=(const ForwardRecord&) = delete;
  // The newest one of this thread; null: none.
  static ForwardRecord* current();

  // From here on it is what this stack computes, in a model of two: "encoder.layers.3.hidden".
  void begin_stack(const std::string& name) { stack_ = name + "."; }
  // Of x [1,T,E], [T,E] under `name`.
  void add(const std::string& name, const Tensor& x);
  // The vectors that a layer leaves: "layers.3.hidden".
  void add_layer(int64_t layer, const Tensor& x);
  // The weights [heads,T,S] by which a layer's attention y [1,T,H,V] takes the mean of the values:
  // "layers.3.attention", of what reads an encoder "decoder.layers.3.cross_attention". They are
  // measured, as what it makes of values that are 1 at one token and 0 elsewhere, so that they are
  // those of its own kernel, with its mask, biases and positions. Nothing is kept where y is no
  // such mean.
  void add_attention(const AttentionMixer& mixer, const MixInput& input,
                     const MixerContext& context, const MixerState& state, const Tensor& y);

  const std::map<std::string, Tensor>& tensors() const { return tensors_; }

 private:
  ForwardRecord* before_;
  std::set<int64_t> hidden_;
  std::map<int64_t, std::vector<int64_t>> attention_;
  std::map<std::string, Tensor> tensors_;
  std::string stack_;
};

}  // namespace linnet
