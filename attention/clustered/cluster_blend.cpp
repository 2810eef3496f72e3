#include "attention/clustered/cluster_blend.h"

#include <cmath>
#include <limits>

#include "attention/clustered/blend_rule.h"
#include "attention/clustered/cuda/blend.h"
#include "attention/primitives/common/binding.h"
#include "attention/primitives/common/fill_elements.h"
#include "core/cuda/backend.h"
#include "core/elementwise.h"

namespace linnet {
namespace {

constexpr int64_t kGrain = 1024;

template <typename T>
BlendRule<T> rule_of(const ClusterMembers& members, int64_t width) {
  return {members.clusters.size(1),         members.clusters.size(2),
          members.begins.size(2) - 1,       width,
          members.clusters.data<int32_t>(), members.order.data<int32_t>(),
          members.begins.data<int32_t>()};
}

Tensor empty_like(const Tensor& x) {
  return Tensor::empty(x.shape(), x.dtype(), x.device());
}

Tensor shares_of(const Tensor& log_top, const Tensor& log_bottom) {
  const Tensor shares = empty_like(log_bottom);
  if constexpr (kCuda) {
    if (on_cuda(shares)) {
      cuda::bottom_shares(log_top, log_bottom, shares);
      return shares;
    }
  }
  binding::dispatch(shares.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T *high = log_top.data<T>(), *low = log_bottom.data<T>();
    fill_elements<T>(shares, kGrain, [=](int64_t i) {
      const bool none = low[i] == -std::numeric_limits<T>::infinity();
      return none ? T{0} : 1 / (1 + std::exp(high[i] - low[i]));
    });
  });
  return shares;
}

}  // namespace

Variable cluster_means(const Variable& x, const ClusterMembers& members) {
  const Tensor& from = x.value();
  const Tensor means =
      Tensor::empty({from.size(0), members.begins.size(2) - 1, from.size(2), from.size(3)},
                    from.dtype(), from.device());
  bool done = false;
  if constexpr (kCuda) {
    done = on_cuda(from);
    if (done) cuda::cluster_means(from, members, means);
  }
  if (!done) {
    binding::dispatch(from.dtype(), [&](auto zero) {
      using T = decltype(zero);
      const BlendRule<T> rule = rule_of<T>(members, from.size(3));
      fill_elements<T>(means, kGrain, [&](int64_t i) { return rule.mean(from.data<T>(), i); });
    });
  }
  return record("cluster_means", means, {x}, [=](Gradients& gradients) {
    const Tensor& dmeans = gradients.output();
    const Tensor dx = empty_like(from);
    if constexpr (kCuda) {
      if (on_cuda(dx)) {
        cuda::cluster_means_backward(dmeans, members, dx);
        return gradients.add(0, dx);
      }
    }
    binding::dispatch(dx.dtype(), [&](auto zero) {
      using T = decltype(zero);
      const BlendRule<T> rule = rule_of<T>(members, dx.size(3));
      fill_elements<T>(dx, kGrain, [&](int64_t i) { return rule.dmember(dmeans.data<T>(), i); });
    });
    gradients.add(0, dx);
  });
}

Variable cluster_blend(const ClusterBlendInputs& inputs, const ClusterMembers& members,
                       bool detached) {
  const bool has_top = inputs.top.defined();
  const Tensor bottom = inputs.bottom.value(), top = has_top ? inputs.top.value() : Tensor();
  const Tensor shares =
      has_top ? shares_of(inputs.log_top.value(), inputs.log_bottom.value()) : Tensor();
  const Shape& tokens = members.clusters.shape();
  const Tensor y = Tensor::empty({tokens[0], tokens[1], tokens[2], bottom.size(3)}, bottom.dtype(),
                                 bottom.device());
  bool done = false;
  if constexpr (kCuda) {
    done = on_cuda(y);
    if (done) cuda::cluster_blend(top, bottom, shares, members, y);
  }
  if (!done) {
    binding::dispatch(y.dtype(), [&](auto zero) {
      using T = decltype(zero);
      const BlendRule<T> rule = rule_of<T>(members, y.size(3));
      fill_elements<T>(y, kGrain, [&](int64_t i) {
        return rule.read(binding::pointer<T>(top), bottom.data<T>(), binding::pointer<T>(shares),
                         i);
      });
    });
  }
  return record(
      "cluster_blend", y, {inputs.top, inputs.bottom, inputs.log_top, inputs.log_bottom},
      [=](Gradients& gradients) {
        const Tensor& dy = gradients.output();
        const Tensor dbottom = empty_like(bottom);
        const Tensor dtop = has_top ? empty_like(top) : Tensor();
        const Tensor dlogits = has_top ? empty_like(shares) : Tensor();
        bool finished = false;
        if constexpr (kCuda) {
          finished = on_cuda(dy);
          if (finished) {
            cuda::cluster_blend_backward(top, bottom, shares, members, detached, dy, dtop, dbottom,
                                         dlogits);
          }
        }
        if (!finished) {
          binding::dispatch(dy.dtype(), [&](auto zero) {
            using T = decltype(zero);
            const BlendRule<T> rule = rule_of<T>(members, dy.size(3));
            const T *from = dy.data<T>(), *of = binding::pointer<T>(shares);
            fill_elements<T>(dbottom, kGrain, [&](int64_t i) { return rule.dbottom(from, of, i); });
            if (!has_top) return;
            fill_elements<T>(dtop, kGrain, [&](int64_t i) { return rule.dtop(from, of, i); });
            fill_elements<T>(dlogits, kGrain, [&](int64_t i) {
              return rule.dlogit(from, top.data<T>(), bottom.data<T>(), of, detached, i);
            });
          });
        }
        gradients.add(1, dbottom);
        if (!has_top) return;
        gradients.add(0, dtop);
        gradients.add(3, dlogits);
        const Tensor opposite = dlogits.clone();
        scale_into(opposite, -1);
        gradients.add(2, opposite);
      });
}

}  // namespace linnet
