// An update on a CUDA device. Inputs that change from one update to the next (batches, the step,
// rates) are written to device memory at fixed addresses, so that the work itself never changes: it
// is captured as CUDA graphs, one for the passes of each form of micro-batch and one for the rest.
// Of several processes the last pass of an update has one of its own, with the sums of gradients.
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "core/cuda/cuda_device.h"
#include "core/cuda/elementwise.h"
#include "core/cuda/graph.h"
#include "core/elementwise.h"
#include "core/log.h"
#include "optim/cuda/update.h"
#include "recipes/engine/gradient_buckets.h"
#include "recipes/engine/train_step.h"
#include "recipes/engine/update_work.h"

namespace linnet {
namespace {

// Work that is captured when it is done for the second time: the first one makes what lasts, such
// as tables and the plans of products.
struct Work {
  bool done = false;
  cuda::Graph graph;
};

// Micro-batches of one form go through the same tensors.
struct MicroBatch {
  DeviceBatch batch;
  Work passes, last;  // without and with sums over processes
};

class DeviceUpdate final : public UpdateWork {
 public:
  explicit DeviceUpdate(const TrainParts& parts)
      : parts_(parts),
        device_(parts.model.device()),
        buckets_(make_gradient_buckets(parts)),
        step_(Tensor::zeros({1}, DType::i64, device_)),
        loss_(Tensor::zeros({}, DType::f64, device_)),
        squares_(Tensor::zeros({}, DType::f64, device_)),
        scalars_(Tensor::zeros({cuda::kUpdateScalars}, DType::f64, device_)) {
    if (!parts.recipe.train.cuda_graph) return;
    graph_memory_ = cuda::make_graph_memory(device_.index);
    capture_passes_ = capture_last_ = capture_update_ = true;
  }

  void begin(int64_t step) override {
    now_ = step;
    step_.copy_from(Tensor::from(std::vector<int64_t>{step}, {1}));
    loss_.set_zero();
    parts_.model.parameters().gradients().set_zero();
  }

  void add(const Batch& batch, bool last) override {
    if (!std::exchange(prepared_, false)) copy_to_device(batch);
    MicroBatch& micro = micro_batches_.at(batch.form());
    const std::string name =
        concat("forward and backward pass of ", batch.B, " x ", batch.T, " tokens");
    if (!last || buckets_ == nullptr) {
      return run(micro.passes, capture_passes_, name, [&] { pass(micro); });
    }
    run(micro.last, capture_last_, name + " with its sums over processes", [&] {
      buckets_->begin();
      pass(micro);
      buckets_->finish();
    });
  }

  void sum(UpdateResult& result) override {
    parts_.job.ranks().finish_sums();  // of a graph, for no longer than the time limit
    if (parts_.updater.share) {
      cuda::sum_of_squares(sum_own_gradients(parts_), squares_);
    }
    average_running_buffers(parts_.job, parts_.model.parameters());
    std::vector<double> sums = {loss_.item(), parts_.updater.share ? squares_.item() : 0};
    sum_counts(parts_.job, sums, result);
    loss_.fill(sums[0]);
    if (parts_.updater.share) squares_.fill(sums[1]);
  }

  void submit(UpdateResult& result) override {
    std::vector<double> values(cuda::kUpdateScalars, 0);
    values[cuda::kLearningRate] = result.lr;
    values[cuda::kBeta1] = result.beta1.value_or(std::numeric_limits<double>::quiet_NaN());
    values[cuda::kGradientScale] = 1.0 / static_cast<double>(result.targets);
    values[cuda::kClipNorm] = parts_.updater.config.clip_norm;
    scalars_.copy_from(Tensor::from(values, scalars_.shape()));
    if (capture_update_ && !update_.done) mixers_correct_weights_ = is_there_work_after_updates();
    const bool shared = parts_.updater.share.has_value();
    run(update_, capture_update_, "optimizer", [&] {
      step_optimizer();
      if (!mixers_correct_weights_ && !shared) use_new_weights();
    });
    if (!shared) return;
    parts_.job.ranks().all_gather(parts_.model.parameters().weights());
    if (!mixers_correct_weights_) use_new_weights();
  }

  void prepare(const Batch& batch) override {
    copy_to_device(batch);
    prepared_ = true;
  }

  void finish(UpdateResult& result) override {
    const std::vector<double> done = scalars_.to_vector<double>();  // waits for the device
    result.loss = loss_.item() / static_cast<double>(result.targets);
    result.gradient_norm = done[cuda::kGradientNorm];
    result.skipped = done[cuda::kSkip] != 0;
    if (!mixers_correct_weights_ || result.skipped) return;
    parts_.model.after_update();
    use_new_weights();
  }

