// Steps of generation as a CUDA graph. What a step reads and leaves (tokens, positions, draws,
// decode states) lies in device memory at fixed addresses, so that the next one is the same work.
#include "recipes/engine/device_steps.h"

#include <algorithm>
#include <utility>

#include "core/cuda/backend.h"
#include "core/cuda/cuda_device.h"
#include "core/cuda/graph.h"
#include "core/log.h"
#include "layers/cache_places.h"
#include "recipes/engine/cuda/sample_rows.h"

namespace linnet {
namespace {

// Calls visit(name of a tensor, a, b) for the tensors of two states. Throws NotCapturable where one
// has tensors that the other lacks.
template <typename Visit>
void visit_pairs(const ModelState& a, const ModelState& b, const Visit& visit) {
  for (size_t layer = 0; layer < a.layers.size(); ++layer) {
    for (const auto& [name, value] : a.layers[layer]) {
      const auto other = b.layers[layer].find(name);
      if (other == b.layers[layer].end()) throw cuda::NotCapturable("a state that gains tensors");
      visit(value.value(), other->second.value());
    }
    if (a.layers[layer].size() != b.layers[layer].size()) {
      throw cuda::NotCapturable("a state that loses tensors");
    }
  }
}

// Whether the next step will find the sizes of a state as they are, on the device: this one left
// them as they were, or gave the cached tokens the places that were asked for.
bool same_form(const ModelState& before, const ModelState& after) {
  if (before.layers.size() != after.layers.size()) return false;
  for (size_t layer = 0; layer < after.layers.size(); ++layer) {
    const MixerState &from = before.layers[layer], &to = after.layers[layer];
    if (from.size() != to.size()) return false;
    const int64_t places = requested_places(to);
    for (const auto& [name, value] : to) {
      const auto found = from.find(name);
      if (found == from.end()) return false;
      const Tensor &a = value.value(), &b = found->second.value();
      const bool of_cache = name == "k" || name == "v" || name == "valid";
      const bool stays = places > 0 && of_cache ? a.size(1) == places : a.shape() == b.shape();
      if (!stays || !on_cuda(a) || !on_cuda(b) || a.dtype() != b.dtype()) return false;
    }
  }
  return true;
}

// Whether a layer's state has every token of the text.
bool holds_all(const MixerState& state, int64_t length) {
  const auto keys = state.find("k");
  return keys != state.end() && state.contains("v") && state.contains("valid") &&
         keys->second.size(1) == length;
}

// The fewest places that states are asked to have, where so many tokens follow.
constexpr int64_t kMinPlaces = 1024;

class GraphSteps final : public DeviceSteps {
 public:
  explicit GraphSteps(const Transformer& model) : model_(model), device_(model.device()) {}

  std::vector<int32_t> choose(std::span<const StepRow> rows) override {
    step(rows, true);
    last_ = tokens_.to_vector<int32_t>();  // waits for the device
    for (const int32_t token : last_) {
      require(token != cuda::kLogitIsNan, "sample_token: a logit is NaN");
      require(token != cuda::kNothingToDraw, "sample_token: the largest logit is not finite");
    }
    return last_;
  }

  Tensor logits(std::span<const StepRow> rows) override {
    step(rows, false);
    return logits_;
  }

  int64_t replays() const override { return replays_; }

 private:
  void step(std::span<const StepRow> rows, bool choose) {
    reserve(bind(rows, choose));
    if (!graph_.defined() && steady_) capture();
    if (graph_.defined()) {
      graph_.replay();
      ++replays_;
      for (const StepRow& row : rows_) ++row.state->length;
      return;
    }
    std::vector<ModelState> before;
    for (const StepRow& row : rows_) before.push_back(*row.state);
    work(states());
    for (size_t i = 0; i < rows_.size(); ++i) {
      steady_ = (i == 0 || steady_) && same_form(before[i], *rows_[i].state);
    }
  }

  // Lets the device read these rows. Whether they are others than before.
  bool bind(std::span<const StepRow> rows, bool choose) {
    const auto texts = [](const StepRow& a, const StepRow& b) { return a.text == b.text; };
    const bool same = choose == choose_ &&
                      std::equal(rows.begin(), rows.end(), rows_.begin(), rows_.end(), texts);
    const bool known = same && choose;  // it chose the tokens and has counted on
    rows_.assign(rows.begin(), rows.end());
    choose_ = choose;
    if (!same) {
      graph_ = {};
      steady_ = false;
      const auto count = static_cast<int64_t>(rows.size());
      tokens_ = Tensor::zeros({count, 1}, DType::i32, device_);
      positions_ = Tensor::zeros({count, 1}, DType::i32, device_);
      draws_ = Tensor::zeros({count, cuda::kDrawValues}, DType::i64, device_);
      temperatures_ = Tensor::zeros({count}, DType::f64, device_);
    }
    if (!known) write_rows();
    return !same;
  }

