// Diagonal recurrences: against the convolution with their kernel, gradients against finite
// differences in every direction, carried states, masks with NaN behind them.
#include "attention/primitives/diagonal_scan/diagonal_scan.h"

#include <complex>

#include "autograd/grad_check.h"
#include "core/error.h"
#include "tests/attention/token_setting.h"

namespace linnet {
namespace {

using test::random_tensor;
using test::TokenSetting;
using Complex = std::complex<double>;

struct Kind {
  Discretization discretization = Discretization::zoh;
  bool later = false, shared = true;
  int64_t H = 3, M = 2, G = 2;

  std::string label() const {
    return concat(discretization == Discretization::zoh ? "zoh" : "bilinear",
                  later ? ", later" : "", shared ? ", shared" : "", ", H ", H, ", M ", M, ", G ",
                  G);
  }
};

std::vector<Kind> kinds() {
  return {{},
          {Discretization::bilinear, false, false},
          {Discretization::zoh, true, false},
          {Discretization::zoh, false, false, 19, 3, 1},
          {Discretization::bilinear, true, true, 1, 1, 1}};
}

struct Problem {
  Kind kind;
  TokenSetting setting;
  std::vector<Tensor> inputs;  // u, log_step, log_decay, frequency, c, d, state
  DiagonalScanContext context;

  Problem(const TokenSetting& s, const Kind& k) : kind(k), setting(s) {
    const int64_t rows = k.shared ? 1 : k.H;
    inputs = {random_tensor({s.B, s.T, k.H}, "u"),
              random_tensor({k.H}, "log_step", DType::f64, 0.5),
              random_tensor({rows, k.M}, "log_decay", DType::f64, 0.5),
              random_tensor({rows, k.M}, "frequency", DType::f64, 2),
              random_tensor({k.G, k.H, k.M, 2}, "c"),
              k.G > 1 ? random_tensor({k.G, k.H}, "d") : Tensor(),
              s.P > 0 && !k.later ? random_tensor({s.B, k.H, k.M, 2}, "state") : Tensor()};
    const BlockAttentionContext at = s.context();
    context = {k.discretization, k.later, at.key_mask, at.segments};
  }

  double at(size_t input, int64_t i) const { return inputs[input].data<double>()[i]; }
  Complex pair(size_t input, int64_t i) const { return {at(input, 2 * i), at(input, 2 * i + 1)}; }
  bool valid(int64_t token) const {
    return !context.mask.defined() || context.mask.data<uint8_t>()[token] != 0;
  }
  int32_t document(int64_t token) const {
    return context.segments.defined() ? context.segments.data<int32_t>()[token] : 0;
  }
  double step(int64_t h) const { return std::exp(at(1, h)); }
  Complex a(int64_t h, int64_t n) const {
    const int64_t i = (kind.shared ? 0 : h) * kind.M + n;
    return {-std::exp(at(2, i)), at(3, i)};
  }
  bool zoh() const { return kind.discretization == Discretization::zoh; }
  Complex pole(int64_t h, int64_t n) const {
    const Complex z = step(h) * a(h, n);
    return zoh() ? std::exp(z) : (2.0 + z) / (2.0 - z);
  }
  Complex gain(int64_t h, int64_t n) const {
    const Complex A = a(h, n);
    return zoh() ? (std::exp(step(h) * A) - 1.0) / A : step(h) / (1.0 - step(h) * A / 2.0);
  }

