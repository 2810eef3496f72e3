// EVA beside the conformance suite: parameter counts, packed rows, draws.
#include "attention/eva/eva.h"
#include "attention/registry.h"

#include "attention/eva/eva_definition.h"
#include "tests/attention/made_mixer.h"
#include "tests/attention/packed_documents.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

constexpr int64_t kHeads = 2, kWidth = 4;

std::unique_ptr<TokenMixer> mixer_of(ParameterSet& set, const std::string& parameters, Form form) {
  MixerOptions options;
  options.width = kHeads * kWidth;
  options.heads = kHeads;
  options.form = form;
  const ParameterScope root(set);
  auto mixer = find_mechanism("eva").make(parse_yaml(parameters, "test"), options,
                                          {root.child("own"), root.child("tied")});
  set.materialize(4, DType::f64, DType::f64);
  return mixer;
}

TEST(Eva, HasTwoMapsOfAHeadsWidth) {
  const int64_t E = kHeads * kWidth, attention = 4 * (E * E + E);
  for (const auto& [parameters, extra] : {std::pair{"{}", 2 * (kWidth * kWidth + 3 * kWidth)},
                                          {"{norm: false}", 2 * (kWidth * kWidth + kWidth)}}) {
    ParameterSet set;
    mixer_of(set, parameters, Form::causal);
    EXPECT_EQ(set.count(), attention + extra) << parameters;
  }
}

// The released code's constants: max(min((w + e) / 2, 64), 16) buckets, up to distance w + e.
TEST(Eva, BucketsOfDistances) {
  EvaParams params;
  EXPECT_EQ(params.buckets(Form::causal), 64);
  params.window = 16;
  EXPECT_EQ(params.buckets(Form::noncausal), 16);
  // Causal: 8 exact distances, then 8 buckets up to 16; keys behind the query count as its own.
  EXPECT_EQ(params.bucket(Form::causal, 3), 0);
  EXPECT_EQ(params.bucket(Form::causal, -7), 7);
  EXPECT_EQ(params.bucket(Form::causal, -8), 8);
  EXPECT_EQ(params.bucket(Form::causal, -15), 15);
  // Noncausal: either side has 8 buckets, the first 4 for one distance each.
  EXPECT_EQ(params.bucket(Form::noncausal, -3), 3);
  EXPECT_EQ(params.bucket(Form::noncausal, 3), 11);
  EXPECT_EQ(params.bucket(Form::noncausal, 15), 15);
  params.compat = params.overlap = true;
  EXPECT_EQ(params.bucket(Form::noncausal, -11), 3);  // 8 places earlier
}

TEST(Eva, ChunksDivideWindows) {
  ParameterSet set;
  EXPECT_THROW(mixer_of(set, "{window: 12, chunk: 5}", Form::causal), UsageError);
  ParameterSet other;
  EXPECT_THROW(mixer_of(other, "{}", Form::cross), UsageError);
}

// Numbers of the released code's formulas, computed apart: five tokens of one head, windows of 4
// and chunks of 2, both of which read 2 further tokens on either side.
TEST(Eva, ChunksOverlapAsInTheReleasedCode) {
  const std::string overlapping = "{window: 4, chunk: 2, chunk_overlap: 2, compat: true";
  struct Case {
    std::string parameters;
    std::vector<double> expected;
  };
  const std::vector<Case> cases = {
      {overlapping + ", overlap: true, norm: false}",
       {0.530408657549, 1.2301519929, 1.06036402786, 0.167973648108, 1.64367098979, 0.252857795504,
        1.20597341214, 0.276099382595, 0.505707794319, 1.09480965195}},
      {overlapping + ", overlap: true}",
       {0.486631078655, 1.48951806216, 0.947881337028, 0.4999906653, 1.43103656611, 0.169486016527,
        1.1439929369, 0.346444433694, 0.458696560885, 1.06261026344}},
      {overlapping + "}",
       {0.486110176541, 1.56703696869, 0.979674634383, 0.570975986513, 1.57763013976,
        0.274897931856, 1.23980300153, 0.472374224616, 0.654005383913, 0.317963040147}}};
  const auto leaf = [](const std::vector<double>& values) {
    return Variable(Tensor::from(values, {1, 5, 1, 2}));
  };
  const Variable q = leaf({0.5, -1, 1.5, 0.25, -0.75, 1, 0.25, 0.5, -1, -0.5});
  const Variable k = leaf({1, 0.5, -0.5, 2, 0.25, -1.25, 0.75, 0, -0.25, 1});
  const Variable v = leaf({1, -2, 3, 0.5, -1, 4, 2, 1, 0.5, -0.5});
  for (const Case& each : cases) {
    test::MadeMixer mixer("eva", each.parameters,
                          {.width = 2, .heads = 1, .form = Form::noncausal});
    for (const char* map : {"query_map.weight", "key_map.weight"}) mixer.set(map, {1, 0, 0, 1});
    const std::vector<double> y = mixer.mix(q, k, v, {}).y.value().to_vector<double>();
    ASSERT_EQ(y.size(), each.expected.size());
    for (size_t i = 0; i < y.size(); ++i) {
      EXPECT_NEAR(y[i], each.expected[i], 1e-11) << each.parameters << " " << i;
    }
  }
}

