// A captured step reads what its inputs hold in every replay, or cannot be captured.
#include "attention/registry.h"
#include "core/cuda/cuda_device.h"
#include "core/cuda/graph.h"
#include "layers/model.h"
#include "tests/cuda_helpers.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

using cuda::Graph;
using cuda::NotCapturable;
using test::kGpu;

constexpr int64_t kRows = 2, kTime = 9, kVocabulary = 13;
const Shape kShape{kRows, kTime};

ModelConfig config_of(Form form) {
  ModelConfig config;
  config.kind = form == Form::causal ? "decoder" : "encoder";
  config.layers = 1;
  config.width = 16;
  config.heads = 2;
  config.feed_forward_width = 20;
  return config;
}

// Two documents a row, the second from token `cut` on; the last `cut` - 2 tokens are padding.
void fill(const ModelInput& input, int64_t cut) {
  std::vector<int32_t> tokens, positions, segments;
  std::vector<uint8_t> mask;
  for (int64_t i = 0; i < kRows * kTime; ++i) {
    const int64_t t = i % kTime;
    tokens.push_back(static_cast<int32_t>(i * cut % kVocabulary));
    positions.push_back(static_cast<int32_t>(t < cut ? t : t - cut));
    segments.push_back(t < cut ? 0 : 1);
    mask.push_back(t < kTime - cut + 2 ? 1 : 0);
  }
  input.tokens.copy_from(Tensor::from(tokens, kShape));
  input.positions.copy_from(Tensor::from(positions, kShape));
  if (input.segments.defined()) input.segments.copy_from(Tensor::from(segments, kShape));
  input.key_mask.copy_from(Tensor::from(mask, kShape));
}

// How many of both, with and without segments, were captured.
int replay_with_new_inputs(const Mechanism& mechanism, Form form) {
  const ConfigNode parameters = parse_override(test::small_attention(mechanism)).value;
  const MixerFactory factory = make_mixer_factory(parameters, form);
  const ModelConfig config = config_of(form);
  std::unique_ptr<Transformer> model;
  if (form == Form::causal) {
    model = std::make_unique<Transformer>(config, ModelSizes{kVocabulary, kTime}, factory);
  } else {
    model = std::make_unique<Transformer>(config, ModelSizes{kVocabulary, kTime, 3}, factory);
  }
  model->parameters().materialize(3, DType::f32, DType::f32, kGpu);
  const Tensor& gradients = model->parameters().gradients();
  const Tensor hidden = Tensor::zeros({kRows, kTime, config.width}, DType::f32, kGpu);
  const Tensor seed = test::random_tensor(hidden.shape(), "seed", DType::f32).to(kGpu);
  int captured = 0;
  for (const bool segments : {false, true}) {
    ModelInput input;
    input.training = true;
    input.tokens = Tensor::zeros(kShape, DType::i32, kGpu);
    input.positions = input.tokens.clone();
    if (segments) input.segments = input.tokens.clone();
    input.key_mask = Tensor::zeros(kShape, DType::u8, kGpu);
    input.place.examples = Tensor::from(std::vector<int64_t>{100, 101}, {kRows}, kGpu);
    const auto step = [&] {
      gradients.set_zero();
      const Variable y = model->encode(input, nullptr);
      backward({y}, {seed});
      hidden.copy_from(y.value());
    };
    fill(input, 3);
    try {
      step();
    } catch (const UsageError&) {
      EXPECT_TRUE(segments) << mechanism.name;
      continue;  // it refuses documents that share a row
    }
    try {
      const Graph graph(cuda::make_graph_memory(0), step);
      fill(input, 4);
      graph.replay();
    } catch (const NotCapturable&) {
      continue;
    }
    ++captured;
    const Tensor y = hidden.to(Device{}), gradient = gradients.to(Device{});
    step();
    EXPECT_TRUE(test::same_bits(y, hidden.to(Device{}))) << mechanism.name << " " << segments;
    EXPECT_TRUE(test::same_bits(gradient, gradients.to(Device{}))) << mechanism.name;
  }
  return captured;
}

TEST(CudaCapture, ReplaysReadMasksSegmentsAndPositionsAgain) {
  int captured = 0;
  for (const Mechanism& mechanism : mechanisms()) {
    const MixerTraits traits = test::small_traits(mechanism);
    if (traits.causal) captured += replay_with_new_inputs(mechanism, Form::causal);
    if (traits.noncausal) captured += replay_with_new_inputs(mechanism, Form::noncausal);
  }
  EXPECT_GE(captured, 20);
}

TEST(CudaCapture, RefusesWhatTheHostDecidesAgain) {
  const auto memory = cuda::make_graph_memory(0);
  const auto draw = [] {
    drawn({}, "numbers", {1}, [] { return Tensor::zeros({1}, DType::f64); });
  };
  EXPECT_THROW(const Graph graph(memory, draw), NotCapturable);
  ModelConfig config = config_of(Form::causal);
  config.layer_dropout = 0.1;
  Transformer model(config, {kVocabulary, kTime},
                    make_mixer_factory(parse_yaml("{name: softmax}", "test"), Form::causal));
  model.parameters().materialize(3, DType::f32, DType::f32, kGpu);
  ModelInput input;
  input.tokens = Tensor::zeros(kShape, DType::i32, kGpu);
  const auto encode = [&] { model.encode(input, nullptr); };
  EXPECT_NO_THROW(const Graph graph(memory, encode));
  input.training = true;
  EXPECT_THROW(const Graph graph(memory, encode), NotCapturable);
}

}  // namespace
}  // namespace linnet