  // y and, unless later, the state after the last token.
  std::vector<Tensor> expected() const {
    const int64_t B = setting.B, T = setting.T, H = kind.H, M = kind.M, G = kind.G;
    const Tensor y = Tensor::zeros({B, T, G, H}, DType::f64);
    const Tensor last = Tensor::zeros({B, H, M, 2}, DType::f64);
    for (int64_t i = 0; i < B * H * M; ++i) {
      const int64_t n = i % M, h = i / M % H, b = i / M / H;
      const auto u = [&](int64_t t) { return valid(b * T + t) ? at(0, (b * T + t) * H + h) : 0.0; };
      // The state of mode n that token t has read, with `from` tokens between it and the first or
      // last.
      const auto state = [&](int64_t t) {
        Complex x = 0;
        for (int64_t j = 0; j < T; ++j) {
          const int64_t distance = kind.later ? j - t - 1 : t - j;
          if (distance < 0 || document(b * T + j) != document(b * T + t)) continue;
          x += std::pow(pole(h, n), static_cast<double>(distance)) * gain(h, n) * u(j);
        }
        if (inputs[6].defined() && document(b * T + t) == document(b * T)) {
          x += std::pow(pole(h, n), static_cast<double>(t + 1)) * pair(6, i);
        }
        return x;
      };
      for (int64_t t = 0; t < T; ++t) {
        const Complex x = state(t);
        for (int64_t g = 0; g < G && valid(b * T + t); ++g) {
          double& out = y.data<double>()[((b * T + t) * G + g) * H + h];
          out += 2 * (pair(4, (g * H + h) * M + n) * x).real();
          if (n == 0 && inputs[5].defined()) out += at(5, g * H + h) * u(t);
        }
      }
      const Complex x = T > 0 ? state(T - 1) : inputs[6].defined() ? pair(6, i) : Complex(0);
      last.data<double>()[2 * i] = x.real();
      last.data<double>()[2 * i + 1] = x.imag();
    }
    if (kind.later) return {y};
    return {y, last};
  }
  std::vector<Variable> run(const std::vector<Variable>& x) const {
    const DiagonalScanResult found =
        diagonal_scan({x[0], x[1], x[2], x[3], x[4], x[5], x[6]}, context);
    if (kind.later) return {found.y};
    return {found.y, found.state};
  }
  // Leaves of that dtype; masked tokens hold NaN.
  std::vector<Variable> leaves(DType dtype = DType::f64) const {
    std::vector<Variable> in;
    for (const Tensor& x : inputs) {
      in.push_back(x.defined() ? Variable(x.to(dtype).clone(), true) : Variable());
    }
    in[0] = Variable(test::poisoned(inputs[0], context.mask).to(dtype), true);
    return in;
  }
};

TEST(DiagonalScan, IsTheConvolutionWithItsKernel) {
  std::vector<TokenSetting> settings = test::token_settings();
  settings.push_back({2, 150, 0, true, true, 0});
  settings.push_back({2, 64, 4, false, false, 0});
  settings.push_back({2, 0, 4, false, false, 0});
  for (const TokenSetting& setting : settings) {
    for (const Kind& kind : kinds()) {
      SCOPED_TRACE(concat(setting.label(), ", T ", setting.T, ", ", kind.label()));
      const Problem p(setting, kind);
      const std::vector<Tensor> expected = p.expected();
      const std::vector<Variable> found = p.run(p.leaves());
      ASSERT_EQ(found.size(), expected.size());
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_TRUE(test::close(found[i].value(), expected[i], 1e-11)) << i;
      }
    }
  }
}

TEST(DiagonalScan, GradientsAgreeWithFiniteDifferencesInEveryDirection) {
  for (const TokenSetting& setting : test::token_settings()) {
    for (const Kind& kind : kinds()) {
      if (kind.H > 3 && setting.start != 8) continue;
      SCOPED_TRACE(concat(setting.label(), ", T ", setting.T, ", ", kind.label()));
      const Problem p(setting, kind);
      const GradCheckResult result =
          grad_check([&](const std::vector<Variable>& x) { return p.run(x); }, p.inputs);
      EXPECT_TRUE(result.passed) << result.message;
    }
  }
}

// Backward restarts every 64 tokens: its states are those of the whole row.
TEST(DiagonalScan, GradientsOfARowAreThoseOfItsSplits) {
  const Problem p({1, 150, 4, false, true, 0}, {Discretization::zoh, false, false, 19, 3, 2});
  const auto gradients = [&](std::vector<int64_t> cuts) {
    std::vector<Variable> in = p.leaves();
    cuts.push_back(p.setting.T);
    const Tensor seed = random_tensor({1, 150, 2, 19}, "dy");
    std::vector<Variable> outputs, splits;
    std::vector<Tensor> seeds;
    Variable state = in[6];
    int64_t begin = 0;
    for (const int64_t end : cuts) {
      const int64_t n = end - begin;
      splits.emplace_back(in[0].value().slice(begin * 19, {1, n, 19}), true);
      const Tensor mask = p.context.mask.slice(begin, {1, n});
      const DiagonalScanResult part =
          diagonal_scan({splits.back(), in[1], in[2], in[3], in[4], in[5], state},
                        {Discretization::zoh, false, mask, {}});
      outputs.push_back(part.y);
      seeds.push_back(seed.slice(begin * 38, {1, n, 2, 19}));
      state = part.state;
      begin = end;
    }
    backward(outputs, seeds);
    std::vector<Tensor> all;
    for (size_t i = 1; i < in.size(); ++i) all.push_back(in[i].grad());
    all.push_back(splits[0].grad().slice(0, {1, 5, 19}));
    return all;
  };
  const std::vector<Tensor> whole = gradients({}), cut = gradients({5, 64, 70, 128});
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_TRUE(test::close(cut[i], whole[i], 1e-9, 1e-9)) << i;
  }
}

