// A minimal mechanism for tests of blocks and models: y_t is the mean of the values seen so far
// (all valid ones in the noncausal form), with the running sum and count as decode state.
#pragma once

#include <memory>

#include "autograd/arithmetic.h"
#include "layers/token_mixer.h"

namespace linnet::test {

class MeanMixer : public AttentionMixer {
 public:
  using AttentionMixer::AttentionMixer;

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    // Plain loops through weighted sums: slow, differentiable, obviously right.
    const int64_t time = input.v.size(1);
    const int64_t row = input.v.size(2) * input.v.size(3);
    (void)context;
    const Tensor weights = Tensor::zeros({time, time}, input.v.dtype());
    const int64_t before = state.empty() ? 0 : state.at("count").value().data<int64_t>()[0];
    dispatch_floating(weights.dtype(), [&](auto zero) {
      using T = decltype(zero);
      for (int64_t t = 0; t < time; ++t) {
        for (int64_t j = 0; j < time; ++j) {
          const bool seen = options().form == Form::noncausal || j <= t;
          const double seen_count =
              static_cast<double>(options().form == Form::noncausal ? time : before + t + 1);
          weights.data<T>()[t * time + j] =
              static_cast<T>(static_cast<Compute<T>>(seen ? 1.0 / seen_count : 0.0));
        }
      }
    });
    return {average(input.v, weights, row, state, before),
            {{"sum", total(input.v, state)},
             {"count", Variable(Tensor::full({input.v.size(0)}, static_cast<double>(before + time),
                                             DType::i64))}}};
  }
  // No test reads its cost.
  MixerCost mix_cost(const MixerShape&) const override { return {}; }

 private:
  // y[b,t] = sum_j weights[t,j] v[b,j] + carried sum / count.
  static Variable average(const Variable& v, const Tensor& weights, int64_t row,
                          const MixerState& state, int64_t before) {
    const Variable carried = state.empty() ? Variable() : state.at("sum");
    const Tensor y = Tensor::zeros(v.shape(), v.dtype());
    const int64_t batch = v.size(0);
    const int64_t time = v.size(1);
    const auto spread = [=](const Tensor& from, const Tensor& to, const Tensor& w, bool transpose) {
      dispatch_floating(from.dtype(), [&](auto zero) {
        using T = decltype(zero);
        for (int64_t b = 0; b < batch; ++b) {
          for (int64_t t = 0; t < time; ++t) {
            for (int64_t j = 0; j < time; ++j) {
              const auto factor =
                  static_cast<Compute<T>>(w.data<T>()[transpose ? j * time + t : t * time + j]);
              for (int64_t c = 0; c < row; ++c) {
                T& out = to.data<T>()[(b * time + t) * row + c];
                out = static_cast<T>(
                    static_cast<Compute<T>>(out) +
                    factor * static_cast<Compute<T>>(from.data<T>()[(b * time + j) * row + c]));
              }
            }
          }
        }
      });
    };
    spread(v.value(), y, weights, false);
    if (carried.defined()) {
      dispatch_floating(y.dtype(), [&](auto zero) {
        using T = decltype(zero);
        for (int64_t i = 0; i < y.elements(); ++i) {
          const int64_t b = i / (time * row);
          const int64_t t = i / row % time;
          T& out = y.data<T>()[i];
          out =
              static_cast<T>(static_cast<Compute<T>>(out) +
                             static_cast<Compute<T>>(carried.value().data<T>()[b * row + i % row]) /
                                 static_cast<Compute<T>>(before + t + 1));
        }
      });
    }
    return record("mean", y, {v, carried}, [=](Gradients& gradients) {
      const Tensor& dy = gradients.output();
      const Tensor dv = Tensor::zeros(dy.shape(), dy.dtype());
      spread(dy, dv, weights, true);
      gradients.add(0, dv);
      if (!gradients.wanted(1)) return;
      const Tensor dcarried = Tensor::zeros({batch, row}, dy.dtype());
      dispatch_floating(dy.dtype(), [&](auto zero) {
        using T = decltype(zero);
        for (int64_t i = 0; i < dy.elements(); ++i) {
          T& out = dcarried.data<T>()[i / (time * row) * row + i % row];
          out = static_cast<T>(static_cast<Compute<T>>(out) +
                               static_cast<Compute<T>>(dy.data<T>()[i]) /
                                   static_cast<Compute<T>>(before + i / row % time + 1));
        }
      });
      gradients.add(1, dcarried);
    });
  }

  static Variable total(const Variable& v, const MixerState& state) {
    const int64_t row = v.size(2) * v.size(3);
    const int64_t time = v.size(1);
    const Variable carried = state.empty() ? Variable() : state.at("sum");
    const Tensor y =
        carried.defined() ? carried.value().clone() : Tensor::zeros({v.size(0), row}, v.dtype());
    dispatch_floating(y.dtype(), [&](auto zero) {
      using T = decltype(zero);
      for (int64_t i = 0; i < v.value().elements(); ++i) {
        T& out = y.data<T>()[i / (time * row) * row + i % row];
        out = static_cast<T>(static_cast<Compute<T>>(out) +
                             static_cast<Compute<T>>(v.value().data<T>()[i]));
      }
    });
    return record("total", y, {v, carried}, [shape = v.shape(), row, time](Gradients& gradients) {
      const Tensor& dy = gradients.output();
      const Tensor dv = Tensor::zeros(shape, dy.dtype());
      dispatch_floating(dy.dtype(), [&](auto zero) {
        using T = decltype(zero);
        for (int64_t i = 0; i < dv.elements(); ++i) {
          dv.data<T>()[i] = dy.data<T>()[i / (time * row) * row + i % row];
        }
      });
      gradients.add(0, dv);
      gradients.add(1, dy);
    });
  }
};

inline MixerFactory mean_mixers() {
  return [](const MixerOptions& options, const MixerScope& scope) {
    return std::make_unique<MeanMixer>(options, scope);
  };
}

}  // namespace linnet::test