// Chunks have no more places than there are tokens to fill them: these would take 2 GB.
TEST(Eva, OverlapBeyondTheRowTakesNoMemory) {
  const auto mixed = [](const std::string& overlap) {
    const test::MadeMixer mixer("eva", "{window: 4, chunk: 2, chunk_overlap: " + overlap + "}",
                                {.width = 8, .heads = 2, .form = Form::noncausal});
    const auto given = [](const char* name) {
      return Variable(test::random_tensor({2, 7, 2, 4}, name, DType::f64));
    };
    return mixer.mix(given("q"), given("k"), given("v"), {}).y.value();
  };
  EXPECT_TRUE(test::same_bits(mixed("1048576"), mixed("7")));
  EXPECT_TRUE(test::close(mixed("6"), mixed("7"), 1e-12));
  EXPECT_FALSE(test::close(mixed("1"), mixed("7"), 1e-3));
}

TEST(Eva, OverlappingChunksAreNotCausal) {
  ParameterSet set;
  EXPECT_THROW(mixer_of(set, "{chunk_overlap: 1}", Form::causal), UsageError);
  const Mechanism& eva = find_mechanism("eva");
  EXPECT_FALSE(eva.traits_of(parse_yaml("{chunk_overlap: 1}", "test")).has(Form::causal));
  EXPECT_TRUE(eva.traits_of(parse_yaml("{overlap: true}", "test")).has(Form::causal));
}

TEST(Eva, PackedDocumentsAreSeparate) {
  for (const char* parameters :
       {"{window: 6, chunk: 3, overlap: true, distance_bias: true}", "{window: 128, chunk: 64}"}) {
    test::expect_packed_documents_are_separate("eva", parameters, DType::f64, Device{}, 1e-11);
  }
}

// Training adds the recorded noise to the proposals: with one token a chunk's value does not
// change, with more it does.
TEST(Eva, TrainingDrawsProposals) {
  const auto difference = [](const char* parameters) {
    ParameterSet set;
    const auto mixer = mixer_of(set, parameters, Form::causal);
    const auto& attention = dynamic_cast<const AttentionMixer&>(*mixer);
    const auto leaf = [](const char* name) {
      return Variable(test::random_tensor({2, 9, kHeads, kWidth}, name));
    };
    const MixInput input{leaf("q"), leaf("k"), leaf("v"), {}, {}};
    MixerContext context;
    context.random = RandomKey{7, 3, 0};
    context.place.examples = Tensor::from(std::vector<int64_t>{3, 4}, {2});
    const Tensor plain = attention.mix(input, context, {}).y.value();
    CallDraws used;
    context.training = true;
    context.record = &used;
    const Tensor noisy = attention.mix(input, context, {}).y.value();
    EXPECT_EQ(used.draws.size(), 1);
    return conformance::largest_difference(noisy, plain);
  };
  EXPECT_GT(difference("{window: 3, chunk: 3}"), 1e-3);
  EXPECT_LT(difference("{window: 1, chunk: 1}"), 1e-12);
}

}  // namespace
}  // namespace linnet
