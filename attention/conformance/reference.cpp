// The literal definitions applied to whole batches, with the projections around them.
#include <cmath>

#include "attention/conformance/internal.h"
#include "layers/rates.h"

namespace linnet::conformance {
namespace {

using Weights = std::map<std::string, std::vector<double>>;

template <typename Number>
using Definition = std::function<std::vector<Number>(const ReferenceSequence<Number>&)>;

template <typename Number>
std::vector<Number> stored(const std::vector<double>& values, bool round_to_bf16) {
  std::vector<Number> result;
  result.reserve(values.size());
  for (const double value : values) {
    result.push_back(round_to_bf16
                         ? static_cast<Number>(static_cast<float>(bf16(static_cast<float>(value))))
                         : static_cast<Number>(value));
  }
  return result;
}

template <typename Number>
std::vector<double> widened(const std::vector<Number>& values) {
  return {values.begin(), values.end()};
}

// x [n, in] -> [n, out] by the weight and bias of that name, as plain sums.
template <typename Number>
std::vector<Number> project(const std::vector<Number>& x, int64_t in, const Weights& weights,
                            const std::string& name, bool round_to_bf16) {
  const auto weight = stored<Number>(weights.at(name + ".weight"), round_to_bf16);
  const auto found = weights.find(name + ".bias");
  const int64_t out = static_cast<int64_t>(weight.size()) / in;
  const auto bias = found == weights.end() ? std::vector<Number>(static_cast<size_t>(out), 0)
                                           : stored<Number>(found->second, round_to_bf16);
  const int64_t n = static_cast<int64_t>(x.size()) / in;
  std::vector<Number> y(static_cast<size_t>(n * out));
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t o = 0; o < out; ++o) {
      y[static_cast<size_t>(i * out + o)] =
          dot_product(&x[static_cast<size_t>(i * in)], &weight[static_cast<size_t>(o * in)], in) +
          bias[static_cast<size_t>(o)];
    }
  }
  return stored<Number>(widened(y), round_to_bf16);
}

// Rotary positions as their paper defines them: channel pair i of every head rotated by the angle
// position * 10000^(-2 i / width).
template <typename Number>
void rotate(std::vector<Number>& x, const MixerOptions& options, const Tensor& positions,
            bool round_to_bf16) {
  const int64_t E = options.width, K = options.head_width(), width = options.rotary_width;
  for (int64_t token = 0; token < positions.elements(); ++token) {
    const auto position = static_cast<Number>(positions.data<int32_t>()[token]);
    for (int64_t c = 0; c < E; c += 2) {
      const int64_t channel = c % K;
      if (channel >= width) continue;
      const Number angle = position * std::pow(Number{10000}, -static_cast<Number>(channel) /
                                                                  static_cast<Number>(width));
      Number* pair = &x[static_cast<size_t>(token * E + c)];
      const Number left = pair[0], right = pair[1];
      pair[0] = left * std::cos(angle) - right * std::sin(angle);
      pair[1] = left * std::sin(angle) + right * std::cos(angle);
    }
  }
  x = stored<Number>(widened(x), round_to_bf16);
}

struct Segment {
  int64_t row, begin, end;
};

// The documents of a batch.
std::vector<Segment> segments_of(const Batch& batch) {
  std::vector<Segment> segments;
  for (int64_t b = 0; b < batch.rows(); ++b) {
    int64_t begin = 0;
    for (int64_t t = 1; t <= batch.length(); ++t) {
      const auto id = [&](int64_t at) {
        return batch.segments.defined() ? batch.segments.data<int32_t>()[b * batch.length() + at]
                                        : 0;
      };
      if (t == batch.length() || id(t) != id(t - 1)) {
        segments.push_back({b, begin, t});
        begin = t;
      }
    }
  }
  return segments;
}

template <typename Number>
std::vector<Number> part(const std::vector<Number>& all, int64_t begin, int64_t end) {
  return {all.begin() + begin, all.begin() + end};
}

