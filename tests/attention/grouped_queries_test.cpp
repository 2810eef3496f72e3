// Heads of queries that share heads of keys and values: the mechanism with each of these repeated.
#include <gtest/gtest.h>

#include "attention/registry.h"
#include "autograd/arithmetic.h"
#include "autograd/layout.h"
#include "core/yaml.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

using test::random_tensor;

constexpr int64_t kRows = 2, kTime = 11, kSource = 9, kHeads = 4, kKeyHeads = 2, kHeadWidth = 4;
constexpr int64_t kWidth = kHeads * kHeadWidth, kGroup = kHeads / kKeyHeads;

// A mixer in f64 whose keys and values have that many heads.
struct Made {
  Made(const Mechanism& mechanism, const std::string& parameters, Form form, int64_t kv_heads) {
    options.width = kWidth;
    options.heads = kHeads;
    options.kv_heads = kv_heads;
    options.form = form;
    options.max_length = 16;
    options.rotary_width = form == Form::cross ? 0 : 2;
    const ParameterScope root(set);
    mixer = mechanism.make(parse_yaml(parameters, "test"), options,
                           {root.child("own"), root.child("tied")});
    set.materialize(3, DType::f64, DType::f64);
    for (const auto& entry : set.entries()) {
      set.weight_of(entry).copy_from(random_tensor(entry.shape, entry.name, DType::f64, 0.4));
    }
  }
  MixerResult operator()(const Variable& x, const Variable& source, int64_t offset = 0,
                         const MixerState& state = {}) const {
    MixerContext context;
    std::vector<int32_t> positions;
    for (int64_t i = 0; i < kRows * x.size(1); ++i) {
      positions.push_back(static_cast<int32_t>(offset + i % x.size(1)));
    }
    context.positions = Tensor::from(positions, {kRows, x.size(1)});
    context.place.time_offset = offset;
    return options.form == Form::cross ? mixer->forward_cross(x, source, context, state)
                                       : mixer->forward(x, context, state);
  }
  Tensor gradient(const std::string& name) const { return set.find(name).variable.grad(); }

  MixerOptions options;
  ParameterSet set;
  std::unique_ptr<TokenMixer> mixer;
};

// Whether a parameter has a row for every channel of keys or values.
bool of_keys(const std::string& name) {
  return name.starts_with("own.k.") || name.starts_with("own.v.");
}

// Rows of each head of keys as often as there are heads of queries that read it; or the sum of such
// rows for each head of keys.
std::vector<double> repeated(const std::vector<double>& rows) {
  const size_t head = rows.size() / kKeyHeads;
  std::vector<double> result;
  for (size_t g = 0; g < kKeyHeads; ++g) {
    for (size_t i = 0; i < kGroup; ++i) {
      result.insert(result.end(), rows.begin() + static_cast<std::ptrdiff_t>(g * head),
                    rows.begin() + static_cast<std::ptrdiff_t>((g + 1) * head));
    }
  }
  return result;
}
std::vector<double> summed(const std::vector<double>& rows) {
  const size_t head = rows.size() / kHeads;
  std::vector<double> result(head * kKeyHeads);
  for (size_t i = 0; i < rows.size(); ++i) {
    result[i / head / kGroup * head + i % head] += rows[i];
  }
  return result;
}

void check(const Mechanism& mechanism, const std::string& parameters, Form form) {
  SCOPED_TRACE(concat(mechanism.name, " ", parameters, " ", name_of(form)));
  const Made grouped(mechanism, parameters, form, kKeyHeads), full(mechanism, parameters, form, 0);
  for (const auto& entry : grouped.set.entries()) {
    const auto& whole = full.set.find(entry.name);
    const std::vector<double> values = grouped.set.weight_of(entry).to_vector<double>();
    full.set.weight_of(whole).copy_from(
        Tensor::from(of_keys(entry.name) ? repeated(values) : values, whole.shape));
  }
  Variable x(random_tensor({kRows, kTime, kWidth}, "x"), true);
  Variable source(random_tensor({kRows, kSource, kWidth}, "source"), true);
  const Variable seed(random_tensor({kRows, kTime, kWidth}, "seed"));
  const MixerResult mixed = grouped(x, source);
  const auto gradients_of_inputs = [&](const MixerResult& result) {
    x.set_grad(Tensor::zeros(x.shape(), DType::f64));
    source.set_grad(Tensor::zeros(source.shape(), DType::f64));
    backward(sum_all(multiply(result.y, seed)));
    return std::pair{x.grad().clone(), source.grad().clone()};
  };
  const auto [dx, dsource] = gradients_of_inputs(mixed);
  const MixerResult expected = full(x, source);
  const auto [dx_full, dsource_full] = gradients_of_inputs(expected);
  EXPECT_TRUE(test::close(mixed.y.value(), expected.y.value(), 1e-12));
  EXPECT_TRUE(test::close(dx, dx_full, 1e-12));
  EXPECT_TRUE(test::close(dsource, dsource_full, 1e-12));
  for (const auto& entry : grouped.set.entries()) {
    const std::vector<double> whole = full.gradient(entry.name).to_vector<double>();
    EXPECT_TRUE(test::close(grouped.gradient(entry.name),
                            Tensor::from(of_keys(entry.name) ? summed(whole) : whole, entry.shape),
                            1e-11))
        << entry.name;
  }
  const NoGrad off;
  double state_bytes = 0, parameters_read = 0;
  for (const auto& [name, variable] : mixed.state) {
    const bool of_tokens = name == "k" || name == "v";  // [B,P,G,K], else [B,G,..]
    if (variable.shape().rank() >= 3) {
      EXPECT_EQ(variable.size(of_tokens ? 2 : 1), kKeyHeads) << name;
    }
    state_bytes += static_cast<double>(variable.value().bytes());
  }
  for (const auto& entry : grouped.set.entries()) {
    parameters_read += static_cast<double>(entry.shape.elements());
  }
  const double vectors = 2 * kTime + (form == Form::cross ? kSource : 0);
  EXPECT_EQ(grouped.mixer->cost({kRows, kTime, kSource, DType::f64}).bytes,
            8 * (kRows * kWidth * vectors + parameters_read) + state_bytes);
  if (form == Form::noncausal) return;
  // Token by token with the state.
  MixerState state;
  for (int64_t t = 0; t < kTime; ++t) {
    const MixerResult step = grouped(slice(x, 1, t, t + 1), source, t, state);
    state = step.state;
    EXPECT_TRUE(test::close(step.y.value(), slice(mixed.y.value(), 1, t, t + 1), 1e-12)) << t;
  }
}

TEST(GroupedQueries, AreTheMechanismWithRepeatedKeysAndValues) {
  int checked = 0;
  for (const Mechanism& mechanism : mechanisms()) {
    if (!mechanism.traits.grouped_queries) continue;
    std::vector<std::string> variants = mechanism.variants;
    variants.emplace_back("{}");
    for (const std::string& parameters : variants) {
      for (const Form form : {Form::noncausal, Form::causal, Form::cross}) {
        if (!mechanism.traits_of(parse_yaml(parameters, "test")).has(form)) continue;
        check(mechanism, parameters, form);
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, 20);
}

}  // namespace
}  // namespace linnet
