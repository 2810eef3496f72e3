// Whole models on the device: loss and every gradient as on the CPU in double.
#include "layers/model.h"

#include "attention/registry.h"
#include "autograd/loss.h"
#include "core/yaml.h"
#include "tests/bf16_tolerance.h"

namespace linnet {
namespace {

using test::kGpu;

constexpr int64_t kRows = 2, kTime = 9, kVocabulary = 13;

ModelConfig config_of(const std::string& kind) {
  ModelConfig config;
  config.kind = kind;
  config.layers = 2;
  config.width = 16;
  config.heads = 2;
  config.feed_forward_width = 20;
  return config;
}

Tensor some_ids(int64_t factor, int64_t below, const Shape& shape, Device device) {
  std::vector<int32_t> values(static_cast<size_t>(shape.elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<int32_t>((static_cast<int64_t>(i) * factor + 3) % below);
  }
  return Tensor::from(values, shape, device);
}

struct Outcome {
  double loss = 0;
  Tensor gradients;  // of all parameters
};

// One training step's loss and gradients of a freshly drawn model.
Outcome step(const ModelConfig& config, DType master, DType compute, Device device,
             int64_t rows_per_example) {
  const bool both = config.kind == "encoder_decoder";
  // Each layer's form is checked again when it is made.
  const MixerFactory factory = make_mixer_factory(
      parse_yaml(both ? "{name: softmax, preset: t5}" : "{name: softmax}", "test"), Form::causal);
  ModelInput input;
  input.tokens = some_ids(7, kVocabulary, {kRows, kTime}, device);
  input.place.examples = Tensor::from(std::vector<int64_t>{100, 101}, {kRows}, device);
  input.random = {5, 1, 0};
  input.training = true;
  input.rows_per_example = rows_per_example;
  Outcome outcome;
  const auto run = [&](Transformer& model, const auto& loss_of) {
    model.parameters().materialize(3, master, compute, device);
    const Variable loss = loss_of();
    EXPECT_EQ(loss.value().device(), device);
    backward(loss);
    outcome = {loss.value().item(), model.parameters().gradients().to(Device{})};
  };
  if (config.predicts_tokens()) {
    Transformer model(config, {kVocabulary, kTime}, factory);
    input.recompute = config.norm == "rms";
    run(model, [&] {
      return model.token_head().loss(model.encode(input, nullptr),
                                     some_ids(5, kVocabulary, {kRows * kTime}, device), input);
    });
  } else {
    std::vector<uint8_t> valid(static_cast<size_t>(kRows * kTime), 1);
    valid[kTime - 1] = valid[kTime - 2] = 0;
    input.key_mask = Tensor::from(valid, {kRows, kTime}, device);
    Transformer model(config, {kVocabulary, kTime, 5, rows_per_example}, factory);
    run(model, [&] {
      return cross_entropy(model.example_logits(input),
                           some_ids(2, 5, {kRows / rows_per_example}, device));
    });
  }
  return outcome;
}

void check(const ModelConfig& config, int64_t rows_per_example = 1) {
  const auto in = [&](DType master, DType compute, Device device) {
    return step(config, master, compute, device, rows_per_example);
  };
  const Outcome exact = in(DType::f64, DType::f64, {});
  const Outcome plain = in(DType::f32, DType::f32, kGpu);
  EXPECT_NEAR(plain.loss, exact.loss, 1e-5 * exact.loss);
  EXPECT_CLOSE(plain.gradients, exact.gradients, 2e-5);
  const Outcome narrow = in(DType::f32, DType::bf16, kGpu);
  const Outcome narrow_cpu = in(DType::f32, DType::bf16, {});
  const auto scalar = [](double x) { return Tensor::full({}, x, DType::f64); };
  test::expect_close_in_bf16(
      {scalar(narrow.loss), narrow.gradients}, {scalar(exact.loss), exact.gradients},
      {scalar(narrow_cpu.loss), narrow_cpu.gradients}, "loss and gradients,");
}

TEST(CudaModel, DecoderPreNorm) {
  check(config_of("decoder"));
}

TEST(CudaModel, DecoderWithDropoutRecomputationAndSwiglu) {
  ModelConfig config = config_of("decoder");
  config.activation = "swiglu";
  config.norm = "rms";
  config.dropout = config.attention_dropout = 0.2;
  config.activation_dropout = 0.1;
  config.positions = "rotary";
  check(config);
}

TEST(CudaModel, DecoderPostNormUntiedLearnedPositions) {
  ModelConfig config = config_of("decoder");
  config.norm_position = "post";
  config.norm = "scale";
  config.tie_embeddings = false;
  config.scale_embedding = false;
  config.positions = "learned";
  check(config);
}

TEST(CudaModel, PostNormAfterTheEmbeddingWithAnOffsetOfPositions) {
  ModelConfig config = config_of("encoder");
  config.norm_position = "post";
  config.positions = "learned";
  config.position_offset = 2;
  config.embedding_norm = true;
  config.token_types = 2;
  config.head = "pooler";
  config.dropout = 0.2;
  check(config);
}

TEST(CudaModel, HeadsOfKeysAreShared) {
  ModelConfig config = config_of("decoder");
  config.kv_heads = 1;
  check(config);
}

TEST(CudaModel, AdaptiveInputsAndSoftmax) {
  ModelConfig config = config_of("decoder");
  config.embedding = "adaptive";
  config.cutoffs = {5, 9};
  config.cutoff_factor = 2;
  config.dropout = 0.1;
  config.head_dropout = 0.2;
  config.final_norm = false;
  check(config);
}

TEST(CudaModel, MaskedLanguageModel) {
  ModelConfig config = config_of("encoder");
  config.head = "masked_lm";
  config.norm_position = "post";
  config.positions = "learned";
  config.position_offset = 2;
  config.embedding_norm = true;
  config.scale_embedding = false;
  config.dropout = 0.1;
  check(config);
}

TEST(CudaModel, DecodersClassifyByTheirLastToken) {
  ModelConfig config = config_of("decoder");
  config.head = "last_token";
  check(config);
}

TEST(CudaModel, AnEncoderAndADecoderAsT5) {
  ModelConfig config = config_of("encoder_decoder");
  config.activation = "geglu";
  config.norm = "rms";
  config.positions = "none";
  config.bias = false;
  config.dropout = config.activation_dropout = 0.1;
  check(config);
}

ModelConfig encoder_of(const char* pooling) {
  ModelConfig config = config_of("encoder");
  config.pooling = pooling;
  config.activation = "relu";
  return config;
}

TEST(CudaModel, ClassifiersOfBothPoolings) {
  for (const char* pooling : {"mean", "cls"}) check(encoder_of(pooling));
}

// Apart from single rows: what tests/bf16_exceptions.h allows to these is not needed by pairs.
TEST(CudaModel, ClassifiersOfPairs) {
  for (const char* pooling : {"mean", "cls"}) check(encoder_of(pooling), 2);
}

}  // namespace
}  // namespace linnet
