// YOSO: its surrogate gradient, in expectation and sampled, against the paper's formula in plain
// loops.
#include "attention/yoso/yoso.h"
#include "attention/registry.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numbers>

#include "attention/yoso/collisions.h"
#include "core/yaml.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

constexpr int64_t kRows = 1, kLength = 6, kHeads = 2, kWidth = 4, kBits = 5;
using Vectors = std::vector<std::vector<double>>;

Vectors draws(const std::string& name) {
  const RandomKey key = RandomKey{3, 0, 0}.at(name);
  Vectors result(kLength);
  for (uint64_t i = 0; i < kLength * kWidth; ++i) result[i / kWidth].push_back(key.normal(i));
  return result;
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double total = 0;
  for (size_t c = 0; c < a.size(); ++c) total += a[c] * b[c];
  return total;
}

std::vector<double> unit(std::vector<double> x) {
  const double length = std::sqrt(dot(x, x));
  for (double& value : x) value /= length;
  return x;
}

// The gradient of x where `d` is that of x / |x|.
std::vector<double> through_norm(const std::vector<double>& x, const std::vector<double>& d) {
  const std::vector<double> u = unit(x);
  const double along = dot(u, d), length = std::sqrt(dot(x, x));
  std::vector<double> result;
  for (size_t c = 0; c < x.size(); ++c) result.push_back((d[c] - along * u[c]) / length);
  return result;
}

void add(std::vector<double>& to, double factor, const std::vector<double>& x) {
  for (size_t c = 0; c < x.size(); ++c) to[c] += factor * x[c];
}

// Results of every head.
using Heads = std::vector<Vectors>;

Heads draws_of_heads(const char* name) {
  Heads result;
  for (int64_t h = 0; h < kHeads; ++h) result.push_back(draws(concat(name, h)));
  return result;
}

double& at(const Tensor& x, int64_t i, int64_t h, size_t c) {
  return x.data<double>()[(i * x.size(2) + h) * kWidth + static_cast<int64_t>(c)];
}

Variable leaf(const Heads& x) {
  const Tensor values = Tensor::empty({kRows, kLength, std::ssize(x), kWidth}, DType::f64);
  for (int64_t h = 0; h < std::ssize(x); ++h) {
    for (int64_t i = 0; i < kLength; ++i) {
      for (size_t c = 0; c < kWidth; ++c) at(values, i, h, c) = x[h][i][c];
    }
  }
  return Variable(values, true);
}

void expect_equal(const Variable& x, const Heads& expected, const char* what) {
  for (int64_t h = 0; h < kHeads; ++h) {
    for (int64_t i = 0; i < kLength; ++i) {
      for (size_t c = 0; c < kWidth; ++c) {
        EXPECT_NEAR(at(x.grad(), i, h, c), expected[h][i][c], 1e-12) << what << i << "," << h;
      }
    }
  }
}

// The paper's formula for one head.
struct Surrogate {
  Vectors dq, dk, dv;

  Surrogate(const Vectors& q, const Vectors& k, const Vectors& v, const Vectors& dy,
            const std::function<bool(size_t, size_t)>& sees) {
    dq = dk = dv = Vectors(kLength, std::vector<double>(kWidth, 0));
    Vectors dk_unit = dk;
    for (size_t i = 0; i < kLength; ++i) {
      std::vector<double> weights(kLength, 0), y(kWidth, 0), dq_unit(kWidth, 0);
      for (size_t j = 0; j < kLength; ++j) {
        if (!sees(i, j)) continue;
        const double angle = std::acos(dot(unit(q[i]), unit(k[j])));
        weights[j] = std::pow(1 - angle / std::numbers::pi, kBits);
        add(y, weights[j], v[j]);
      }
      const std::vector<double> G = through_norm(y, dy[i]);
      for (size_t j = 0; j < kLength; ++j) {
        const double slope = 0.5 * kBits * weights[j] * dot(G, v[j]);
        add(dq_unit, slope, unit(k[j]));
        add(dk_unit[j], slope, unit(q[i]));
        add(dv[j], weights[j], G);
      }
      dq[i] = through_norm(q[i], dq_unit);
    }
    for (size_t j = 0; j < kLength; ++j) dk[j] = through_norm(k[j], dk_unit[j]);
  }
};

