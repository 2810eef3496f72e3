// `linnet attention run`: modes agree, core equals the whole without projections, states continue,
// draws and positions are those given.
#include "tests/attention/case_file.h"

namespace linnet {
namespace {

using namespace test;

TEST(AttentionCase, ModesAgreeForEveryMechanism) {
  for (const Mechanism& mechanism : mechanisms()) {
    for (const Form form : {Form::causal, Form::cross}) {
      if (!mechanism.traits.has(form)) continue;
      const CaseFile file = make_case(mechanism, form);
      if (mechanism.traits.exempt.contains("chunks") ||
          (form == Form::causal && !mechanism.traits.decode_state)) {
        for (const CaseMode mode : {CaseMode::chunked, CaseMode::recurrent}) {
          EXPECT_EQ(causes([&] { run(file, mode); }), "conflict mode at CASE.h5") << mechanism.name;
        }
        continue;
      }
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

}  // namespace
}  // namespace linnet
