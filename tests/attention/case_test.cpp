// `linnet attention run`: modes agree, core equals the whole without projections, bad cases are
// refused.
#include "attention/case.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "attention/explain.h"
#include "attention/registry.h"
#include "core/hdf5.h"
#include "tests/worst.h"

namespace linnet {
namespace {

constexpr int64_t kRows = 2, kLength = 21, kSource = 6, kWidth = 16, kHeads = 2;

// Enough for every mechanism at heads of 8.
std::string options_for(const std::string& mechanism) {
  if (mechanism == "lavo") return ", rank: 6, window: 5";
  if (mechanism == "abc_mlp") return ", slots: 4";
  if (mechanism == "flash_global") return ", group: 5";  // its first group reads nothing
  return "";
}

Tensor draw(const Shape& shape, const std::string& name) {
  const Tensor result = Tensor::empty(shape, DType::f64);
  const RandomKey key = RandomKey{5, 0, 0}.at(name);
  for (int64_t i = 0; i < result.elements(); ++i) {
    result.data<double>()[i] = 0.5 * key.normal(static_cast<uint64_t>(i));
  }
  return result;
}

struct CaseFile {
  std::map<std::string, Tensor> tensors;
  std::string mechanism, form, config;
  int64_t core = 0, seed = 0, max_length = 64;

