// Long-short attention: parameter counts of the specification, packed rows.
#include "attention/longshort/longshort.h"
#include "attention/registry.h"

#include <gtest/gtest.h>

#include "tests/attention/packed_documents.h"
#include "tests/error_helpers.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

// Trained elements of a layer.
int64_t count_of(const char* mechanism, const char* parameters, Form form, int64_t width,
                 int64_t heads) {
  ParameterSet set;
  MixerOptions options;
  options.width = width;
  options.heads = heads;
  options.form = form;
  const ParameterScope root(set);
  find_mechanism(mechanism).make(parse_yaml(parameters, "test"), options,
                                 {root.child("own"), root.child("tied")});
  int64_t count = 0;
  for (const ParameterSet::Entry& entry : set.entries()) count += entry.shape.elements();
  return count;
}

struct Published {
  const char* parameters;
  Form form;
  int64_t layers, width, heads;
  double without, with;  // millions of the model with softmax attention, and with this one
};

TEST(Longshort, HasTheParametersOfThePublishedModels) {
  for (const Published& model :
       {Published{"{preset: lavo}", Form::causal, 12, 768, 12, 122.32, 136.61},
        {"{preset: lavo}", Form::causal, 6, 512, 4, 54.40, 57.57},
        {"{preset: lavo}", Form::causal, 6, 512, 8, 123.70, 126.88},
        {"{preset: lavo}", Form::noncausal, 6, 512, 4, 54.40, 55.20},
        {"{preset: lavo_summarization}", Form::noncausal, 6, 512, 8, 123.70, 124.11}}) {
    const int64_t extra =
        count_of("longshort", model.parameters, model.form, model.width, model.heads) -
        count_of("softmax", "{}", model.form, model.width, model.heads);
    EXPECT_NEAR(model.without + static_cast<double>(model.layers * extra) / 1e6, model.with, 0.0101)
        << model.parameters << " " << name_of(model.form) << " of width " << model.width;
  }
}

TEST(Longshort, HasTheParametersOfItsParts) {
  const int64_t E = 12, H = 3, r = 2, m = 5;
  const auto extra = [&](const char* parameters, Form form) {
    return count_of("longshort", parameters, form, E, H) - count_of("softmax", "{}", form, E, H);
  };
  EXPECT_EQ(extra("{rank: 2}", Form::causal), 2 * E * E + E * H * r + H * r + 3 * E);
  EXPECT_EQ(extra("{landmarks: 5}", Form::noncausal), E * H * m + H * m + 4 * E);
  EXPECT_EQ(extra("{landmarks: 0, norm: false}", Form::noncausal), 0);
  // Without biases of the projections.
  EXPECT_EQ(extra("{relative: false, norm: false}", Form::causal), E * H + H - 4 * E);
}

TEST(Longshort, PackedDocumentsAreSeparate) {
  for (const char* parameters : {"{window: 5, chunk: 3, rank: 2}", "{window: 16, chunk: 64}"}) {
    test::expect_packed_documents_are_separate("longshort", parameters, DType::f64, Device{},
                                               1e-11);
  }
}

TEST(Longshort, ConflictingOptionsAreRefused) {
  EXPECT_EQ(test::causes_of<UsageError>(
                [] { count_of("longshort", "{chunk: 8, null_tokens: 12}", Form::causal, 4, 2); }),
            "conflict null_tokens at test:1:25");
  EXPECT_EQ(test::causes_of<UsageError>([] {
              count_of("longshort", "{relative: false, sinusoids: halves}", Form::causal, 4, 2);
            }),
            "conflict sinusoids at test:1:30");
}

TEST(Longshort, NullTokensRefusePackedDocuments) {
  using namespace conformance;
  const MixerOptions options = check_options(Form::causal, 8);
  Batch batch = random_batch(Form::causal, 1, 9, 0, options.width, 3);
  batch.segments = Tensor::from(std::vector<int32_t>{0, 0, 0, 0, 1, 1, 1, 1, 1}, {1, 9});
  const auto run = [&](const char* parameters) {
    const ConfigNode node = parse_yaml(parameters, "test");
    const Mechanism& longshort = find_mechanism("longshort");
    Subject(longshort, node, options, DType::f64).run(batch);
  };
  EXPECT_NE(test::message_of<UsageError>([&] {
              run("{chunk: 4, null_tokens: 4}");
            }).find("set null_tokens: 0"),
            std::string::npos);
  EXPECT_NO_THROW(run("{chunk: 4}"));
}

// The two layouts of sinusoids are one another's with the columns of their maps in another order.
TEST(Longshort, SinusoidsInHalvesAreInterleavedOnesInAnotherOrder) {
  constexpr int64_t E = 8, T = 14;
  const auto run = [](const std::string& layout, bool reordered) {
    MixerOptions options;
    options.width = E;
    options.heads = 2;
    options.form = Form::causal;
    ParameterSet set;
    const ParameterScope root(set);
    const auto mixer =
        find_mechanism("longshort")
            .make(parse_yaml("{window: 5, chunk: 3, sinusoids: " + layout + "}", "test"), options,
                  {root.child("own"), root.child("tied")});
    set.materialize(4, DType::f64, DType::f64);
    for (const ParameterSet::Entry& entry : set.entries()) {
      if (!reordered || !entry.name.ends_with("positions.weight")) continue;
      Tensor weight = set.weight_of(entry);
      const std::vector<double> interleaved = weight.to_vector<double>();
      for (int64_t i = 0; i < E * E; ++i) {
        const int64_t c = i % E, from = c < E / 2 ? 2 * c : 2 * (c - E / 2) + 1;
        weight.data<double>()[i] = interleaved[static_cast<size_t>(i - c + from)];
      }
    }
    set.refresh_values();
    const Tensor x = test::random_tensor({1, T, E}, "x");
    return mixer->forward(Variable(x), {}, {}).y.value();
  };
  const Tensor interleaved = run("interleaved", false);
  EXPECT_TRUE(test::close(run("halves", true), interleaved, 1e-12));
  EXPECT_FALSE(test::close(run("halves", false), interleaved, 1e-4));
}

TEST(Longshort, CrossIsRefused) {
  EXPECT_THROW(count_of("longshort", "{}", Form::cross, 4, 2), UsageError);
}

}  // namespace
}  // namespace linnet
