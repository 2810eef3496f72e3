#include "attention/common/landmarks/landmarks.h"

#include "attention/common/landmarks/cuda/landmarks.h"
#include "attention/common/landmarks/landmark_logits_cpu.h"
#include "attention/common/landmarks/landmark_rule.h"
#include "attention/primitives/common/binding.h"
#include "attention/primitives/common/fill_elements.h"
#include "core/cuda/backend.h"

namespace linnet {
namespace {

using landmark_rule::Keys;
using landmark_rule::Logits;

constexpr int64_t kGrain = 4096;

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

template <typename T>
Keys<T> keys_of(const Tensor& m, const Tensor& w, const Tensor& log_normalizer, double scale) {
  return {m.size(3), m.data<T>(), w.data<T>(), log_normalizer.data<double>(),
          static_cast<T>(scale)};
}

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
  const Tensor& means = m.value();
  const Tensor& proposals = w.value();
  const Tensor& log_normalizers = log_normalizer.value();
  const int64_t K = means.size(3);
  const Shape shape{means.size(0), means.size(1), means.size(2), K + 1};
  const Tensor keys = Tensor::empty(shape, means.dtype(), means.device());
  if constexpr (kCuda) {
    if (on_device(means)) cuda::landmark_keys(means, proposals, log_normalizers, scale, keys);
  }
  if (!on_device(means)) {
    binding::dispatch(means.dtype(), [&](auto zero) {
      using T = decltype(zero);
      const Keys<T> rule = keys_of<T>(means, proposals, log_normalizers, scale);
      fill_elements<T>(keys, kGrain, [&](int64_t i) { return rule.key(i); });
    });
  }
  return record("landmark_keys", keys, {m, w, log_normalizer}, [=](Gradients& gradients) {
    const Tensor& d = gradients.output();
    const Tensor dm = Tensor::empty(means.shape(), means.dtype(), means.device());
    const Tensor dw = Tensor::empty(means.shape(), means.dtype(), means.device());
    const Tensor dlog_normalizer =
        Tensor::empty(log_normalizers.shape(), DType::f64, means.device());
    if constexpr (kCuda) {
      if (on_device(means)) {
        cuda::landmark_keys_backward(means, proposals, log_normalizers, scale, d, dm, dw,
                                     dlog_normalizer);
      }
    }
    if (!on_device(means)) {
      binding::dispatch(means.dtype(), [&](auto zero) {
        using T = decltype(zero);
        const Keys<T> rule = keys_of<T>(means, proposals, log_normalizers, scale);
        fill_elements<T>(dm, kGrain, [&](int64_t i) { return rule.dmean(d.data<T>(), i); });
        fill_elements<T>(dw, kGrain, [&](int64_t i) { return rule.dproposal(d.data<T>(), i); });
        fill_elements<double>(dlog_normalizer, kGrain,
                              [&](int64_t i) { return rule.dlog_normalizer(d.data<T>(), i); });
      });
    }
    gradients.add(0, dm);
    gradients.add(1, dw);
    gradients.add(2, dlog_normalizer);
  });
}

Variable with_one(const Variable& x, const Tensor& mask) {
  const Tensor& from = x.value();
  const int64_t H = from.size(2), K = from.size(3);
  const Tensor y =
      Tensor::empty({from.size(0), from.size(1), H, K + 1}, from.dtype(), from.device());
  if constexpr (kCuda) {
    if (on_device(from)) cuda::with_one(from, mask, y);
  }
  const uint8_t* valid = on_device(from) ? nullptr : bytes_of(mask);
  if (!on_device(from)) {
    binding::dispatch(from.dtype(), [&](auto zero) {
      using T = decltype(zero);
      fill_elements<T>(y, kGrain, [&](int64_t i) {
        const int64_t row = i / (K + 1), e = i % (K + 1);
        if (valid != nullptr && valid[row / H] == 0) return T{0};
        return e < K ? from.data<T>()[row * K + e] : T{1};
      });
    });
  }
  return record("with_one", y, {x}, [=](Gradients& gradients) {
    const Tensor& dy = gradients.output();
    const Tensor dx = Tensor::empty(from.shape(), from.dtype(), from.device());
    if constexpr (kCuda) {
      if (on_device(from)) cuda::with_one_backward(dy, mask, dx);
    }
    if (!on_device(from)) {
      const uint8_t* kept = bytes_of(mask);
      binding::dispatch(from.dtype(), [&](auto zero) {
        using T = decltype(zero);
        fill_elements<T>(dx, kGrain, [&](int64_t i) {
          const int64_t row = i / K;
          if (kept != nullptr && kept[row / H] == 0) return T{0};
          return dy.data<T>()[row * (K + 1) + i % K];
        });
      });
    }
    gradients.add(0, dx);
  });
}

}  // namespace linnet
