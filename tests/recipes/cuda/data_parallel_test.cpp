// Two processes that train on a device, where sums pass through host memory: the losses of one
// process on the CPU.
#include <gtest/gtest.h>

#include "tests/recipes/cuda/device_run.h"
#include "tests/recipes/data_parallel.h"

namespace linnet {
namespace {

using test::is_rank;
using test::kGpu;
using test::pass_on_ranks;

class CudaDataParallel : public test::DataParallel {};

TEST_F(CudaDataParallel, TrainsAsOneProcessOnTheCpu) {
  const std::vector<std::string> all = {"model.dropout=0.1", "train.tokens_per_update=128",
                                        "train.micro_batch=1", "train.max_steps=4",
                                        "optim.ema={decay: 0.9, warmup: true}"};
  const auto with = [&](std::vector<std::string> changes) {
    changes.insert(changes.begin(), all.begin(), all.end());
    return decoder(changes);
  };
  const std::vector<std::pair<std::string, Recipe>> recipes = {
      {"softmax", with({"model.attention={name: softmax}", "train.bucket_mib=0.001"})},
      {"packed", with({"data.cross_documents=true", "optim.clip_norm=0.1"})},
      {"recompute", with({"train.recompute=block", "model.layer_dropout=0.3"})},
      {"eager", with({"train.cuda_graph=false", "optim={kind: sgd, lr: 0.05, clip_value: 0.1}"})},
      {"listops", classifier({"model.dropout=0.1", "train.max_steps=4", "train.micro_batch=2"})}};
  if (!is_rank()) {
    for (const auto& [name, recipe] : recipes) run(recipe, name + "-cpu");
  }
  pass_on_ranks(2, [&](Communicator& ranks) {
    // Saving throws where the weights of the ranks have other bits.
    for (const auto& [name, recipe] : recipes) train_on(ranks, recipe, name, "auto", kGpu);
  });
  if (is_rank()) return;
  for (const auto& [name, recipe] : recipes) {
    expect_same_metrics(name + "-cpu", name, test::kSameArithmetic);
  }
}

}  // namespace
}  // namespace linnet
