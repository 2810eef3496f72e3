// `evaluate --per-token` against the definition: each token's own window through the model.
#include "recipes/engine/per_token.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/files.h"
#include "core/hdf5.h"
#include "core/safetensors.h"
#include "recipes/engine/evaluate.h"
#include "recipes/engine/make_task.h"
#include "tests/error_helpers.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

using testing::HasSubstr;
using namespace test;

struct Row {
  int32_t id, document;
  int64_t position;
  double nll;
};

class PerToken : public TinyRun {
 protected:
  std::string trained(const std::vector<std::string>& changes = {}) {
    Recipe once = recipe(changes);
    once.train.max_steps = 2;
    run(once, "run");
    return out("run");
  }
  // ln of the sum of exponentials, minus the target's logit.
  static double loss_of(const std::vector<float>& logits, size_t row, size_t words,
                        int32_t target) {
    double sum = 0;
    for (size_t w = 0; w < words; ++w) sum += std::exp(logits[row * words + w]);
    return std::log(sum) - logits[row * words + static_cast<size_t>(target)];
  }
  // Windows of `context` tokens, each `stride` after the one before, one by one; each scores the
  // targets that none before it did.
  static std::vector<Row> defined(const std::string& path, int64_t context, int64_t stride) {
    const LoadedModel loaded = load_model(path);
    const auto task = make_task(loaded.recipe, loaded.tokenizer);
    const ScoringSet set = task->scoring_set({}, {context, {}, false});
    const TokenizedCorpus& corpus = set.texts->corpus();
    const bool one_stream = loaded.recipe.data.crosses_documents();
    std::vector<int32_t> tokens(static_cast<size_t>(corpus.size()));
    corpus.tokens.read(0, tokens);
    const NoGrad off;
    std::vector<Row> rows;
    for (size_t d = 0; d < (one_stream ? 1 : corpus.documents.size()); ++d) {
      const int64_t begin = corpus.documents[d].begin;
      const int64_t end = one_stream ? corpus.size() : corpus.document_end(d);
      int64_t scored = begin;
      for (int64_t at = begin; scored < end - 1; at += stride) {
        const int64_t length = std::min(context, end - 1 - at);
        ModelInput input;
        input.tokens = Tensor::from(
            std::vector<int32_t>(tokens.begin() + at, tokens.begin() + at + length), {1, length});
        const Tensor hidden = loaded.model->encode(input, nullptr).value();
        const Tensor table = hidden.slice(0, {length, hidden.size(2)});
        const std::vector<float> logits =
            loaded.model->token_head().logits(table).to_vector<float>();
        const auto words = static_cast<size_t>(loaded.model->vocabulary());
        for (; scored < at + length; ++scored) {
          const int64_t target = scored + 1;
          size_t document = 0;
          while (target >= corpus.document_end(document)) ++document;
          rows.push_back({tokens[static_cast<size_t>(target)], static_cast<int32_t>(document),
                          target - corpus.documents[document].begin,
                          loss_of(logits, static_cast<size_t>(scored - at), words,
                                  tokens[static_cast<size_t>(target)])});
        }
      }
    }
    return rows;
  }
  static void expect_rows(const std::map<std::string, Tensor>& columns,
                          const std::vector<Row>& expected, const std::string& label) {
    SCOPED_TRACE(label);
    ASSERT_EQ(columns.at("nll").shape(), Shape({static_cast<int64_t>(expected.size())}));
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(columns.at("id").data<int32_t>()[i], expected[i].id) << i;
      EXPECT_EQ(columns.at("document").data<int32_t>()[i], expected[i].document) << i;
      EXPECT_EQ(columns.at("position").data<int64_t>()[i], expected[i].position) << i;
      EXPECT_NEAR(columns.at("nll").data<double>()[i], expected[i].nll, 2e-5) << i;
    }
  }
  std::map<std::string, Tensor> written(const std::string& file) const {
    return tensors_from_hdf5(read_file(folder_ / file), file);
  }
  EvaluateRequest request(int64_t context, std::optional<int64_t> stride,
                          const std::string& file = "tokens.h5") const {
    EvaluateRequest request;
    request.contexts = {context};
    request.stride = stride;
    request.batch = 3;
    request.per_token = folder_ / file;
    return request;
  }
};

TEST_F(PerToken, WindowsStridesAndStreamsInTheOrderOfTheSplit) {
  const std::string path = trained();
  EvaluateRequest streaming = request(16, std::nullopt);
  streaming.carry_state = true;
  struct Case {
    const char* label;
    EvaluateRequest request;
    int64_t context, stride;
  };
  for (const Case& each :
       {Case{"windows", request(16, std::nullopt), 16, 16}, Case{"stride", request(16, 5), 16, 5},
        Case{"streaming", streaming, 1000, 1000}}) {
    const EvaluateReport report = evaluate(path, each.request);
    const auto columns = written("tokens.h5");
    expect_rows(columns, defined(path, each.context, each.stride), each.label);
    double sum = 0;
    for (const double nll : columns.at("nll").to_vector<double>()) sum += nll;
    EXPECT_NEAR(sum, report.scores.at(0).nll_sum, 1e-9 * sum) << each.label;
  }
}

TEST_F(PerToken, OneStreamAcrossDocumentsAsSafetensors) {
  const std::string path = trained({"data.cross_documents=true"});
  evaluate(path, request(24, 7, "tokens.safetensors"));
  const std::string bytes = read_file(folder_ / "tokens.safetensors");
  const SafetensorsContents contents = parse_safetensors(bytes, "tokens");
  std::map<std::string, Tensor> columns;
  for (const auto& [name, tensor] : contents.tensors) columns[name] = tensor.read();
  expect_rows(columns, defined(path, 24, 7), "one stream");
  EXPECT_EQ(contents.metadata.at("split"), "validation");
  EXPECT_EQ(contents.metadata.at("step"), "2");
}

TEST_F(PerToken, TheFirstTokensAlone) {
  const std::string path = trained();
  EvaluateRequest few = request(16, std::nullopt);
  few.max_tokens = 50;
  evaluate(path, few);
  std::vector<Row> expected = defined(path, 16, 16);
  expected.resize(50);
  expect_rows(written("tokens.h5"), expected, "50 tokens");
}

TEST_F(PerToken, OtherTasksAndSeveralLengthsAreRefused) {
  run(classifier({"train.max_steps=1"}), "classes");
  EvaluateRequest whole;
  whole.per_token = folder_ / "tokens.h5";
  const std::string message = message_of<UsageError>([&] { evaluate(out("classes"), whole); });
  EXPECT_THAT(message, HasSubstr("this run's task is classification: what it says of each example "
                                 "is in --predictions FILE"));
  run(sequences({"train.max_steps=1"}), "recall");
  EXPECT_THAT(message_of<UsageError>([&] { evaluate(out("recall"), whole); }),
              HasSubstr("losses per token are of language models on texts"));
  EvaluateRequest two = request(16, std::nullopt);
  two.contexts = {8, 16};
  const std::string path = trained();
  EXPECT_EQ(causes_of<UsageError>([&] { evaluate(path, two); }), "conflict --per-token");
  EXPECT_FALSE(exists(folder_ / "tokens.h5"));
}

}  // namespace
}  // namespace linnet