  std::string image() const {
    Hdf5Writer writer;
    for (const auto& [name, tensor] : tensors) writer.write(name, tensor);
    writer.set_attribute("/", "mechanism", mechanism);
    writer.set_attribute("/", "form", form);
    writer.set_attribute("/", "config", config);
    writer.set_attribute("/", "core", core);
    writer.set_attribute("/", "seed", seed);
    writer.set_attribute("/", "max_length", max_length);
    return writer.finish();
  }
};

CaseFile make_case(const Mechanism& mechanism, Form form) {
  CaseFile file;
  file.mechanism = mechanism.name;
  file.form = name_of(form);
  file.config = concat("{width: ", kWidth, ", heads: ", kHeads, options_for(mechanism.name), "}");
  file.tensors["inputs/x"] = draw({kRows, kLength, kWidth}, "x");
  file.tensors["cotangent"] = draw({kRows, kLength, kWidth}, "dy");
  if (form == Form::cross) file.tensors["inputs/source"] = draw({kRows, kSource, kWidth}, "source");
  const Tensor mask = Tensor::full({kRows, kLength}, 1, DType::u8);
  mask.data<uint8_t>()[kLength - 1] = 0;
  file.tensors["inputs/mask"] = mask;
  ParameterSet set;
  const ParameterScope root(set);
  MixerOptions options;
  options.width = kWidth;
  options.heads = kHeads;
  options.form = form;
  options.max_length = 64;
  ConfigNode parameters = ConfigNode::map();
  if (mechanism.name == "lavo") {
    parameters.set("rank", ConfigNode::integer(6));
    parameters.set("window", ConfigNode::integer(5));
  }
  if (mechanism.name == "abc_mlp") parameters.set("slots", ConfigNode::integer(4));
  mechanism.make(parameters, options, {root.child("own"), root.child("tied")});
  for (const ParameterSet::Entry& entry : set.entries()) {
    const std::string name = entry.name.substr(entry.name.find('.') + 1);
    file.tensors["params/" + name] = draw(entry.shape, name);
  }
  return file;
}

std::map<std::string, Tensor> run(const CaseFile& file, CaseMode mode, DType dtype = DType::f64) {
  CaseOptions options;
  options.dtype = dtype;
  options.mode = mode;
  options.chunk = 4;
  return tensors_from_hdf5(run_case(file.image(), "CASE.h5", options), "OUT.h5");
}

double difference(const Tensor& a, const Tensor& b) {
  EXPECT_EQ(a.shape(), b.shape());
  const std::vector<double> left = a.to_vector<double>(), right = b.to_vector<double>();
  double largest = 0;
  for (size_t i = 0; i < left.size(); ++i) {
    test::keep_worst(largest, std::abs(left[i] - right[i]));
  }
  return largest;
}

void expect_equal(const std::map<std::string, Tensor>& a, const std::map<std::string, Tensor>& b,
                  double allowed, const std::string& what) {
  for (const auto& [name, tensor] : b) {
    ASSERT_TRUE(a.contains(name)) << what << " lacks " << name;
    EXPECT_LE(difference(a.at(name), tensor), allowed) << what << " " << name;
  }
  EXPECT_EQ(a.size(), b.size()) << what;
}

std::string refusal(const CaseFile& file, CaseMode mode = CaseMode::parallel) {
  try {
    run(file, mode);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(AttentionCase, ModesAgreeForEveryMechanism) {
  for (const Mechanism& mechanism : mechanisms()) {
    for (const Form form : {Form::causal, Form::cross}) {
      if (!mechanism.traits.has(form) || mechanism.traits.exempt.contains("chunks")) continue;
      const CaseFile file = make_case(mechanism, form);
      const auto parallel = run(file, CaseMode::parallel);
      EXPECT_TRUE(parallel.contains("grads/x")) << mechanism.name;
      EXPECT_TRUE(parallel.contains("outputs/context")) << mechanism.name;
      const std::string what = concat(mechanism.name, " ", name_of(form));
      expect_equal(run(file, CaseMode::chunked), parallel, 1e-10, what + " chunked");
      expect_equal(run(file, CaseMode::recurrent), parallel, 1e-10, what + " recurrent");
    }
  }
}

TEST(AttentionCase, CoreIsTheMechanismWithoutItsProjections) {
  const Mechanism& mechanism = find_mechanism("lavo");
  CaseFile file = make_case(mechanism, Form::causal);
  // Identity projections: q = k = v = x, and the output projection passes the context.
  for (const char* name : {"q", "k", "v", "out"}) {
    const Tensor identity = Tensor::zeros({kWidth, kWidth}, DType::f64);
    for (int64_t i = 0; i < kWidth; ++i) identity.data<double>()[i * kWidth + i] = 1;
    file.tensors[concat("params/", name, ".weight")] = identity;
    file.tensors[concat("params/", name, ".bias")] = Tensor::zeros({kWidth}, DType::f64);
  }
  const auto whole = run(file, CaseMode::parallel);
  CaseFile core = file;
  core.core = 1;
  const Shape heads{kRows, kLength, kHeads, kWidth / kHeads};
  for (const char* name : {"inputs/q", "inputs/k", "inputs/v"}) {
    core.tensors[name] = file.tensors["inputs/x"].reshape(heads);
  }
  core.tensors.erase("inputs/x");
  core.tensors["cotangent"] = file.tensors["cotangent"].reshape(heads);
  for (const char* name : {"q", "k", "v", "out"}) {
    core.tensors.erase(concat("params/", name, ".weight"));
    core.tensors.erase(concat("params/", name, ".bias"));
  }
  const auto inner = run(core, CaseMode::parallel);
  EXPECT_LE(difference(inner.at("outputs/context"), whole.at("outputs/context")), 1e-13);
  EXPECT_LE(difference(inner.at("grads/params/basis"), whole.at("grads/params/basis")), 1e-13);
  const auto recurrent = run(core, CaseMode::recurrent);
  EXPECT_LE(difference(recurrent.at("grads/k"), inner.at("grads/k")), 1e-12);
}

TEST(AttentionCase, WhatALayerPassesOnIsWritten) {
  const auto out = run(make_case(find_mechanism("luna"), Form::noncausal), CaseMode::parallel);
  const Shape memory{kRows, 16, kWidth};
  EXPECT_EQ(out.at("streams/luna_memory").shape(), memory);
  EXPECT_EQ(out.at("streams/luna_packed").shape(), memory);
}

TEST(AttentionCase, StateContinuesInAnotherRun) {
  for (const Mechanism& mechanism : mechanisms()) {
    if (!mechanism.traits.decode_state) continue;
    const CaseFile file = make_case(mechanism, Form::causal);
    for (const DType dtype : {DType::f64, DType::bf16}) {
      CaseFile first = file;
      first.tensors.erase("cotangent");
      const auto before = run(first, CaseMode::parallel, dtype);
      CaseFile next = first;
      for (const auto& [name, tensor] : before) {
        if (name.starts_with("state/")) next.tensors[name] = tensor;
      }
      const Tensor positions = Tensor::empty({kRows, kLength}, DType::i32);
      for (int64_t i = 0; i < positions.elements(); ++i) {
        positions.data<int32_t>()[i] = static_cast<int32_t>(kLength + i % kLength);
      }
      next.tensors["positions/q"] = positions;
      const auto after = run(next, CaseMode::parallel, dtype);
      EXPECT_GT(difference(after.at("outputs/y"), before.at("outputs/y")), 1e-3)
          << mechanism.name << ": the state changes nothing";
    }
  }
}

TEST(AttentionCase, DrawsOfTokensAreCutWithTheCalls) {
  CaseFile file = make_case(find_mechanism("abc_random"), Form::causal);
  const auto own = run(file, CaseMode::parallel);
  EXPECT_EQ(own.at("draws/token_slots").shape(), Shape({kRows, kLength, kHeads}));
  Tensor given = Tensor::zeros({kRows, kLength, kHeads}, DType::f64);
  for (int64_t i = 0; i < given.elements(); ++i)
    given.data<double>()[i] = static_cast<double>(i % 3);
  file.tensors["draws/token_slots"] = given;
  const auto whole = run(file, CaseMode::parallel);
  EXPECT_GT(difference(whole.at("outputs/y"), own.at("outputs/y")), 1e-3);
  EXPECT_EQ(difference(whole.at("draws/token_slots"), given), 0);
  expect_equal(run(file, CaseMode::recurrent), whole, 1e-10, "token by token");
  file.tensors["draws/token_slots"] = Tensor::zeros({kRows, kLength - 1, kHeads}, DType::f64);
  EXPECT_NE(refusal(file).find("an entry for each of"), std::string::npos);
  given.data<double>()[0] = 1000;
  file.tensors["draws/token_slots"] = given;
  EXPECT_NE(refusal(file).find("slot 1000 does not exist"), std::string::npos);
}

TEST(AttentionCase, DrawsFollowTheSeedUnlessTheyAreGiven) {
  CaseFile file = make_case(find_mechanism("lavo"), Form::causal);
  file.tensors.erase("params/basis");
  file.config.replace(file.config.size() - 1, 1, ", basis_train: frozen}");
  const auto first = run(file, CaseMode::parallel);
  EXPECT_EQ(first.at("draws/basis").shape(), Shape({kHeads, 6, kWidth / kHeads}));
  EXPECT_FALSE(first.contains("grads/params/basis"));
  expect_equal(run(file, CaseMode::parallel), first, 0, "the same seed");
  CaseFile other = file;
  other.seed = 1;
  const auto second = run(other, CaseMode::parallel);
  EXPECT_GT(difference(second.at("draws/basis"), first.at("draws/basis")), 0.1);
  EXPECT_GT(difference(second.at("outputs/y"), first.at("outputs/y")), 1e-6);
  // Given draws of another seed are used and listed.
  CaseFile given = file;
  given.tensors["draws/basis"] = second.at("draws/basis");
  expect_equal(run(given, CaseMode::parallel), second, 0, "given draws");
  given.tensors["draws/basis"] = draw({2}, "x");
  EXPECT_NE(refusal(given).find("expected draws/basis [2, 6, 8]"), std::string::npos);
  given.tensors.erase("draws/basis");
  given.tensors["draws/bases"] = draw({2}, "x");
  EXPECT_NE(refusal(given).find("did you mean 'basis'"), std::string::npos);
  given.tensors.erase("draws/bases");
  given.tensors["choices/top"] = draw({2}, "x");
  EXPECT_NE(refusal(given).find("expected integers in choices/top"), std::string::npos);
  given.tensors["choices/top"] = Tensor::zeros({2}, DType::i64);
  EXPECT_NE(refusal(given).find("'lavo' with this config makes no choices"), std::string::npos);
}

Tensor positions_from(int64_t first, int64_t step, int64_t count = kLength) {
  const Tensor positions = Tensor::empty({kRows, count}, DType::i32);
  for (int64_t i = 0; i < positions.elements(); ++i) {
    positions.data<int32_t>()[i] = static_cast<int32_t>(first + step * (i % count));
  }
  return positions;
}

TEST(AttentionCase, KeysMayHavePositionsOfTheirOwn) {
  CaseFile file = make_case(find_mechanism("softmax"), Form::causal);
  file.config.replace(file.config.size() - 1, 1, ", rotary_width: 8}");
  const auto usual = run(file, CaseMode::parallel);
  file.tensors["positions/k"] = positions_from(0, 1);
  expect_equal(run(file, CaseMode::parallel), usual, 0, "the queries' positions");
  // Only differences of position matter to rotary positions.
  file.tensors["positions/k"] = positions_from(3, 1);
  const auto shifted = run(file, CaseMode::parallel);
  EXPECT_GT(difference(shifted.at("outputs/y"), usual.at("outputs/y")), 1e-3);
  expect_equal(run(file, CaseMode::recurrent), shifted, 1e-12, "recurrent");
  file.tensors["positions/q"] = positions_from(7, 1);
  file.tensors["positions/k"] = positions_from(10, 1);
  EXPECT_LE(difference(run(file, CaseMode::parallel).at("outputs/y"), shifted.at("outputs/y")),
            1e-12);
  file.tensors["positions/k"] = positions_from(0, 1, 3);
  EXPECT_NE(refusal(file).find("expected positions/k [2, 21]"), std::string::npos);
  for (const char* windowed : {"local", "lavo"}) {
    CaseFile window = make_case(find_mechanism(windowed), Form::causal);
    window.tensors["positions/k"] = positions_from(3, 1);
    EXPECT_NE(refusal(window).find("keys cannot have others"), std::string::npos) << windowed;
  }
}

TEST(AttentionCase, CosformerWeighsByTheGivenPositions) {
  for (const Form form : {Form::noncausal, Form::causal, Form::cross}) {
    const int64_t keys = form == Form::cross ? kSource : kLength;
    CaseFile file = make_case(find_mechanism("cosformer"), form);
    const auto usual = run(file, CaseMode::parallel);
    file.tensors["positions/k"] = positions_from(0, 1, keys);
    expect_equal(run(file, CaseMode::parallel), usual, 0, "usual positions");
    // Without distances nothing is left of the re-weighting.
    file.tensors["positions/q"] = positions_from(0, 0);
    file.tensors["positions/k"] = positions_from(0, 0, keys);
    CaseFile plain = file;
    plain.mechanism = "relu";
    EXPECT_LE(difference(run(file, CaseMode::parallel).at("outputs/y"),
                         run(plain, CaseMode::parallel).at("outputs/y")),
              1e-12);
  }
}

TEST(AttentionCase, CosformerKeepsTheLengthOfALongSource) {
  CaseFile file = make_case(find_mechanism("cosformer"), Form::cross);
  file.config.replace(file.config.size() - 1, 1, ", cross_length: common}");
  file.max_length = kLength;
  file.tensors["inputs/source"] = draw({kRows, 2 * kLength, kWidth}, "source");
  expect_equal(run(file, CaseMode::recurrent), run(file, CaseMode::parallel), 1e-12, "recurrent");
  file.max_length = 0;
  EXPECT_NE(refusal(file).find("the cross form needs a length; set max_length"), std::string::npos);
}

TEST(AttentionCase, BadCasesAreRefusedWithASentence) {
  const CaseFile good = make_case(find_mechanism("softmax"), Form::causal);
  CaseFile bad = good;
  bad.tensors.erase("params/k.weight");
  EXPECT_NE(refusal(bad).find("params/k.weight is missing"), std::string::npos);
  bad = good;
  bad.tensors["params/q.wieght"] = draw({1}, "x");
  EXPECT_NE(refusal(bad).find("did you mean 'q.weight'"), std::string::npos);
  bad = good;
  bad.tensors["inputs/mask"] = Tensor::full({1, 2}, 1, DType::u8);
  EXPECT_NE(refusal(bad).find("expected inputs/mask [2, 21]"), std::string::npos);
  bad = good;
  bad.tensors["draws/projection"] = draw({2}, "x");
  EXPECT_NE(refusal(bad).find("'softmax' with this config draws nothing"), std::string::npos);
  bad = good;
  bad.tensors["input/x"] = draw({2}, "x");
  EXPECT_NE(refusal(bad).find("did you mean 'inputs'"), std::string::npos);
  bad = good;
  bad.form = "noncausal";
  EXPECT_NE(refusal(bad, CaseMode::recurrent).find("no state"), std::string::npos);
  bad.form = "causal";
  bad.config = "{width: 16, heads: 3}";
  EXPECT_NE(refusal(bad).find("multiple of heads"), std::string::npos);
}

TEST(AttentionShow, ListsParametersStateAndOptionsOfEveryMechanism) {
  // Maps of width E x E at least, of mechanisms with their own, and of mechanisms that lack
  // projections or use one twice.
  const std::map<std::string, int64_t> own_maps{
      {"flash", 3}, {"flash_quad", 3}, {"luna", 3}, {"s4d", 1}};
  const std::map<std::string, int64_t> fewer{{"reformer", 3}, {"synthesizer", 2}};
  for (const Mechanism& mechanism : mechanisms()) {
    const JsonValue shown = explain_mechanism(mechanism, ConfigNode::map());
    EXPECT_EQ(shown.at("options").size(), mechanism.schema().fields.size());
    for (const JsonValue& form : shown.at("forms").elements()) {
      // Mechanisms between projections begin with them; others have maps of their own.
      int64_t projections = 0;
      for (const JsonValue& parameter : form.at("parameters").elements()) {
        for (const char* name : {"q.weight", "k.weight", "v.weight", "out.weight"}) {
          projections += parameter.at("name").text() == name ? 1 : 0;
        }
      }
      const auto own = own_maps.find(mechanism.name);
      const bool projected = own == own_maps.end();
      if (projected) {
        const bool source_only = mechanism.name == "lavo" && form.at("form").text() == "cross";
        const auto lacking = fewer.find(mechanism.name);
        const int64_t usual = lacking == fewer.end() ? 4 : lacking->second;
        EXPECT_EQ(projections, source_only ? 2 : usual) << mechanism.name;
      }
      const bool carries = form.at("form").text() == "cross" ||
                           (form.at("form").text() == "causal" && mechanism.traits.decode_state);
      EXPECT_EQ(form.at("state").size() > 0, carries) << mechanism.name;
      EXPECT_GT(form.at("cost").at("mixing_per_token").number(), 0);
      // The projections of width 256; the maps of other mechanisms are not less.
      EXPECT_GE(form.at("cost").at("projections_per_token").number(),
                static_cast<double>(projected ? projections : own->second) * 256 * 256);
    }
    const std::string text = format_explanation(shown);
    EXPECT_NE(text.find(mechanism.sources), std::string::npos);
    EXPECT_NE(text.find("cost per token at T = 1024  multiply-adds: "), std::string::npos);
  }
}

TEST(AttentionShow, ListsDraws) {
  ConfigNode config = ConfigNode::map();
  config.set("basis_train", ConfigNode::scalar("frozen"));
  const JsonValue shown = explain_mechanism(find_mechanism("lavo"), config);
  const JsonValue& draws = shown.at("forms").elements()[0].at("draws");
  ASSERT_EQ(draws.size(), 1u);
  EXPECT_EQ(draws.elements()[0].at("name").text(), "basis");
  EXPECT_EQ(draws.elements()[0].at("shape").size(), 3u);
  EXPECT_NE(format_explanation(shown).find("draws  basis[4, 64, 64]"), std::string::npos);
}

}  // namespace
}  // namespace linnet
