// The orthogonal memory: factored kernels against dense memories, gradients against finite
// differences, masks, threads, limiting cases.
#include "attention/primitives/orthogonal_memory/cpu.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "core/error.h"
#include "core/random.h"
#include "core/threads.h"
#include "tests/worst.h"

namespace linnet {
namespace {

struct Setting {
  const char* name;
  MemoryScope scope;
  int64_t window, B, T, H, r, d;
  bool shared = false, masks = false, state = false;
  std::vector<int32_t> segments = {};
  std::vector<int64_t> starts = {};
  int64_t source = -1;  // codes of cross-attention
  double dropout = 0;
};

template <typename T>
std::vector<T> draws(int64_t n, uint64_t site) {
  std::vector<T> values(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    values[i] = static_cast<T>(static_cast<float>(RandomKey{11, 0, site}.normal(i)));
  }
  return values;
}

// All arrays of one problem; values are the same in either precision.
template <typename T>
struct Case {
  Setting s;
  int64_t M, S;
  std::vector<T> q, f, basis, completed, partial, y, dy, dq, df, dbasis, dcompleted, dpartial;
  std::vector<T> completed_out, partial_out, dcompleted_out, dpartial_out;
  std::vector<int64_t> counts, counts_out, examples;
  std::vector<uint8_t> query_mask, code_mask;
  OrthogonalMemoryOptions options;
  OrthogonalMemoryInputs<T> in;

  explicit Case(const Setting& setting) : s(setting) {
    M = s.shared ? 1 : s.H;
    S = s.source >= 0 ? s.source : s.T;
    q = draws<T>(s.B * s.T * s.H * s.d, 1);
    f = draws<T>(s.B * S * s.H * s.d, 2);
    basis = draws<T>(s.H * s.r * s.d, 3);
    dy = draws<T>(s.B * s.T * s.H * s.d, 4);
    dcompleted_out = draws<T>(s.B * M * s.r, 5);
    dpartial_out = draws<T>(s.B * M * s.r, 6);
    const T nan = std::numeric_limits<T>::quiet_NaN();
    for (auto* x : {&y, &dq}) x->assign(q.size(), nan);
    df.assign(f.size(), nan);
    dbasis.assign(basis.size(), nan);
    for (auto* x : {&completed_out, &partial_out}) x->assign(dcompleted_out.size(), nan);
    counts_out.assign(2 * s.B, -1);
    options = {s.scope, s.window, 0.8, s.shared, s.dropout, RandomKey{3, 1, 9}};
    for (int64_t b = 0; b < s.B; ++b) examples.push_back(17 - b);
    if (s.state) {
      completed = draws<T>(s.B * M * s.r, 7);
      partial = draws<T>(s.B * M * s.r, 8);
      for (int64_t b = 0; b < s.B; ++b) {
        // A window that has just begun holds nothing.
        const int64_t open = s.window > 0 ? s.starts[b] % s.window : 0;
        counts.insert(counts.end(), {5 + b, open});
        if (open == 0) std::fill_n(partial.begin() + b * M * s.r, M * s.r, T{0});
      }
      for (auto* x : {&dcompleted, &dpartial}) x->assign(completed.size(), nan);
    }
    if (s.masks) {
      const auto punch = [](int64_t n) {
        std::vector<uint8_t> mask(static_cast<size_t>(n), 1);
        for (int64_t i = 1; i < n; i += 3) mask[i] = 0;
        return mask;
      };
      query_mask = punch(s.B * s.T);
      code_mask = punch(s.B * S);
    }
  }
  Case(const Case&) = delete;