template <typename Number>
Expected expected_by(const Setup& setup, const Weights& weights, const Batch& batch,
                     const CallDraws& used, bool round_to_bf16,
                     const Definition<Number>& definition) {
  const int64_t T = batch.length(), E = setup.options.width, H = setup.options.heads;
  const int64_t S = setup.cross() ? batch.source.size(1) : T;
  const auto x = stored<Number>(batch.x.to_vector<double>(), round_to_bf16);
  const auto source = setup.cross()
                          ? stored<Number>(batch.source.to_vector<double>(), round_to_bf16)
                          : std::vector<Number>();
  // Empty where the mechanism has no such projection.
  const auto projected = [&](const std::vector<Number>& read, const std::string& name) {
    if (!weights.contains(name + ".weight")) return std::vector<Number>();
    return project(read, E, weights, name, round_to_bf16);
  };
  const std::vector<Number>& read = setup.cross() ? source : x;
  std::vector<Number> q = projected(x, "q"), k = projected(read, "k");
  const std::vector<Number> v = projected(read, "v");
  for (std::vector<Number>* vectors : {&q, &k}) {
    if (setup.options.rotary_width == 0 || vectors->empty()) continue;
    rotate(*vectors, setup.options, batch.positions, round_to_bf16);
  }
  // Channels that enter the output projection, as many as the definition gives.
  int64_t C = E;
  std::vector<Number> context;
  for (const Segment& segment : segments_of(batch)) {
    ReferenceSequence<Number> s;
    s.form = setup.form;
    s.T = segment.end - segment.begin;
    s.S = setup.cross() ? S : s.T;
    s.H = H;
    s.K = s.V = setup.options.head_width();
    s.E = E;
    s.options = setup.options;
    s.padded_length = T;
    s.padded_source_length = S;
    s.draws = used.draws;
    s.choices = used.choices;
    s.row = segment.row;
    s.begin = segment.begin;
    s.stores_bf16 = round_to_bf16;
    const int64_t from = segment.row * T + segment.begin;
    const int64_t key_from = setup.cross() ? segment.row * S : from;
    if (!q.empty()) s.q = part(q, from * E, (from + s.T) * E);
    if (!k.empty()) s.k = part(k, key_from * E, (key_from + s.S) * E);
    if (!v.empty()) s.v = part(v, key_from * E, (key_from + s.S) * E);
    s.x = part(x, from * E, (from + s.T) * E);
    if (setup.cross()) s.source = part(source, key_from * E, (key_from + s.S) * E);
    const Tensor& key_mask = setup.cross() ? batch.source_mask : batch.mask;
    for (int64_t j = 0; j < s.S; ++j) {
      s.key_valid.push_back(key_mask.defined() ? key_mask.data<uint8_t>()[key_from + j] : 1);
    }
    for (int64_t i = 0; i < s.T; ++i) {
      s.query_valid.push_back(batch.mask.defined() ? batch.mask.data<uint8_t>()[from + i] : 1);
      s.positions.push_back(batch.positions.data<int32_t>()[from + i]);
    }
    for (const auto& [name, values] : weights) {
      s.parameters[name] = stored<Number>(values, round_to_bf16 && !is_rate(name));
    }
    const std::vector<Number> y = definition(s);
    if (context.empty()) {
      C = static_cast<int64_t>(y.size()) / s.T;
      context.resize(static_cast<size_t>(batch.rows() * T * C));
    }
    require(static_cast<int64_t>(y.size()) == s.T * C, "the definition gave ", y.size(),
            " values for ", s.T, " tokens of width ", C);
    for (int64_t i = 0; i < s.T; ++i) {
      if (batch.mask.defined() && batch.mask.data<uint8_t>()[from + i] == 0) continue;
      std::copy_n(&y[static_cast<size_t>(i * C)], C, &context[static_cast<size_t>((from + i) * C)]);
    }
  }
  context = stored<Number>(widened(context), round_to_bf16);
  const auto y =
      weights.contains("out.weight") ? project(context, C, weights, "out", round_to_bf16) : context;
  return {Tensor::from(widened(y), batch.x.shape()),
          Tensor::from(widened(context), {batch.rows(), T, C})};
}

}  // namespace

template <>
Expected expected_by_definition<double>(const Setup& setup, const Weights& weights,
                                        const Batch& batch, const CallDraws& used,
                                        bool round_to_bf16) {
  require(setup.mechanism.reference != nullptr, "the mechanism has no literal definition");
  return expected_by<double>(setup, weights, batch, used, round_to_bf16, [&](const auto& sequence) {
    return setup.mechanism.reference(setup.parameters, sequence);
  });
}

template <>
Expected expected_by_definition<float>(const Setup& setup, const Weights& weights,
                                       const Batch& batch, const CallDraws& used,
                                       bool round_to_bf16) {
  require(setup.mechanism.reference_f32 != nullptr, "the mechanism has no literal definition");
  return expected_by<float>(setup, weights, batch, used, round_to_bf16, [&](const auto& sequence) {
    return setup.mechanism.reference_f32(setup.parameters, sequence);
  });
}

Expected expected_in_double(
    const Setup& setup, const Weights& weights, const Batch& batch,
    const std::function<std::vector<double>(const ReferenceSequence<double>&)>& definition) {
  return expected_by<double>(setup, weights, batch, {}, false, definition);
}

double require_close(const Tensor& a, const Tensor& b, double allowed, const std::string& what) {
  const double difference = largest_difference(a, b);
  const double limit = allowed * std::max(1.0, largest_magnitude(b));
  require(difference <= limit, what, ": differs by ", difference, ", allowed ", limit);
  return difference;
}

void require_same_bits(const Tensor& a, const Tensor& b, const std::string& what) {
  require(same_bits(a, b), what, ": bits differ, values by up to ", largest_difference(a, b));
}

}  // namespace linnet::conformance
