// Means of clusters and the outputs that queries read from them on a CUDA device, f32;
// cluster_blend.cpp calls these.
#pragma once

#include "attention/clustered/cluster_lists.h"
#include "core/tensor.h"

namespace linnet::cuda {

void cluster_means(const Tensor& x, const ClusterMembers& members, const Tensor& means);
void cluster_means_backward(const Tensor& dmeans, const ClusterMembers& members, const Tensor& dx);

// sigmoid(log_bottom - log_top).
void bottom_shares(const Tensor& log_top, const Tensor& log_bottom, const Tensor& shares);
// `top` and `shares` are undefined where y is the bottom alone, and so are their gradients.
void cluster_blend(const Tensor& top, const Tensor& bottom, const Tensor& shares,
                   const ClusterMembers& members, const Tensor& y);
void cluster_blend_backward(const Tensor& top, const Tensor& bottom, const Tensor& shares,
                            const ClusterMembers& members, bool detached, const Tensor& dy,
                            const Tensor& dtop, const Tensor& dbottom, const Tensor& dlogits);

}  // namespace linnet::cuda
