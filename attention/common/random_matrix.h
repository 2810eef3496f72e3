// Random projections: how their rows are drawn, and matrices that training may redraw.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "layers/parameters.h"
#include "layers/token_mixer.h"

namespace linnet {

// `rows` vectors of `width` independent standard normal elements.
std::vector<double> gaussian_rows(int64_t rows, int64_t width, const RandomKey& key);

// `rows` vectors of `width` elements, each with the direction of a Gaussian vector, orthogonal
// inside blocks of `width` vectors (the last block may be shorter). Their lengths are distributed
// as those of independent Gaussian vectors, or are all sqrt(width).
enum class RowLength : uint8_t { gaussian, constant };
std::vector<double> orthogonal_rows(int64_t rows, int64_t width, RowLength length,
                                    const RandomKey& key);

// A matrix that is drawn, never trained. The stored one is a buffer of the mixer: drawn from the
// seed, kept in checkpoints. With `redraw_steps` > 0 training uses another one after every so many
// updates (the stored one until then), a function of seed, step and layer, so that a resumed run
// continues with the same; evaluation uses the stored one. A call can be given both: under the
// name, and under the name with "_redrawn".
//
// Redrawn matrices are drawn on the host. A captured CUDA graph reads one at a fixed place, which
// is brought up to date before each replay.
class RandomMatrix {
 public:
  // Fills a matrix of the shape, in row-major order.
  using Draw = std::function<std::vector<double>(const RandomKey& key)>;

  RandomMatrix() = default;
  RandomMatrix(const ParameterScope& scope, const std::string& name, const Shape& shape,
               const Draw& stored, Draw redrawn, int64_t redraw_steps);
  // The matrix in that dtype, on the device of the stored one. `key` is the layer's.
  Variable at(const MixerContext& context, const RandomKey& key, DType dtype) const;

 private:
  struct Latest;

  // In a capture: the matrix that replays read.
  Tensor in_graphs(const RandomKey& key, DType dtype) const;
  // Fills it with the matrix of a step.
  void refresh(RandomKey key, uint64_t step) const;
  // The matrix of that epoch; 0: the stored one.
  Tensor values_of(uint64_t epoch, const RandomKey& key) const;

  std::string name_;
  Variable stored_;
  Draw redrawn_;
  int64_t redraw_steps_ = 0;
  std::shared_ptr<Latest> latest_;  // the last draw, for the micro-batches of a step
};

}  // namespace linnet