  // Asks for places in states that grow, at first and where they are full. A step copies all of
  // them, so that a short text does not get those of a long limit.
  void reserve(bool first) {
    for (const StepRow& row : rows_) {
      const int64_t length = row.state->length;
      const int64_t last = length + std::max<int64_t>(row.more, 1);
      const int64_t places = std::min(last, std::max(2 * length, kMinPlaces));
      const bool asks = first && capture_ && row.more > 0 && row.state->cross.empty();
      for (MixerState& layer : row.state->layers) {
        const int64_t has = requested_places(layer);
        const bool wants = has > 0 ? has <= length : asks && holds_all(layer, length);
        if (!wants) continue;
        request_places(layer, places, device_);
        graph_ = {};
        steady_ = false;
      }
    }
  }

  void write_rows() const {
    std::vector<int32_t> tokens, positions;
    std::vector<int64_t> draws;
    std::vector<double> temperatures;
    for (const StepRow& row : rows_) {
      tokens.push_back(row.last);
      positions.push_back(static_cast<int32_t>(row.state->length));
      for (const uint64_t value : {row.key.seed, row.key.step, row.key.site, row.draw}) {
        draws.push_back(static_cast<int64_t>(value));
      }
      temperatures.push_back(row.temperature);
    }
    tokens_.copy_from(Tensor::from(tokens, tokens_.shape()));
    positions_.copy_from(Tensor::from(positions, positions_.shape()));
    if (!choose_) return;
    draws_.copy_from(Tensor::from(draws, draws_.shape()));
    temperatures_.copy_from(Tensor::from(temperatures, temperatures_.shape()));
  }

  std::vector<ModelState*> states() const {
    std::vector<ModelState*> states;
    for (const StepRow& row : rows_) states.push_back(row.state);
    return states;
  }

  // Updates the states. Nothing in it waits for the device.
  void work(std::span<ModelState* const> states) {
    const Tensor hidden = model_.encode_rows(tokens_, positions_, states).value();
    logits_ = model_.token_head().logits(hidden.reshape({hidden.size(0), hidden.size(2)}));
    if (!choose_) return;
    const Tensor weights = Tensor::empty(logits_.shape(), DType::f64, device_);
    cuda::sample_rows(logits_, temperatures_, draws_, weights, positions_, tokens_);
  }

  // From now on the states are in tensors of their own, which replays write.
  void capture() {
    // What reads a source may choose its part of it on the host, by the number of the step.
    if (!capture_ || !rows_.front().state->cross.empty()) return;
    std::vector<ModelState> kept;
    const auto refuse = [this](std::string_view reason) {
      capture_ = false;
      log_info("steps of generation run without a CUDA graph: ", reason);
    };
    try {
      for (const StepRow& row : rows_) {
        kept.push_back(*row.state);
        for (MixerState& layer : kept.back().layers) {
          for (auto& [name, value] : layer) value = Variable(value.value().clone());
        }
      }
      if (!memory_) memory_ = cuda::make_graph_memory(device_.index);
      graph_ = cuda::Graph(memory_, [this, &kept] {
        std::vector<ModelState> after = kept;
        std::vector<ModelState*> states;
        for (ModelState& state : after) states.push_back(&state);
        work(states);
        for (size_t i = 0; i < kept.size(); ++i) {
          visit_pairs(after[i], kept[i], [](const Tensor& from, const Tensor& to) {
            if (from.raw() != to.raw()) to.copy_from(from);
          });
        }
      });
    } catch (const cuda::NotCapturable& reason) {
      return refuse(reason.what());
    } catch (const OutOfMemory& reason) {
      return refuse(reason.what());
    }
    for (size_t i = 0; i < rows_.size(); ++i) *rows_[i].state = std::move(kept[i]);
    log_info("a step of generation is a CUDA graph of ", graph_.operations(), " operations");
  }

  const Transformer& model_;
  Device device_;
  std::vector<StepRow> rows_;
  std::vector<int32_t> last_;
  bool choose_ = false;
  bool steady_ = false;  // the step before left the states in the form that they had
  bool capture_ = true;
  Tensor tokens_, positions_, draws_, temperatures_, logits_;
  std::shared_ptr<cuda::GraphMemory> memory_;
  cuda::Graph graph_;
  int64_t replays_ = 0;
};

}  // namespace

std::unique_ptr<DeviceSteps> make_device_steps(const Transformer& model) {
  return std::make_unique<GraphSteps>(model);
}

}  // namespace linnet
