#include "layers/forward_record.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace linnet {
namespace {

// Ambient for the same reason as DeadRowCount: no module has another use for it.
thread_local ForwardRecord* newest = nullptr;

// The record of this thread off for as long as it lives.
class Off {
 public:
  Off() : before_(std::exchange(newest, nullptr)) {}
  ~Off() { newest = before_; }
  Off(const Off&) = delete;
  Off& operator=(const Off&) = delete;

 private:
  ForwardRecord* before_;
};

struct Sizes {
  int64_t queries, keys, heads, value_heads, width;
  size_t weight(int64_t head, int64_t query, int64_t key) const {
    return static_cast<size_t>((head * queries + query) * keys + key);
  }
  // In the values, whose heads may each serve several.
  size_t value(int64_t token, int64_t head, int64_t c) const {
    return static_cast<size_t>((token * value_heads + head * value_heads / heads) * width + c);
  }
  size_t channel(int64_t token, int64_t head, int64_t c) const {
    return static_cast<size_t>((token * heads + head) * width + c);
  }
};

// [H,T,S]: what the mechanism makes of each token's 1. A call shows as many tokens as a head has
// channels, each in a channel of its own.
std::vector<float> measured_weights(const AttentionMixer& mixer, const MixInput& input,
                                    const MixerContext& context, const MixerState& state,
                                    const Sizes& n) {
  const Tensor& v = input.v.value();
  std::vector<float> weights(static_cast<size_t>(n.heads * n.queries * n.keys));
  for (int64_t first = 0; first < n.keys; first += n.width) {
    const int64_t shown = std::min(n.width, n.keys - first);
    std::vector<float> ones(static_cast<size_t>(v.elements()), 0);
    for (int64_t c = 0; c < shown; ++c) {
      for (int64_t h = 0; h < n.heads; ++h) ones[n.value(first + c, h, c)] = 1;
    }
    MixInput probe = input;
    probe.v = Variable(Tensor::from(ones, v.shape()).to(v.dtype()).to(v.device()));
    const std::vector<float> y = mixer.attend(probe, context, state).y.value().to_vector<float>();
    for (int64_t h = 0; h < n.heads; ++h) {
      for (int64_t t = 0; t < n.queries; ++t) {
        for (int64_t c = 0; c < shown; ++c) {
          weights[n.weight(h, t, first + c)] = y[n.channel(t, h, c)];
        }
      }
    }
  }
  return weights;
}

// Whether every row of the weights is a mean's, none negative and 1 in all, and y is the mean of
// the values.
bool are_means(const std::vector<float>& weights, const std::vector<float>& values,
               const std::vector<float>& y, const Sizes& n, double tolerance) {
  double largest = 1;
  for (const float value : values) largest = std::max<double>(largest, std::abs(value));
  std::vector<double> mean(static_cast<size_t>(n.width));
  for (int64_t h = 0; h < n.heads; ++h) {
    for (int64_t t = 0; t < n.queries; ++t) {
      double sum = 0;
      std::fill(mean.begin(), mean.end(), 0);
      for (int64_t s = 0; s < n.keys; ++s) {
        const double weight = weights[n.weight(h, t, s)];
        if (!(weight >= -tolerance)) return false;
        sum += weight;
        for (int64_t c = 0; c < n.width; ++c) {
          mean[static_cast<size_t>(c)] += weight * values[n.value(s, h, c)];
        }
      }
      if (!(std::abs(sum - 1) <= tolerance)) return false;
      for (int64_t c = 0; c < n.width; ++c) {
        const double off = mean[static_cast<size_t>(c)] - y[n.channel(t, h, c)];
        if (!(std::abs(off) <= tolerance * largest)) return false;
      }
    }
  }
  return true;
}

}  // namespace

ForwardRecord::ForwardRecord(std::set<int64_t> hidden,
                             std::map<int64_t, std::vector<int64_t>> attention)
    : before_(newest), hidden_(std::move(hidden)), attention_(std::move(attention)) {
  newest = this;
}

ForwardRecord::~ForwardRecord() {
  newest = before_;
}

ForwardRecord* ForwardRecord::current() {
  return newest;
}

void ForwardRecord::add(const std::string& name, const Tensor& x) {
  tensors_[name] = Tensor::from(x.to_vector<float>(), x.slice(0, {x.size(1), x.size(2)}).shape());
}

void ForwardRecord::add_layer(int64_t layer, const Tensor& x) {
  if (hidden_.contains(layer)) add(concat(stack_, "layers.", layer, ".hidden"), x);
}

void ForwardRecord::add_attention(const AttentionMixer& mixer, const MixInput& input,
                                  const MixerContext& context, const MixerState& state,
                                  const Tensor& y) {
  const int64_t layer = mixer.options().layer;
  const auto asked = attention_.find(layer);
  if (asked == attention_.end() || !input.v.defined()) return;
  const Tensor& v = input.v.value();
  const Sizes n{y.size(1), v.size(1), y.size(2), v.size(2), y.size(3)};
  if (n.heads % n.value_heads != 0 || v.size(3) != n.width) return;
  const Off off;
  const std::vector<float> weights = measured_weights(mixer, input, context, state, n);
  const double tolerance = v.dtype() == DType::bf16 ? 0.03 : 1e-4;
  if (!are_means(weights, v.to_vector<float>(), y.to_vector<float>(), n, tolerance)) return;
  std::vector<float> chosen;
  for (const int64_t head : asked->second) {
    const auto begin = weights.begin() + static_cast<int64_t>(n.weight(head, 0, 0));
    chosen.insert(chosen.end(), begin, begin + n.queries * n.keys);
  }
  const auto heads = static_cast<int64_t>(asked->second.size());
  const char* kind = mixer.options().form == Form::cross ? ".cross_attention" : ".attention";
  tensors_[concat(stack_, "layers.", layer, kind)] =
      Tensor::from(chosen, {heads, n.queries, n.keys});
}

}  // namespace linnet