 private:
  // In stream order: work that was submitted before still reads what was there.
  void copy_to_device(const Batch& batch) {
    const std::vector<int64_t> form = batch.form();
    const auto found = micro_batches_.find(form);
    if (found == micro_batches_.end()) {
      micro_batches_.emplace(form, MicroBatch{DeviceBatch(batch, device_), {}, {}});
    } else {
      found->second.batch.copy_from(batch);
    }
  }

  // Whether mixers correct their weights after an update, which the host allows only when the
  // update was not skipped.
  bool is_there_work_after_updates() const {
    bool found = true;
    try {
      const cuda::Graph graph(graph_memory_, [this] { parts_.model.after_update(); });
      found = graph.operations() > 0;
    } catch (const cuda::NotCapturable&) {
    }
    if (found) {
      log_info(
          "what mixers do to their weights after an update runs without a CUDA graph: the host "
          "decides whether it is due");
    }
    return found;
  }

  void pass(const MicroBatch& micro) {
    // While a graph is captured the step is none that host code knows, so that what it does only in
    // some steps (a fresh draw, say) is tried, and refused, in every capture.
    DeviceBatch batch = micro.batch;
    batch.input = training_input(parts_.recipe, batch.input, cuda::capturing() ? -1 : now_);
    batch.input.random.device_step = static_cast<const uint64_t*>(step_.raw());
    const Variable loss = parts_.task.loss(parts_.model, batch);
    backward(loss);
    add_into(loss_, loss.value());
  }

  void step_optimizer() {
    const ParameterSet& parameters = parts_.model.parameters();
    Updater& updater = parts_.updater;
    const Tensor gradients = updater.own(parameters.gradients());
    const double clip_value = updater.config.clip_value;
    if (!updater.share) cuda::sum_of_squares(gradients, squares_);
    cuda::prepare_update(scalars_, squares_, loss_, clip_value > 0);
    if (clip_value > 0) cuda::clip_by_value(gradients, scalars_, clip_value);
    updater.optimizer->step_on_device(updater.own(parameters.weights()), gradients, scalars_);
  }

  // After an update that was skipped it changes nothing.
  void use_new_weights() {
    const ParameterSet& parameters = parts_.model.parameters();
    parameters.refresh_values();
    if (parts_.updater.average) {
      parts_.updater.average->update_on_device(parameters.weights(), scalars_);
    }
  }

  // Does `job`, of this name, or replays it; `capture` becomes false when it cannot be captured.
  void run(Work& work, bool& capture, const std::string& name, const std::function<void()>& job) {
    if (work.graph.defined()) return work.graph.replay(static_cast<uint64_t>(now_));
    if (!capture || !std::exchange(work.done, true)) return job();
    try {
      work.graph = cuda::Graph(graph_memory_, job);
    } catch (const cuda::NotCapturable& reason) {
      capture = false;
      log_info("the ", name, " runs without a CUDA graph: ", reason.what());
      return job();
    } catch (const OutOfMemory& error) {
      forget_graphs();
      log_warning("training goes on without CUDA graphs, whose memory did not fit: ", error.what());
      return job();
    }
    log_info("the ", name, " is a CUDA graph of ", work.graph.operations(), " operations");
    work.graph.replay(static_cast<uint64_t>(now_));
  }

  void forget_graphs() {
    capture_passes_ = capture_last_ = capture_update_ = false;
    for (auto& [form, micro] : micro_batches_) micro.passes.graph = micro.last.graph = {};
    update_.graph = {};
    graph_memory_.reset();
  }

  TrainParts parts_;
  Device device_;
  std::unique_ptr<GradientBuckets> buckets_;
  Tensor step_, loss_, squares_, scalars_;
  int64_t now_ = 0;
  std::shared_ptr<cuda::GraphMemory> graph_memory_;
  bool capture_passes_ = false, capture_last_ = false, capture_update_ = false;
  bool mixers_correct_weights_ = true;  // where nothing is captured: as if they did
  std::map<std::vector<int64_t>, MicroBatch> micro_batches_;
  bool prepared_ = false;  // the next batch is in its tensors already
  Work update_;
};

}  // namespace

std::unique_ptr<UpdateWork> make_device_update(const TrainParts& parts) {
  return std::make_unique<DeviceUpdate>(parts);
}

}  // namespace linnet
