// Mixers that stand for the feed-forward too, and tensors that pass from layer to layer.
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/loss.h"
#include "layers/model.h"
#include "tests/layers/mean_mixer.h"

namespace linnet {
namespace {

ModelConfig small_config() {
  ModelConfig config;
  config.layers = 3;
  config.width = 8;
  config.heads = 2;
  config.feed_forward_width = 12;
  config.dropout = 0.2;
  return config;
}

// Attention and feed-forward in one, in the layers whose bit is set.
MixerFactory whole_blocks(int64_t bits) {
  class WholeMixer : public test::MeanMixer {
    using MeanMixer::MeanMixer;
    bool replaces_feed_forward() const override { return true; }
  };
  return
      [bits](const MixerOptions& options, const MixerScope& scope) -> std::unique_ptr<TokenMixer> {
        if ((bits >> options.layer & 1) != 0) return std::make_unique<WholeMixer>(options, scope);
        return std::make_unique<test::MeanMixer>(options, scope);
      };
}

// y = v + the mean over w of the stream [B,w,E], which begins as one tied parameter and grows by
// the layer's last token: x_{T-1} is added to all its vectors.
class StreamMixer : public TokenMixer {
 public:
  static constexpr int64_t kVectors = 3;
  StreamMixer(const MixerOptions& options, const MixerScope& scope)
      : name_(scope.tied.prefix() + ".memory"),
        width_(options.width),
        first_(scope.tied.shared("memory", {kVectors, options.width}, init_normal(1))) {}
  MixerResult forward(const Variable& x, const MixerContext& context,
                      const MixerState&) const override {
    const auto found = context.streams.find(name_);
    const Variable stream =
        found == context.streams.end() ? rows_of(first_, x.size(0)) : found->second;
    MixerResult result;
    result.y = with_mean(x, stream);
    result.streams[name_] = grown(stream, x);
    return result;
  }
  MixerResult forward_cross(const Variable&, const Variable&, const MixerContext&,
                            const MixerState&) const override {
    throw Error("not a cross form");
  }
  MixerCost cost(const MixerShape&) const override { return {}; }

 private:
  // f(b, t, w, c) for all of them: adds `from` to `to` with the given factor.
  template <typename F>
  static void each(int64_t rows, int64_t time, int64_t width, const F& f) {
    for (int64_t b = 0; b < rows; ++b) {
      for (int64_t t = 0; t < time; ++t) {
        for (int64_t w = 0; w < kVectors; ++w) {
          for (int64_t c = 0; c < width; ++c) f(b, t, w, c);
        }
      }
    }
  }
  static Variable rows_of(const Variable& first, int64_t rows) {
    const int64_t n = first.value().elements();
    const Tensor all = Tensor::empty({rows, kVectors, first.size(1)}, DType::f64);
    for (int64_t b = 0; b < rows; ++b) all.slice(b * n, first.shape()).copy_from(first.value());
    return record("rows", all, {first}, [=, shape = first.shape()](Gradients& gradients) {
      const Tensor d = Tensor::zeros(shape, DType::f64);
      for (int64_t i = 0; i < rows * n; ++i) {
        d.data<double>()[i % n] += gradients.output().data<double>()[i];
      }
      gradients.add(0, d);
    });
  }
  Variable with_mean(const Variable& x, const Variable& stream) const {
    const int64_t B = x.size(0), T = x.size(1), E = width_;
    const Tensor y = x.value().clone();
    each(B, T, E, [&](int64_t b, int64_t t, int64_t w, int64_t c) {
      y.data<double>()[(b * T + t) * E + c] +=
          stream.value().data<double>()[(b * kVectors + w) * E + c] / kVectors;
    });
    return record("with_mean", y, {x, stream}, [=](Gradients& gradients) {
      const Tensor dy = gradients.output();
      const Tensor d = Tensor::zeros({B, kVectors, E}, DType::f64);
      each(B, T, E, [&](int64_t b, int64_t t, int64_t w, int64_t c) {
        d.data<double>()[(b * kVectors + w) * E + c] +=
            dy.data<double>()[(b * T + t) * E + c] / kVectors;
      });
      gradients.add(0, dy);
      gradients.add(1, d);
    });
  }
  Variable grown(const Variable& stream, const Variable& x) const {
    const int64_t B = x.size(0), T = x.size(1), E = width_;
    const Tensor next = stream.value().clone();
    each(B, 1, E, [&](int64_t b, int64_t, int64_t w, int64_t c) {
      next.data<double>()[(b * kVectors + w) * E + c] +=
          x.value().data<double>()[(b * T + T - 1) * E + c];
    });
    return record("grown", next, {stream, x}, [=](Gradients& gradients) {
      const Tensor dnext = gradients.output();
      const Tensor dx = Tensor::zeros({B, T, E}, DType::f64);
      each(B, 1, E, [&](int64_t b, int64_t, int64_t w, int64_t c) {
        dx.data<double>()[(b * T + T - 1) * E + c] +=
            dnext.data<double>()[(b * kVectors + w) * E + c];
      });
      gradients.add(0, dnext);
      gradients.add(1, dx);
    });
  }

