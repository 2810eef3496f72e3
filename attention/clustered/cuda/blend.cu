#include "attention/clustered/cuda/blend.h"

#include "attention/clustered/blend_rule.h"
#include "core/cuda/for_each.h"

namespace linnet::cuda {
namespace {

BlendRule<float> rule_of(const ClusterMembers& members, int64_t width) {
  return {members.clusters.size(1),           members.clusters.size(2),
          members.begins.size(2) - 1,         width,
          pointer<int32_t>(members.clusters), pointer<int32_t>(members.order),
          pointer<int32_t>(members.begins)};
}

}  // namespace

void cluster_means(const Tensor& x, const ClusterMembers& members, const Tensor& means) {
  const BlendRule<float> rule = rule_of(members, x.size(3));
  const float* from = pointer<float>(x);
  float* to = pointer<float>(means);
  for_each("cluster_means", means.elements(),
           [=] __device__(int64_t i) { to[i] = rule.mean(from, i); });
}

void cluster_means_backward(const Tensor& dmeans, const ClusterMembers& members, const Tensor& dx) {
  const BlendRule<float> rule = rule_of(members, dx.size(3));
  const float* from = pointer<float>(dmeans);
  float* to = pointer<float>(dx);
  for_each("cluster_means_backward", dx.elements(),
           [=] __device__(int64_t i) { to[i] = rule.dmember(from, i); });
}

void bottom_shares(const Tensor& log_top, const Tensor& log_bottom, const Tensor& shares) {
  const float *high = pointer<float>(log_top), *low = pointer<float>(log_bottom);
  float* to = pointer<float>(shares);
  for_each("bottom_shares", shares.elements(), [=] __device__(int64_t i) {
    const bool none = low[i] == -std::numeric_limits<float>::infinity();
    to[i] = none ? 0.0f : 1 / (1 + expf(high[i] - low[i]));
  });
}

void cluster_blend(const Tensor& top, const Tensor& bottom, const Tensor& shares,
                   const ClusterMembers& members, const Tensor& y) {
  const BlendRule<float> rule = rule_of(members, y.size(3));
  const float *high = pointer_or_null<float>(top), *low = pointer<float>(bottom);
  const float* of = pointer_or_null<float>(shares);
  float* to = pointer<float>(y);
  for_each("cluster_blend", y.elements(),
           [=] __device__(int64_t i) { to[i] = rule.read(high, low, of, i); });
}

void cluster_blend_backward(const Tensor& top, const Tensor& bottom, const Tensor& shares,
                            const ClusterMembers& members, bool detached, const Tensor& dy,
                            const Tensor& dtop, const Tensor& dbottom, const Tensor& dlogits) {
  const BlendRule<float> rule = rule_of(members, dy.size(3));
  const float *high = pointer_or_null<float>(top), *low = pointer<float>(bottom);
  const float *of = pointer_or_null<float>(shares), *from = pointer<float>(dy);
  float* to_bottom = pointer<float>(dbottom);
  for_each("cluster_blend_dbottom", dbottom.elements(),
           [=] __device__(int64_t i) { to_bottom[i] = rule.dbottom(from, of, i); });
  if (!top.defined()) return;
  float *to_top = pointer<float>(dtop), *to_logits = pointer<float>(dlogits);
  for_each("cluster_blend_dtop", dtop.elements(),
           [=] __device__(int64_t i) { to_top[i] = rule.dtop(from, of, i); });
  for_each("cluster_blend_dlogits", dlogits.elements(), [=] __device__(int64_t i) {
    to_logits[i] = rule.dlogit(from, high, low, of, detached, i);
  });
}

}  // namespace linnet::cuda