TEST(Yoso, BackwardIsTheSurrogate) {
  const Heads q = draws_of_heads("q"), k = draws_of_heads("k"), v = draws_of_heads("v"),
              dy = draws_of_heads("dy");
  constexpr size_t kMasked = 4;  // a source token
  for (const Form form : {Form::noncausal, Form::causal, Form::cross}) {
    SCOPED_TRACE(name_of(form));
    Heads dq, dk, dv;
    for (size_t h = 0; h < kHeads; ++h) {
      Surrogate expected(q[h], k[h], v[h], dy[h], [&](size_t i, size_t j) {
        return form == Form::causal ? j <= i : form == Form::noncausal || j != kMasked;
      });
      dq.push_back(std::move(expected.dq));
      dk.push_back(std::move(expected.dk));
      dv.push_back(std::move(expected.dv));
    }
    ParameterSet set;
    const ParameterScope root(set);
    MixerOptions options;
    options.width = kHeads * kWidth;
    options.heads = kHeads;
    options.form = form;
    const auto mixer = find_mechanism("yoso").make(parse_yaml("{bits: 5}", "test"), options,
                                                   {root.child("own"), root.child("tied")});
    const auto& attention = dynamic_cast<const AttentionMixer&>(*mixer);
    MixerContext context;
    if (form == Form::cross) {
      context.source_mask = Tensor::full({kRows, kLength}, 1, DType::u8);
      context.source_mask.data<uint8_t>()[kMasked] = 0;
    }
    const Variable vq = leaf(q), vk = leaf(k), vv = leaf(v);
    backward({attention.mix({vq, vk, vv, {}, {}}, context, {}).y}, {leaf(dy).value()});
    expect_equal(vq, dq, "dq");
    expect_equal(vk, dk, "dk");
    expect_equal(vv, dv, "dv");
  }
}

// Codes [B,T,1,hashes] that random keys draw from `count`; some tokens take no part.
Tensor random_codes(int64_t tokens, int64_t hashes, int64_t count, const char* name) {
  const Tensor codes = Tensor::empty({2, tokens, 1, hashes}, DType::i32);
  const RandomKey key = RandomKey{5, 0, 0}.at(name);
  for (int64_t i = 0; i < codes.elements(); ++i) {
    const double u = key.uniform(static_cast<uint64_t>(i));
    const bool masked = i / hashes % 7 == 3;
    codes.data<int32_t>()[i] = masked ? -1 : static_cast<int32_t>(u * static_cast<double>(count));
  }
  return codes;
}

// Few codes fill buckets with many pairs, many codes leave few in each.
TEST(Yoso, SampledCollisionsAreTheirFormulaInValuesAndGradients) {
  constexpr int64_t kTokens = 41, kKeys = 3, kValues = 5, kHashes = 4;
  for (const int64_t count : {2, 25}) {
    for (const bool documents : {false, true}) {
      SCOPED_TRACE(concat(count, " codes, documents ", documents));
      CollisionContext at;
      at.query_codes = random_codes(kTokens, kHashes, count, "query");
      at.key_codes = random_codes(kTokens, kHashes, count, "key");
      at.slope = 0.7;
      const auto document = [&](int64_t t) { return documents && t >= 13 ? 1 : 0; };
      if (documents) {
        at.segments = Tensor::empty({2, kTokens}, DType::i32);
        for (int64_t i = 0; i < 2 * kTokens; ++i) {
          at.segments.data<int32_t>()[i] = 4 - document(i % kTokens);
        }
      }
      const Shape keys{2, kTokens, 1, kKeys}, values{2, kTokens, 1, kValues};
      const Tensor q = test::random_tensor(keys, "q"), k = test::random_tensor(keys, "k");
      const Tensor v = test::random_tensor(values, "v"), dy = test::random_tensor(values, "dy");
      const Tensor y = Tensor::zeros(values, DType::f64), dv = Tensor::zeros(values, DType::f64);
      const Tensor dq = Tensor::zeros(keys, DType::f64), dk = Tensor::zeros(keys, DType::f64);
      const auto row = [](const Tensor& x, int64_t i) { return x.data<double>() + i * x.size(3); };
      for (int64_t pair = 0; pair < 2 * kTokens * kTokens; ++pair) {
        const int64_t i = pair / kTokens, j = i / kTokens * kTokens + pair % kTokens;
        if (document(i % kTokens) != document(j % kTokens)) continue;
        double share = 0;
        for (int64_t n = 0; n < kHashes; ++n) {
          const int32_t code = at.query_codes.data<int32_t>()[i * kHashes + n];
          const bool same = code == at.key_codes.data<int32_t>()[j * kHashes + n];
          if (code >= 0 && same) share += 1.0 / kHashes;
        }
        double product = 0;
        for (int64_t c = 0; c < kValues; ++c) {
          row(y, i)[c] += share * row(v, j)[c];
          row(dv, j)[c] += share * row(dy, i)[c];
          product += row(dy, i)[c] * row(v, j)[c];
        }
        for (int64_t c = 0; c < kKeys; ++c) {
          row(dq, i)[c] += at.slope * share * product * row(k, j)[c];
          row(dk, j)[c] += at.slope * share * product * row(q, i)[c];
        }
      }
      const Variable vq(q, true), vk(k, true), vv(v, true);
      const Variable found = sampled_collisions(vq, vk, vv, at);
      backward({found}, {dy});
      EXPECT_TRUE(test::close(found.value(), y, 1e-12));
      EXPECT_TRUE(test::close(vq.grad(), dq, 1e-12));
      EXPECT_TRUE(test::close(vk.grad(), dk, 1e-12));
      EXPECT_TRUE(test::close(vv.grad(), dv, 1e-12));
    }
  }
}