  std::string name_;
  int64_t width_;
  Variable first_;
};

Tensor some_tokens(int64_t rows, int64_t time, int64_t vocabulary) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < rows * time; ++i) {
    ids.push_back(static_cast<int32_t>((i * 7 + 3) % vocabulary));
  }
  return Tensor::from(ids, {rows, time});
}

ModelInput some_input(bool recompute) {
  ModelInput input;
  input.tokens = some_tokens(2, 5, 11);
  input.place = {Tensor::from(std::vector<int64_t>{100, 101}, {2}), 0};
  input.random = {5, 1, 0};
  input.training = true;
  input.recompute = recompute;
  return input;
}

// The flat gradient of a loss.
Tensor gradient(const Transformer& model, bool recompute) {
  model.parameters().gradients().set_zero();
  backward(
      model.token_head().loss(model.encode(some_input(recompute), nullptr), some_tokens(2, 5, 9)));
  return model.parameters().gradients().clone();
}

// Gradients of all parameters against finite differences along one direction, and recomputed.
void check_gradient(const ModelConfig& config, const MixerFactory& factory) {
  Transformer model(config, {11, 5}, factory);
  model.parameters().materialize(3, DType::f64, DType::f64);
  const Tensor exact = gradient(model, false), again = gradient(model, true);
  EXPECT_EQ(exact.to_vector<double>(), again.to_vector<double>());
  const Tensor& weights = model.parameters().weights();
  const Tensor before = weights.clone();
  const RandomKey key{9, 0, 0};
  const NoGrad off;
  double analytic = 0;
  const auto at = [&](double step) {
    weights.copy_from(before);
    for (int64_t i = 0; i < weights.elements(); ++i) {
      weights.data<double>()[i] += step * key.normal(static_cast<uint64_t>(i));
    }
    return model.token_head()
        .loss(model.encode(some_input(false), nullptr), some_tokens(2, 5, 9))
        .value()
        .item();
  };
  for (int64_t i = 0; i < weights.elements(); ++i) {
    analytic += exact.data<double>()[i] * key.normal(static_cast<uint64_t>(i));
  }
  const double numeric = (at(1e-6) - at(-1e-6)) / 2e-6;
  EXPECT_TRUE(std::abs(analytic - numeric) <= 1e-5 + 1e-5 * std::abs(numeric))
      << analytic << " " << numeric;
}

TEST(WholeBlocks, HaveNoFeedForward) {
  const Transformer all(small_config(), {11, 5}, whole_blocks(7));
  const Transformer middle(small_config(), {11, 5}, whole_blocks(2));
  // A feed-forward and its norm: two weights, two biases, gain and bias.
  const int64_t feed_forward = 2 * 8 * 12 + 12 + 8 + 2 * 8;
  EXPECT_EQ(middle.parameters().count() - all.parameters().count(), 2 * feed_forward);
  for (const ParameterSet::Entry& entry : middle.parameters().entries()) {
    EXPECT_FALSE(entry.name.starts_with("layers.1.feed_forward")) << entry.name;
  }
}

TEST(WholeBlocks, GradientsPreAndPostNorm) {
  ModelConfig config = small_config();
  check_gradient(config, whole_blocks(5));
  config.norm_position = "post";
  config.norm = "scale";
  check_gradient(config, whole_blocks(5));
}

TEST(WholeBlocks, AreTheMixerWithOneNormAndOneResidualSum) {
  ModelConfig config = small_config();
  config.dropout = 0;
  class Zero : public test::MeanMixer {
    using MeanMixer::MeanMixer;
    bool replaces_feed_forward() const override { return true; }
    MixResult mix(const MixInput& input, const MixerContext&, const MixerState&) const override {
      return {scale(input.v, 0), {}};
    }
  };
  config.final_norm = false;
  const auto factory = [](const MixerOptions& options, const MixerScope& scope) {
    return std::make_unique<Zero>(options, scope);
  };
  Transformer model(config, {11, 5}, factory);
  model.parameters().materialize(3);
  ModelConfig none = config;
  none.layers = 0;
  Transformer bare(none, {11, 5}, factory);
  bare.parameters().materialize(3);
  ModelInput input = some_input(false);
  // A mixer that adds nothing leaves the residual stream alone.
  EXPECT_EQ(model.encode(input, nullptr).value().to_vector<float>(),
            bare.encode(input, nullptr).value().to_vector<float>());
}

MixerFactory stream_mixers() {
  return [](const MixerOptions& options, const MixerScope& scope) {
    return std::make_unique<StreamMixer>(options, scope);
  };
}

TEST(Streams, PassFromLayerToLayerWithTheirGradients) {
  check_gradient(small_config(), stream_mixers());
  ModelConfig skipping = small_config();
  skipping.layer_dropout = 0.5;
  check_gradient(skipping, stream_mixers());
}

TEST(Streams, OfOneCallDoNotReachTheNext) {
  Transformer model(small_config(), {11, 5}, stream_mixers());
  model.parameters().materialize(3, DType::f64, DType::f64);
  const ModelInput input = some_input(false);
  const NoGrad off;
  EXPECT_EQ(model.encode(input, nullptr).value().to_vector<double>(),
            model.encode(input, nullptr).value().to_vector<double>());
}

}  // namespace
}  // namespace linnet
