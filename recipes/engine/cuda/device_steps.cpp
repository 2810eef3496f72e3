// Steps of generation as a CUDA graph. What a step reads and leaves (tokens, positions, draws,
// decode states) lies in device memory at fixed addresses, so that the next one is the same work.
#include "recipes/engine/device_steps.h"

#include <algorithm>
#include <map>
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
// them as they were, or in the places that were asked for.
bool same_form(const ModelState& before, const ModelState& after) {
  if (before.layers.size() != after.layers.size()) return false;
  for (size_t layer = 0; layer < after.layers.size(); ++layer) {
    const MixerState &from = before.layers[layer], &to = after.layers[layer];
    const int64_t places = requested_places(to);
    for (const auto& [name, value] : to) {
      if (!on_cuda(value.value())) return false;
      const Shape& shape = value.shape();
      const bool has_places = places > 0 && shape.rank() > 1 && shape[1] == places;
      if (has_places || is_request(name)) continue;
      const auto found = from.find(name);
      if (found == from.end()) return false;
      const Tensor &a = value.value(), &b = found->second.value();
      if (shape != b.shape() || !on_cuda(b) || a.dtype() != b.dtype()) return false;
    }
    for (const auto& [name, value] : from) {
      if (!is_request(name) && !to.contains(name)) return false;
    }
  }
  return true;
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
  // Steps that are the same work: those in which the chunks of the same rows end.
  struct Kind {
    bool met = false;  // one ran without a graph
    cuda::Graph graph;
    Tensor logits;
  };

  void step(std::span<const StepRow> rows, bool choose) {
    reserve(bind(rows, choose));
    Kind& kind = kinds_[chunk_ends()];
    if (!kind.graph.defined() && kind.met && steady_) capture(kind);
    if (kind.graph.defined()) {
      kind.graph.replay();
      logits_ = kind.logits;
      ++replays_;
      for (const StepRow& row : rows_) ++row.state->length;
      return;
    }
    std::vector<ModelState> before;
    for (const StepRow& row : rows_) before.push_back(*row.state);
    work(states());
    kind.met = true;
    for (size_t i = 0; i < rows_.size(); ++i) {
      steady_ = (i == 0 || steady_) && same_form(before[i], *rows_[i].state);
    }
    if (!fixed_) return;
    if (!steady_) return forget_graphs();
    // Graphs read the states where they were.
    for (size_t i = 0; i < rows_.size(); ++i) {
      write_into(before[i], *rows_[i].state);
      before[i].length = rows_[i].state->length;
      *rows_[i].state = std::move(before[i]);
    }
  }

  // For every row and layer whose steps have a period, whether this one is the last of it.
  std::vector<bool> chunk_ends() const {
    std::vector<bool> ends;
    for (const StepRow& row : rows_) {
      for (const MixerState& layer : row.state->layers) {
        const int64_t period = step_period(layer);
        if (period > 0) ends.push_back((row.state->length + 1) % period == 0);
      }
    }
    return ends;
  }

  void forget_graphs() {
    kinds_.clear();
    fixed_ = steady_ = false;
  }

  // The tensors of a state to those of another.
  static void write_into(const ModelState& to, const ModelState& from) {
    visit_pairs(from, to, [](const Tensor& now, const Tensor& kept) {
      if (now.raw() != kept.raw()) kept.copy_from(now);
    });
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
      forget_graphs();
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
      const bool asks = first && capture_ && row.more > 0;
      for (MixerState& layer : row.state->layers) {
        const int64_t has = requested_places(layer);
        const bool wants = has > 0 ? has <= length : asks && may_give_places(layer);
        if (!wants) continue;
        request_places(layer, places, device_);
        forget_graphs();
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
  void capture(Kind& kind) {
    if (!capture_) return;
    std::vector<ModelState> kept;
    const auto refuse = [this](std::string_view reason) {
      capture_ = false;
      log_info("steps of generation run without a CUDA graph: ", reason);
    };
    try {
      for (const StepRow& row : rows_) {
        kept.push_back(*row.state);
        if (fixed_) continue;
        for (MixerState& layer : kept.back().layers) {
          for (auto& [name, value] : layer) value = Variable(value.value().clone());
        }
      }
      if (!memory_) memory_ = cuda::make_graph_memory(device_.index);
      kind.graph = cuda::Graph(memory_, [this, &kept] {
        std::vector<ModelState> after = kept;
        std::vector<ModelState*> states;
        for (ModelState& state : after) states.push_back(&state);
        work(states);
        for (size_t i = 0; i < kept.size(); ++i) write_into(kept[i], after[i]);
      });
    } catch (const cuda::NotCapturable& reason) {
      return refuse(reason.what());
    } catch (const OutOfMemory& reason) {
      return refuse(reason.what());
    }
    for (size_t i = 0; i < rows_.size(); ++i) *rows_[i].state = std::move(kept[i]);
    kind.logits = logits_;
    fixed_ = true;
    log_info("a step of generation is a CUDA graph of ", kind.graph.operations(), " operations");
  }

  const Transformer& model_;
  Device device_;
  std::vector<StepRow> rows_;
  std::vector<int32_t> last_;
  bool choose_ = false;
  bool steady_ = false;  // the step before left the states in the form that they had
  bool fixed_ = false;   // the states are in tensors that graphs read and write
  bool capture_ = true;
  Tensor tokens_, positions_, draws_, temperatures_, logits_;
  std::shared_ptr<cuda::GraphMemory> memory_;
  std::map<std::vector<bool>, Kind> kinds_;
  int64_t replays_ = 0;
};

}  // namespace

std::unique_ptr<DeviceSteps> make_device_steps(const Transformer& model) {
  return std::make_unique<GraphSteps>(model);
}

}  // namespace linnet
