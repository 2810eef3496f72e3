// Lists of clusters, one element at a time: the same on the host and in kernels.
#pragma once

#include <cstdint>

namespace linnet::cluster_rule {

// The place of a cluster of head h in [C,H]; -1: there is no such cluster.
constexpr int32_t place_of(int32_t cluster, int64_t h, int64_t C, int64_t H) {
  return cluster < 0 || cluster >= C ? -1 : static_cast<int32_t>(cluster * H + h);
}

// Whether item (b, h, c, key) of top_keys_hidden is one of the cluster's top keys.
constexpr bool is_top_key(const int32_t* top, int64_t count, int64_t T, int64_t item) {
  for (int64_t n = 0; n < count; ++n) {
    if (top[item / T * count + n] == item % T) return true;
  }
  return false;
}

// Item (b, h, query, place) of top_keys_of_queries.
struct QueryLists {
  int64_t T, H, C, count;
  const int32_t *top, *clusters;
  constexpr int32_t key(int64_t item) const {
    const int64_t t = item / count % T, list = item / count / T;
    const int32_t cluster = clusters[(list / H * T + t) * H + list % H];
    if (cluster < 0 || cluster >= C) return -1;
    return top[(list * C + cluster) * count + item % count];
  }
};

}  // namespace linnet::cluster_rule
