// The tables of adaptive inputs and softmax: band b of the vocabulary has a table E_b [words, d_b]
// and a projection W_b [width, d_b].
#pragma once

#include <vector>

#include "layers/bands.h"
#include "layers/model_input.h"
#include "layers/parameters.h"

namespace linnet {

class AdaptiveTables {
 public:
  // What they are for: `input` projects every band, `output` has a row for each tail behind the
  // words of band 0, and alone no projection of band 0.
  struct Use {
    bool input = false, output = false;
  };
  // Parameters bands.B.weight and bands.B.projection.
  AdaptiveTables(const ModelConfig& config, const Bands& bands, const ParameterScope& scope,
                 Use use);

  // factor W_b e of every token, i32 [B,T] -> [B,T,E], e being its row of the table of its band b.
  // Rows by band are gathered here where they are undefined, which makes the host wait.
  Variable embed(const Tensor& tokens, const BandTensors& rows, double factor) const;

  const Bands& bands() const { return bands_; }
  const Variable& table(int64_t band) const { return tables_[static_cast<size_t>(band)]; }
  const Variable& projection(int64_t band) const { return projections_[static_cast<size_t>(band)]; }

 private:
  Bands bands_;
  int64_t width_;
  std::vector<Variable> tables_, projections_;
};

// On the device of a model, from the host.
BandTensors to_device(const BandRows& rows, Device device);

// Band `band` of the ids or rows of bands.
Tensor of_band(const Tensor& values, const std::vector<int64_t>& sizes, int64_t band);

// The ids on the host, for which the host waits; what it is refuses to be captured in a CUDA graph.
std::vector<int32_t> ids_on_host(const Tensor& ids);

}  // namespace linnet