  void poison() {
    const auto fill = [](const std::vector<uint8_t>& mask, std::vector<T>& values) {
      const size_t width = mask.empty() ? 0 : values.size() / mask.size();
      for (size_t i = 0; i < mask.size() * width; ++i) {
        if (mask[i / width] == 0) values[i] = std::numeric_limits<T>::quiet_NaN();
      }
    };
    fill(query_mask, q);
    fill(query_mask, dy);
    fill(code_mask, f);
  }
  const OrthogonalMemoryInputs<T>& bind() {
    in.q = SequenceView<T>(q.data(), s.B, s.T, s.H, s.d);
    in.f = SequenceView<T>(f.data(), s.B, S, s.H, s.d);
    in.examples = examples.data();
    in.time_offset = 6;
    in.basis = basis.data();
    in.rank = s.r;
    in.basis_head_stride = s.shared ? s.d : s.r * s.d;
    in.basis_row_stride = s.shared ? s.H * s.d : s.d;
    in.query_mask = query_mask.empty() ? nullptr : query_mask.data();
    in.code_mask = code_mask.empty() ? nullptr : code_mask.data();
    in.spans = make_spans(s.segments.empty() ? nullptr : s.segments.data(), s.B, s.T, s.state,
                          s.starts.empty() ? nullptr : s.starts.data());
    if (s.state) in.state = {completed.data(), partial.data(), counts.data()};
    return in;
  }
  SequenceView<T> view(std::vector<T>& x, int64_t length) {
    return {x.data(), s.B, length, s.H, s.d};
  }
  OrthogonalMemoryState<T, int64_t> out() {
    return {completed_out.data(), partial_out.data(), counts_out.data()};
  }
  void forward() { orthogonal_memory_forward<T>(bind(), options, view(y, s.T), out()); }
  void backward() {
    OrthogonalMemoryGradients<T> gradients;
    gradients.dq = view(dq, s.T);
    gradients.df = view(df, S);
    gradients.dbasis = dbasis.data();
    if (s.state) {
      gradients.dcompleted = dcompleted.data();
      gradients.dpartial = dpartial.data();
    }
    orthogonal_memory_backward<T>(bind(), options, view(dy, s.T), dcompleted_out.data(),
                                  dpartial_out.data(), gradients);
  }
};

std::vector<Setting> settings(bool tiny) {
  const MemoryScope windows = MemoryScope::completed_windows, prefix = MemoryScope::prefix,
                    whole = MemoryScope::whole;
  std::vector<Setting> all;
  if (tiny) {
    all = {
        {"windows", windows, 2, 2, 5, 2, 3, 4},
        {"prefix", prefix, 0, 1, 4, 2, 3, 2},
        {"whole", whole, 0, 2, 4, 1, 2, 3},
        {"documents", windows, 2, 1, 8, 1, 2, 3, false, false, false, {0, 0, 0, 0, 0, 3, 3, 3}},
        {"state", windows, 3, 2, 5, 2, 2, 3, false, false, true, {}, {4, 6}},
        {"state_inside", windows, 9, 1, 3, 1, 2, 3, false, false, true, {}, {4}},
        {"state_prefix", prefix, 0, 1, 3, 2, 2, 3, false, false, true, {}, {4}},
        {"state_documents", windows, 2, 1, 6, 2, 2, 3, false, false, true, {0, 0, 0, 1, 1, 1}, {3}},
        {"cross", whole, 0, 2, 3, 2, 2, 3, false, false, false, {}, {}, 5},
        {"cross_encoded", whole, 0, 2, 3, 2, 2, 3, false, false, true, {}, {0, 0}, 0}};
  } else {
    std::vector<int32_t> documents;
    for (int i = 0; i < 2 * 300; ++i) documents.push_back(i / 170);
    all = {{"windows", windows, 16, 1, 200, 2, 20, 33},
           {"windows_1", windows, 1, 1, 130, 2, 16, 16},
           {"wide_windows", windows, 100, 1, 540, 1, 8, 8},
           {"prefix", prefix, 0, 1, 540, 2, 8, 4},
           {"whole", whole, 0, 2, 300, 2, 4, 8},
           {"documents", windows, 16, 2, 300, 1, 8, 8, false, false, false, documents},
           {"state", windows, 16, 2, 150, 2, 16, 16, false, false, true, {}, {37, 64}},
           {"cross", whole, 0, 2, 70, 2, 16, 16, false, false, false, {}, {}, 200}};
  }
  const size_t count = all.size();
  for (size_t i = 0; i < count; ++i) {
    Setting loaded = all[i];
    loaded.masks = true;
    loaded.shared = i % 2 == 0;
    loaded.dropout = 0.3;
    all.push_back(loaded);
    loaded.masks = false;
    loaded.shared = true;
    loaded.dropout = 0;
    all.push_back(loaded);
  }
  return all;
}

template <typename T>
double worst_difference(const std::vector<T>& got, const std::vector<double>& expected) {
  EXPECT_EQ(got.size(), expected.size());
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double error =
        std::abs(static_cast<double>(got[i]) - expected[i]) / (1 + std::abs(expected[i]));
    test::keep_worst(worst, error);
  }
  return worst;
}

TEST(OrthogonalMemory, FactoredFormIsTheDenseMemory) {
  for (const bool tiny : {true, false}) {
    for (const Setting& setting : settings(tiny)) {
      SCOPED_TRACE(std::string(setting.name) + (setting.masks ? " masks" : "") +
                   (setting.shared ? " shared" : ""));
      Case<double> dense(setting), wide(setting);
      Case<float> narrow(setting);
      orthogonal_memory_reference(dense.bind(), dense.options, dense.view(dense.y, setting.T),
                                  dense.out());
      wide.poison();
      narrow.poison();
      wide.forward();
      narrow.forward();
      EXPECT_TRUE(worst_difference(wide.y, dense.y) <= 1e-12);
      EXPECT_TRUE(worst_difference(narrow.y, dense.y) <= 2e-4);
      EXPECT_TRUE(worst_difference(wide.completed_out, dense.completed_out) <= 1e-12);
      EXPECT_TRUE(worst_difference(wide.partial_out, dense.partial_out) <= 1e-12);
      EXPECT_TRUE(worst_difference(narrow.completed_out, dense.completed_out) <= 1e-4);
      EXPECT_EQ(wide.counts_out, dense.counts_out);
    }
  }
}

// L = sum(y dy) + sum(state_out dstate_out) by the dense equation.
double loss(Case<double>& c) {
  orthogonal_memory_reference(c.bind(), c.options, c.view(c.y, c.s.T), c.out());
  double total = 0;
  for (size_t i = 0; i < c.y.size(); ++i) total += c.y[i] * c.dy[i];
  for (size_t i = 0; i < c.completed_out.size(); ++i) {
    total += c.completed_out[i] * c.dcompleted_out[i] + c.partial_out[i] * c.dpartial_out[i];
  }
  return total;
}

TEST(OrthogonalMemory, GradientsAgreeWithFiniteDifferencesInEveryDirection) {
  for (const Setting& setting : settings(true)) {
    SCOPED_TRACE(std::string(setting.name) + (setting.masks ? " masks" : "") +
                 (setting.shared ? " shared" : ""));
    Case<double> poisoned(setting), clean(setting);
    poisoned.poison();
    poisoned.backward();
    const std::tuple<const char*, std::vector<double>*, std::vector<double>*> variables[] = {
        {"dq", &clean.q, &poisoned.dq},
        {"df", &clean.f, &poisoned.df},
        {"dbasis", &clean.basis, &poisoned.dbasis},
        {"dcompleted", &clean.completed, &poisoned.dcompleted},
        {"dpartial", &clean.partial, &poisoned.dpartial}};
    const double step = 1e-5;
    for (const auto& [what, variable, gradient] : variables) {
      for (size_t i = 0; i < variable->size(); ++i) {
        const double before = (*variable)[i];
        (*variable)[i] = before + step;
        const double up = loss(clean);
        (*variable)[i] = before - step;
        const double numeric = (up - loss(clean)) / (2 * step);
        (*variable)[i] = before;
        ASSERT_TRUE(std::abs((*gradient)[i] - numeric) <= 5e-9 * (1 + std::abs(numeric)))
            << what << "[" << i << "]: " << (*gradient)[i] << ", differences give " << numeric;
      }
    }
  }
}

TEST(OrthogonalMemory, GradientsOfLongSequencesAlongRandomDirections) {
  for (const Setting& setting : settings(false)) {
    SCOPED_TRACE(std::string(setting.name) + (setting.masks ? " masks" : "") +
                 (setting.shared ? " shared" : ""));
    Case<double> c(setting), moved(setting);
    Case<float> narrow(setting);
    c.poison();
    narrow.poison();
    c.backward();
    narrow.backward();
    EXPECT_TRUE(worst_difference(narrow.dq, c.dq) <= 1e-3);
    EXPECT_TRUE(worst_difference(narrow.df, c.df) <= 1e-3);
    EXPECT_TRUE(worst_difference(narrow.dbasis, c.dbasis) <= 1e-3);
    const std::pair<std::vector<double>*, std::vector<double>*> variables[] = {
        {&moved.q, &c.dq},
        {&moved.f, &c.df},
        {&moved.basis, &c.dbasis},
        {&moved.completed, &c.dcompleted}};
    double slope = 0;
    const auto move = [&](double distance) {
      uint64_t site = 30;
      for (const auto& [variable, gradient] : variables) {
        const std::vector<double> direction =
            draws<double>(static_cast<int64_t>(variable->size()), ++site);
        for (size_t i = 0; i < direction.size(); ++i) {
          (*variable)[i] += distance * direction[i];
          if (distance == 1e-6) slope += direction[i] * (*gradient)[i];
        }
      }
    };
    move(1e-6);
    const auto shortened = [&] {
      moved.forward();
      double total = 0;
      for (size_t i = 0; i < moved.y.size(); ++i) {
        total += std::isnan(moved.dy[i]) ? 0 : moved.y[i] * moved.dy[i];
      }
      for (size_t i = 0; i < moved.completed_out.size(); ++i) {
        total += moved.completed_out[i] * moved.dcompleted_out[i] +
                 moved.partial_out[i] * moved.dpartial_out[i];
      }
      return total;
    };
    const double up = shortened();
    move(-2e-6);
    const double numeric = (up - shortened()) / 2e-6;
    EXPECT_TRUE(std::abs(slope - numeric) <= 2e-5 * (1 + std::abs(numeric)))
        << slope << " " << numeric;
  }
}

TEST(OrthogonalMemory, ThreadsChangeNoBit) {
  const int before = thread_count();
  const Setting setting{"windows", MemoryScope::completed_windows, 16, 1, 2000, 2, 16, 16};
  Case<float> one(setting), four(setting);
  set_thread_count(1);
  one.forward();
  one.backward();
  set_thread_count(4);
  four.forward();
  four.backward();
  set_thread_count(before);
  EXPECT_EQ(one.y, four.y);
  EXPECT_EQ(one.dq, four.dq);
  EXPECT_EQ(one.df, four.df);
  EXPECT_EQ(one.dbasis, four.dbasis);
}

TEST(OrthogonalMemory, TheFutureAndTheOwnWindowChangeNoBit) {
  const Setting setting{"windows", MemoryScope::completed_windows, 16, 1, 200, 2, 16, 16};
  Case<float> before(setting), after(setting);
  const size_t row = 2 * 16, changed = 80;
  for (size_t i = changed * row; i < after.f.size(); ++i) after.f[i] = 9.0f;
  before.forward();
  after.forward();
  for (size_t i = 0; i < 96 * row; ++i) ASSERT_EQ(before.y[i], after.y[i]) << i;
  EXPECT_NE(before.y[96 * row], after.y[96 * row]);
  for (size_t i = 0; i < 16 * row; ++i)
    ASSERT_EQ(before.y[i], 0) << "the first window reads nothing";
}

TEST(OrthogonalMemory, NoQueryReadsTheMeanOverTheRank) {
  // q = 0 and an orthogonal square basis: F = mean(f) / d.
  Case<double> c({"whole", MemoryScope::whole, 0, 1, 30, 1, 4, 4});
  std::fill(c.q.begin(), c.q.end(), 0.0);
  const double h = 0.5;
  c.basis = {h, h, h, h, h, -h, h, -h, h, h, -h, -h, h, -h, -h, h};
  c.forward();
  for (int64_t channel = 0; channel < 4; ++channel) {
    double mean = 0;
    for (int64_t t = 0; t < 30; ++t) mean += c.f[t * 4 + channel] / 30;
    for (int64_t t = 0; t < 30; ++t) EXPECT_NEAR(c.y[t * 4 + channel], mean / 4, 1e-14);
  }
}

TEST(OrthogonalMemory, DropoutDropsItsShareAndKeepsTheMean) {
  // q = 0 weighs all rows alike: of a diagonal basis each channel of y is one weight.
  Case<double> c({.name = "whole",
                  .scope = MemoryScope::whole,
                  .window = 0,
                  .B = 1,
                  .T = 400,
                  .H = 1,
                  .r = 4,
                  .d = 4,
                  .dropout = 0.25});
  std::fill(c.q.begin(), c.q.end(), 0.0);
  std::fill(c.f.begin(), c.f.end(), 1.0);
  for (size_t i = 0; i < 16; ++i) c.basis[i] = i % 5 == 0 ? 1 : 0;
  c.forward();
  int64_t dropped = 0;
  for (const double y : c.y) {
    EXPECT_TRUE(y == 0 || std::abs(y - 0.25 / 0.75) <= 1e-6) << y;
    dropped += y == 0 ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(dropped) / 1600, 0.25, 0.03);
}

}  // namespace
}  // namespace linnet