TEST(DiagonalScan, SinglePrecisionStaysExactOverThousandsOfTokens) {
  // Slow modes with high frequencies, which errors of the pole would turn.
  Problem p({1, 4000, 0, false, false, 0}, {Discretization::zoh, false, true, 2, 3, 1});
  p.inputs[1] = Tensor::full({2}, std::log(1e-3), DType::f64);
  p.inputs[2] = Tensor::full({1, 3}, std::log(0.5), DType::f64);
  p.inputs[3] = Tensor::from(std::vector<double>{3, 100, 1280}, {1, 3});
  // The same rates in both.
  p.inputs[1] = p.inputs[1].to(DType::f32).to(DType::f64);
  p.inputs[2] = p.inputs[2].to(DType::f32).to(DType::f64);
  const Tensor exact = p.run(p.leaves())[0].value(), found = p.run(p.leaves(DType::f32))[0].value();
  double largest = 0;
  for (const double y : exact.to_vector<double>()) largest = std::max(largest, std::abs(y));
  EXPECT_TRUE(test::close(found, exact, 5e-6 * largest));
}

TEST(DiagonalScan, HalfPrecisionIsComputedInSingleWithTheSameBitsForAnyNumberOfThreads) {
  const Problem p({2, 70, 4, true, true, 0}, {Discretization::zoh, false, true, 40, 2, 2});
  const auto results = [&](DType dtype, int threads) {
    const test::Threads use(threads);
    std::vector<Variable> in = p.leaves(DType::f32);
    in[0] = Variable(in[0].value().to(DType::bf16).to(dtype), true);
    const std::vector<Variable> out = p.run(in);
    EXPECT_EQ(out[0].dtype(), dtype);
    EXPECT_EQ(out[1].dtype(), DType::f32);
    backward({out[0]}, {Tensor::full(out[0].shape(), 1, dtype)});
    std::vector<Tensor> all{out[0].value(), out[1].value()};
    for (const Variable& x : in) all.push_back(x.grad());
    return all;
  };
  const std::vector<Tensor> narrow = results(DType::bf16, 1), wide = results(DType::f32, 3);
  for (size_t i = 0; i < wide.size(); ++i) {
    EXPECT_TRUE(test::same_bits(narrow[i], wide[i].to(narrow[i].dtype()))) << i;
  }
}

TEST(DiagonalScan, RefusesWhatDoesNotFit) {
  const Problem p({2, 23, 4, true, true, 8}, {});
  const std::vector<Variable> good = p.leaves();
  const auto refusal = [&](size_t input, const Shape& shape) {
    std::vector<Variable> wrong = good;
    wrong[input] = Variable(Tensor::zeros(shape, DType::f64), true);
    return test::message_of<Error>([&] { p.run(wrong); });
  };
  EXPECT_NE(refusal(0, {2, 23, 4}).find("expected c [G,4,M,2]"), std::string::npos);
  EXPECT_NE(refusal(1, {4}).find("expected log_step [3]"), std::string::npos);
  EXPECT_NE(refusal(3, {3, 2}).find("got [3], [1, 2], [3, 2]"), std::string::npos);
  EXPECT_NE(refusal(4, {2, 3, 2, 1}).find("expected c"), std::string::npos);
  EXPECT_NE(refusal(5, {3, 2}).find("expected d [2,3]"), std::string::npos);
  EXPECT_NE(refusal(6, {2, 3, 2}).find("expected a state [2,3,2,2]"), std::string::npos);
  Problem other = p;
  other.context.mask = Tensor::full({2, 22}, 1, DType::u8);
  EXPECT_NE(test::message_of<Error>([&] { other.run(good); }).find("expected mask [2, 23]"),
            std::string::npos);
  other = p;
  other.context.segments = Tensor::zeros({2, 23}, DType::i64);
  EXPECT_NE(test::message_of<Error>([&] { other.run(good); }).find("expected segments of i32"),
            std::string::npos);
  other = p;
  other.context.later = true;
  EXPECT_NE(test::message_of<Error>([&] { other.run(good); }).find("continues from no state"),
            std::string::npos);
}

}  // namespace
}  // namespace linnet
