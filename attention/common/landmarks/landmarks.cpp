#include "attention/common/landmarks/landmarks.h"

#include "attention/common/landmark_runs.h"
#include "attention/common/landmarks/cuda/landmarks.h"
#include "attention/common/landmarks/landmark_logits_cpu.h"
#include "attention/common/landmarks/landmark_rule.h"
#include "attention/primitives/common/binding.h"
#include "attention/primitives/common/fill_elements.h"
#include "autograd/arithmetic.h"
#include "autograd/layout.h"
#include "autograd/reductions.h"
#include "core/cuda/backend.h"

namespace linnet {
namespace {

using landmark_rule::Logits;

const uint8_t* bytes_of(const Tensor& mask) {
  return mask.defined() ? mask.data<uint8_t>() : nullptr;
}

template <typename T>
Logits<T> logits_of(const Tensor& k, const Tensor& w, const Tensor& normalizer, const Tensor& mask,
                    double scale, bool squares) {
  return {{k.size(0), k.size(1), k.size(2), w.size(2), k.size(3)},
          k.data<T>(),
          w.data<T>(),
          normalizer.data<double>(),
          bytes_of(mask),
          static_cast<T>(scale),
          static_cast<T>(squares ? 0.5 : 0)};
}

// Of the bias of a landmark without weight: finite, and of no weight beside any other.
constexpr double kLeastBias = -1e30;

}  // namespace

Tensor landmark_members(const Tensor& mask, int64_t B, int64_t T, int64_t H, int64_t C, DType dtype,
                        Device device) {
  const Tensor members = Tensor::zeros({B, T, H, C}, dtype, device);
  if constexpr (kCuda) {
    if (on_cuda(members)) {
      cuda::landmark_members(mask, members);
      return members;
    }
  }
  binding::dispatch(dtype, [&](auto zero) {
    using Number = decltype(zero);
    const auto valid = [&](int64_t b, int64_t t) {
      return !mask.defined() || mask.data<uint8_t>()[b * T + t] != 0;
    };
    for (int64_t b = 0; b < B; ++b) {
      int64_t count = 0, rank = 0;
      for (int64_t t = 0; t < T; ++t) count += valid(b, t) ? 1 : 0;
      for (int64_t t = 0; t < T; ++t) {
        if (!valid(b, t)) continue;
        const Landmark mine = landmark_of(rank++, count, C);
        for (int64_t h = 0; h < H; ++h) {
          members.data<Number>()[((b * T + t) * H + h) * C + mine.number] =
              Number{1} / static_cast<Number>(mine.tokens);
        }
      }
    }
  });
  return members;
}

Variable landmark_logits(const Variable& k, const Variable& w, const Tensor& normalizer,
                         const Tensor& mask, double scale, bool squares) {
  const Tensor& keys = k.value();
  const Tensor& proposals = w.value();
  const Shape shape{keys.size(0), keys.size(1), keys.size(2), proposals.size(2)};
  const Tensor logits = Tensor::empty(shape, keys.dtype(), keys.device());
  if constexpr (kCuda) {
    if (on_device(keys))
      cuda::landmark_logits(keys, proposals, normalizer, mask, scale, squares, logits);
  }
  if (!on_device(keys)) {
    binding::dispatch(keys.dtype(), [&](auto zero) {
      using T = decltype(zero);
      const Logits<T> rule = logits_of<T>(keys, proposals, normalizer, mask, scale, squares);
      write_logits(rule, logits.data<T>());
    });
  }
  // Fused: composed of matmul it is no faster, and its copies take half as much memory again.
  return record("landmark_logits", logits, {k, w}, [=](Gradients& gradients) {
    const Tensor& d = gradients.output();
    const Tensor dk = Tensor::empty(keys.shape(), keys.dtype(), keys.device());
    const Tensor dw = Tensor::empty(proposals.shape(), keys.dtype(), keys.device());
    if constexpr (kCuda) {
      if (on_device(keys)) {
        cuda::landmark_logits_backward(keys, proposals, normalizer, mask, scale, squares, d, dk,
                                       dw);
      }
    }
    if (!on_device(keys)) {
      binding::dispatch(keys.dtype(), [&](auto zero) {
        using T = decltype(zero);
        const Logits<T> rule = logits_of<T>(keys, proposals, normalizer, mask, scale, squares);
        write_gradients(rule, d.data<T>(), dk.data<T>(), dw.data<T>());
      });
    }
    gradients.add(0, dk);
    gradients.add(1, dw);
  });
}

Variable landmark_keys(const Variable& m, const Variable& w, const Variable& log_normalizer,
                       double scale) {
  const Variable found =
      cast(reshape(log_normalizer, {m.size(0), m.size(1), m.size(2), 1}), m.dtype());
  const Variable own = dot(m, subtract(w, linnet::scale(m, 0.5)));
  // That of a landmark that nothing was written to becomes finite: times the 1 of a query that is
  // not read it would be NaN.
  const Variable least(Tensor::full(found.shape(), kLeastBias, m.dtype(), m.value().device()));
  const Variable bias = max(concatenate({subtract(found, linnet::scale(own, scale)), least}, 3), 3);
  return concatenate({linnet::scale(add(m, w), scale), bias}, 3);
}

Variable with_one(const Variable& x) {
  const Tensor ones =
      Tensor::full({x.size(0), x.size(1), x.size(2), 1}, 1, x.dtype(), x.value().device());
  return concatenate({x, Variable(ones)}, 3);
}

}  // namespace linnet
