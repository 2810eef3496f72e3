// Steps of generation on a CUDA device.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/random.h"
#include "layers/model.h"

namespace linnet {

// A text that is continued by a token.
struct StepRow {
  size_t text = 0;              // its number, which no other text has
  ModelState* state = nullptr;  // before the last token; updated
  int32_t last = -1;            // the last token
  RandomKey key;                // of the draw of the next one,
  uint64_t draw = 0;            // its number
  double temperature = 1;       // and its temperature; 0: the likeliest token
  int64_t more = 0;             // tokens that are still to be read, this one included; 0: unknown
};

// Reads the last token of each row. Once a step of the same rows left their states in the sizes
// that they had, the steps that follow are replays of a CUDA graph, unless something of the model
// refuses the capture. A row that comes or goes means another graph, and so do steps in which a
// chunk of a row ends, where these are other work (step_period).
// Where it is known how many tokens follow, states that grow are asked to have places for them
// (layers/cache_places.h): for all, or for as many as a text of some length has already, at which
// another graph begins.
class DeviceSteps {
 public:
  virtual ~DeviceSteps() = default;
  // The next tokens, chosen on the device: a step copies no more than them to the host. Throws
  // Error as sample_token().
  virtual std::vector<int32_t> choose(std::span<const StepRow> rows) = 0;
  // The logits of the next tokens, [N,V] on the device.
  virtual Tensor logits(std::span<const StepRow> rows) = 0;
  // Steps so far that were replays.
  virtual int64_t replays() const = 0;
};

// Builds with CUDA have it: recipes/engine/cuda. Refers to the model.
std::unique_ptr<DeviceSteps> make_device_steps(const Transformer& model);

}  // namespace linnet
