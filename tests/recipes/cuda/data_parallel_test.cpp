// Two processes that train on devices have the losses of one process on the CPU.
#include <gtest/gtest.h>

#include "core/comm/cuda/nccl.h"
#include "core/cuda/runtime.h"
#include "tests/recipes/cuda/device_run.h"
#include "tests/recipes/data_parallel.h"

namespace linnet {
namespace {

using test::is_rank;
using test::kGpu;
using test::pass_on_ranks;

class CudaDataParallel : public test::DataParallel {
 protected:
  // Trains on both ranks, on the device that `device_of` says. Saving throws where their weights
  // have other bits.
  void compare(const std::function<Device(int rank)>& device_of, const test::RankNames& names) {
    const std::vector<std::string> all = {"model.dropout=0.1", "train.tokens_per_update=128",
                                          "train.micro_batch=1",
                                          "optim.ema={decay: 0.9, warmup: true}"};
    const auto with = [&](std::vector<std::string> changes, int steps = 4) {
      changes.insert(changes.begin(), all.begin(), all.end());
      changes.push_back(concat("train.max_steps=", steps));
      return decoder(changes);
    };
    const auto shares = [&](int steps) {
      return with({"train.shard_optimizer=true", "optim.clip_norm=0.1",
                   "model.attention={name: lavo, rank: 4, basis_train: qr}"},
                  steps);
    };
    const std::vector<std::pair<std::string, Recipe>> recipes = {
        {"softmax", with({"model.attention={name: softmax}", "train.bucket_mib=0.001"})},
        {"stream", with({"data.cross_documents=true", "optim.clip_norm=0.1"})},
        {"recompute", with({"train.recompute=block", "model.layer_dropout=0.3"})},
        {"eager", with({"train.cuda_graph=false", "optim={kind: sgd, lr: 0.05, clip_value: 0.1}"})},
        {"shares", shares(6)},
        {"shares_eager", with({"train.shard_optimizer=true", "train.cuda_graph=false",
                               "optim={kind: sgd, lr: 0.05, momentum: 0.9, clip_value: 0.1}"})},
        {"listops", classifier({"model.dropout=0.1", "train.max_steps=4", "train.micro_batch=2"})}};
    if (!is_rank()) {
      for (const auto& [name, recipe] : recipes) run(recipe, name + "-cpu");
    }
    pass_on_ranks(
        2,
        [&](Communicator& ranks) {
          EXPECT_EQ(ranks.name(), names.own_device ? "nccl" : "gloo");
          // That run is stopped, and goes on.
          train_on(ranks, shares(2), "shares", "auto", device_of(ranks.rank()));
          for (const auto& [name, recipe] : recipes) {
            train_on(ranks, recipe, name, "auto", device_of(ranks.rank()));
          }
        },
        names);
    if (is_rank()) return;
    for (const auto& [name, recipe] : recipes) {
      expect_same_metrics(name + "-cpu", name, test::kSameArithmetic);
    }
  }
};

TEST_F(CudaDataParallel, TrainsThroughTheHost) {
  compare([](int) { return kGpu; }, {});
}

TEST_F(CudaDataParallel, TrainsByNccl) {
  if (!cuda::nccl_problem().empty()) GTEST_SKIP() << cuda::nccl_problem();
  if (cuda::devices().size() < 2) GTEST_SKIP() << "needs two GPUs";
  compare([](int rank) { return Device{DeviceKind::cuda, rank}; }, {.own_device = true});
}

}  // namespace
}  // namespace linnet
