// LAVO's basis after training.
#include <gtest/gtest.h>

#include <cmath>

#include "core/hdf5.h"
#include "tests/recipes/tiny_run.h"
#include "tests/worst.h"

namespace linnet {
namespace {

class BasisTraining : public test::TinyRun {
 protected:
  // The largest entry of |B B^T - 1| over heads of both layers, after seven updates.
  double distance_after_training(const std::string& kind, const std::string& precision) {
    const std::string name = concat(kind, "-", precision);
    run(recipe({concat("model.attention={name: lavo, rank: 4, window: 5, basis_train: ", kind, "}"),
                "train.precision=" + precision}),
        name);
    const auto weights = tensors_from_hdf5(left(name).files.at("weights.h5"), name);
    double largest = 0;
    for (const char* layer : {"layers.0", "layers.1"}) {
      const Tensor basis = weights.at(concat(layer, ".attention.basis"));
      EXPECT_EQ(basis.shape(), Shape({2, 4, 4}));
      const std::vector<double> rows = basis.to(DType::f64).to_vector<double>();
      for (int64_t i = 0; i < 32; ++i) {
        const int64_t head = i / 16, a = i / 4 % 4, b = i % 4;
        double product = a == b ? -1 : 0;
        for (int64_t c = 0; c < 4; ++c) {
          product += rows[head * 16 + a * 4 + c] * rows[head * 16 + b * 4 + c];
        }
        test::keep_worst(largest, std::abs(product));
      }
    }
    return largest;
  }
};

TEST_F(BasisTraining, AFrozenBasisFollowsTheSeedAndStaysInTheCheckpoint) {
  const auto basis_of = [&](const std::string& seed, const std::string& name) {
    run(recipe({"model.attention={name: lavo, rank: 4, window: 5, basis_train: frozen}",
                "seed=" + seed}),
        name);
    return tensors_from_hdf5(left(name).files.at("weights.h5"), name)
        .at("layers.1.attention.basis")
        .to_vector<double>();
  };
  const std::vector<double> basis = basis_of("5", "first");
  EXPECT_EQ(basis_of("5", "again"), basis);
  EXPECT_NE(basis_of("6", "other"), basis);
  EXPECT_TRUE(distance_after_training("frozen", "bf16") <= 1e-6);
  // The loaded basis equals the stored one.
  const LoadedModel loaded = load_model(out("first"));
  EXPECT_EQ(loaded.model->parameters().tensors().at("layers.1.attention.basis").to_vector<double>(),
            basis);
}

TEST_F(BasisTraining, QrLeavesOrthonormalRowsAndFreeDoesNot) {
  EXPECT_TRUE(distance_after_training("qr", "f32") <= 1e-6);
  EXPECT_TRUE(distance_after_training("qr", "bf16") <= 1e-6);
  EXPECT_TRUE(distance_after_training("free", "f32") > 1e-3);
}

}  // namespace
}  // namespace linnet
