// Moments and averages by the names of parameters, and the flat ones of earlier versions.
#include "recipes/engine/named_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/files.h"
#include "core/hdf5.h"
#include "recipes/engine/run_state.h"
#include "tests/error_helpers.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

using testing::HasSubstr;

const std::string kFirst = "layers.0.attention.q.weight";

class NamedState : public test::TinyRun {
 protected:
  std::string newest(const std::string& name) const {
    return CheckpointStore(out(name)).newest_valid().path.value_or("");
  }
  static std::map<std::string, Tensor> tensors(const Checkpoint& checkpoint,
                                               const std::string& file) {
    return tensors_from_hdf5(checkpoint.files.at(file), file);
  }
  // The checkpoint as earlier versions wrote it: moments and average flat, in the order of the
  // model, padding of zeros between parameters.
  void make_flat(const std::string& path) const {
    Checkpoint checkpoint = load_checkpoint(path);
    const LoadedModel loaded = load_model(path);
    const ParameterSet& parameters = loaded.model->parameters();
    for (const char* file : {"optimizer.h5", "average.h5"}) {
      if (!checkpoint.files.contains(file)) continue;
      StateTensors flat;
      for (const auto& [name, tensor] : tensors(checkpoint, file)) {
        const size_t slash = name.find('/');
        if (slash == std::string::npos) {
          flat[name] = tensor;
          continue;
        }
        Tensor& whole = flat[name.substr(0, slash)];
        if (!whole.defined()) whole = Tensor::zeros({parameters.weights().elements()});
        const ParameterSet::Entry& entry = parameters.find(name.substr(slash + 1));
        EXPECT_EQ(tensor.shape(), entry.shape) << name;
        whole.slice(entry.begin, entry.shape).copy_from(tensor);
      }
      checkpoint.files[file] = tensors_to_hdf5(flat);
    }
    write_checkpoint_files(path, checkpoint.step, checkpoint.files, checkpoint.metadata);
  }
};

TEST_F(NamedState, EachMomentHasADatasetPerParameterOfItsShape) {
  run(recipe({"optim.ema={decay: 0.8}"}), "run");
  const Checkpoint checkpoint = load_checkpoint(newest("run"));
  const auto weights = tensors(checkpoint, "weights.h5");
  const auto state = tensors(checkpoint, "optimizer.h5");
  const auto average = tensors(checkpoint, "average.h5");
  EXPECT_EQ(state.size(), 2 * weights.size() + 1);
  EXPECT_EQ(average.size(), weights.size() + 1);
  EXPECT_EQ(state.at("updates").item(), 7);
  for (const auto& [name, tensor] : weights) {
    EXPECT_EQ(state.at("m/" + name).shape(), tensor.shape()) << name;
    EXPECT_EQ(state.at("v/" + name).shape(), tensor.shape()) << name;
    EXPECT_EQ(average.at("average/" + name).shape(), tensor.shape()) << name;
  }
  for (const double v : state.at("v/" + kFirst).to_vector<double>()) EXPECT_GT(v, 0);
}

TEST_F(NamedState, ARunGoesOnBitForBitFromTheFlatStateOfAnEarlierVersion) {
  const std::vector<std::string> adam = {"optim.ema={decay: 0.8, warmup: true}"};
  const std::vector<std::string> nag = {
      "optim={kind: nag, lr: 0.05, ema: {decay: 0.8, warmup: true}}"};
  for (const auto& [name, changes] : {std::pair("adam", adam), {"nag", nag}}) {
    const std::string straight = concat(name, "-straight");
    run(recipe(changes), straight);
    Recipe part = recipe(changes);
    part.train.max_steps = 4;
    run(part, name);
    make_flat(newest(name));
    EXPECT_TRUE(tensors(load_checkpoint(newest(name)), "average.h5").contains("average"));
    EXPECT_EQ(run(recipe(changes), name).progress.step, 7);
    expect_equal(left(name), left(straight), name);
  }
}

TEST_F(NamedState, AFlatAverageIsEvaluatedAndGivenAsANamedOne) {
  run(recipe({"optim.ema={decay: 0.8}"}), "run");
  const auto weights_of = [](const LoadedModel& loaded) {
    return loaded.model->parameters().weights().to_vector<float>();
  };
  const std::vector<float> named = weights_of(load_model(newest("run")));
  run(recipe({concat("init={from: ", newest("run"), "}"), "train.max_steps=1"}), "of-named");
  make_flat(newest("run"));
  EXPECT_EQ(weights_of(load_model(newest("run"))), named);
  run(recipe({concat("init={from: ", newest("run"), "}"), "train.max_steps=1"}), "of-flat");
  EXPECT_EQ(weights_of(load_model(newest("of-flat"))), weights_of(load_model(newest("of-named"))));
}

TEST_F(NamedState, WhatIsMissingOrUnknownIsNamed) {
  run(recipe({"optim.ema={decay: 0.8}"}), "run");
  const std::string path = newest("run");
  const auto refusal = [&](const std::string& file, const std::string& without,
                           const std::string& with) {
    Checkpoint checkpoint = load_checkpoint(path);
    const auto before = checkpoint.files;
    auto state = tensors(checkpoint, file);
    state.erase(without);
    if (!with.empty()) state[with] = Tensor::zeros({1});
    checkpoint.files[file] = tensors_to_hdf5(state);
    write_checkpoint_files(path, checkpoint.step, checkpoint.files, checkpoint.metadata);
    Recipe longer = recipe({"optim.ema={decay: 0.8}"});
    longer.train.max_steps = 8;
    const std::string message = test::message_of<Error>([&] { run(longer, "run"); });
    write_checkpoint_files(path, checkpoint.step, before, checkpoint.metadata);
    return message;
  };
  EXPECT_THAT(refusal("optimizer.h5", "m/" + kFirst, ""),
              HasSubstr("lacks the tensor 'm/" + kFirst + "'"));
  EXPECT_THAT(refusal("optimizer.h5", "", "m/other"), HasSubstr("has a tensor 'm/other'"));
  EXPECT_THAT(refusal("average.h5", "average/" + kFirst, ""),
              HasSubstr("lacks the tensor 'average/" + kFirst + "'"));
}

}  // namespace
}  // namespace linnet