// The share of hashes in which two vectors collide comes near its expectation, and with it the
// gradients, which are linear in it.
TEST(Yoso, ManyHashesComeNearTheExpectation) {
  constexpr int64_t kHashes = 20000, kFew = 3;
  const Vectors q = draws("q"), k = draws("k");
  const Variable vq = leaf({q}), vk = leaf({k});
  Tensor planes = test::random_tensor({1, kHashes * kFew, kWidth}, "planes");
  const Tensor query_codes = hash_codes(vq.value(), planes, {}, kFew);
  const Tensor key_codes = hash_codes(vk.value(), planes, {}, kFew);
  for (size_t i = 0; i < kLength; ++i) {
    for (size_t j = 0; j < kLength; ++j) {
      const double angle = std::acos(dot(unit(q[i]), unit(k[j])));
      const double p = std::pow(1 - angle / std::numbers::pi, kFew);
      double share = 0;
      for (size_t n = 0; n < kHashes; ++n) {
        share += query_codes.data<int32_t>()[i * kHashes + n] ==
                         key_codes.data<int32_t>()[j * kHashes + n]
                     ? 1.0 / kHashes
                     : 0.0;
      }
      EXPECT_NEAR(share, p, 5 * std::sqrt(p * (1 - p) / kHashes)) << i << ", " << j;
    }
  }
}

TEST(Yoso, RefusesWhatSamplingHasNot) {
  const auto refusal = [](const char* text, Form form) {
    ParameterSet set;
    const ParameterScope root(set);
    MixerOptions options;
    options.width = kWidth;
    options.heads = 1;
    options.form = form;
    return test::message_of<UsageError>([&] {
      find_mechanism("yoso").make(parse_yaml(text, "test"), options,
                                  {root.child("own"), root.child("tied")});
    });
  };
  EXPECT_NE(refusal("{estimate: sampled, bits: 31}", Form::noncausal).find("at most 30"),
            std::string::npos);
  EXPECT_NE(refusal("{estimate: sampled, dropout: 0.1}", Form::noncausal).find("remove dropout"),
            std::string::npos);
  EXPECT_NE(refusal("{estimate: sampled, cosine: 0.98}", Form::noncausal).find("remove cosine"),
            std::string::npos);
  EXPECT_NE(refusal("{gradient: exact}", Form::causal).find("set cosine: 0.98"), std::string::npos);
  EXPECT_EQ(refusal("{gradient: exact, cosine: 0.98}", Form::causal), "");
  EXPECT_NE(refusal("{estimate: sampled}", Form::causal).find("no causal form"), std::string::npos);
}

}  // namespace
}  // namespace linnet
