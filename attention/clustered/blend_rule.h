// Means and readings of clusters, one element at a time: the same on the host and in kernels.
#pragma once

#include <cstdint>

namespace linnet {

// T is the number of a sequence's tokens; arrays of ClusterMembers.
template <typename Number>
struct BlendRule {
  int64_t T = 0, H = 0, C = 0, width = 0;
  const int32_t *clusters = nullptr, *order = nullptr, *begins = nullptr;

  // Calls add(place of a member in [B,T,H]) for the tokens of item (b, c, h).
  template <typename Add>
  constexpr int64_t for_members(int64_t item, const Add& add) const {
    const int64_t h = item % H, c = item / H % C, b = item / H / C, list = b * H + h;
    const int32_t* range = begins + list * (C + 1) + c;
    for (int32_t n = range[0]; n < range[1]; ++n) add((b * T + order[list * T + n]) * H + h);
    return range[1] - range[0];
  }
  // The place of the cluster of query (b, t, h) in [B,C,H]; -1: none.
  constexpr int64_t cluster_of(int64_t query) const {
    const int64_t c = clusters[query];
    return c < 0 || c >= C ? -1 : (query / H / T * C + c) * H + query % H;
  }

  // Element i of the means [B,C,H,width] of x [B,T,H,width], and of the gradient of x.
  constexpr Number mean(const Number* x, int64_t i) const {
    Number total = 0;
    const int64_t count =
        for_members(i / width, [&](int64_t at) { total += x[at * width + i % width]; });
    return count == 0 ? Number{0} : total / static_cast<Number>(count);
  }
  constexpr Number dmember(const Number* dmeans, int64_t i) const {
    const int64_t cluster = cluster_of(i / width);
    if (cluster < 0) return 0;
    const int64_t list = cluster / H / C * H + cluster % H, c = cluster / H % C;
    const int32_t* range = begins + list * (C + 1) + c;
    return dmeans[cluster * width + i % width] / static_cast<Number>(range[1] - range[0]);
  }

  // Element i of y [B,T,H,width]; shares [B,C,H], or null: y is the bottom alone.
  constexpr Number read(const Number* top, const Number* bottom, const Number* shares,
                        int64_t i) const {
    const int64_t cluster = cluster_of(i / width);
    if (cluster < 0) return 0;
    const Number low = bottom[cluster * width + i % width];
    if (shares == nullptr) return low;
    return (1 - shares[cluster]) * top[i] + shares[cluster] * low;
  }
  constexpr Number dtop(const Number* dy, const Number* shares, int64_t i) const {
    const int64_t cluster = cluster_of(i / width);
    return cluster < 0 ? Number{0} : (1 - shares[cluster]) * dy[i];
  }
  constexpr Number dbottom(const Number* dy, const Number* shares, int64_t i) const {
    Number total = 0;
    for_members(i / width, [&](int64_t at) { total += dy[at * width + i % width]; });
    return shares == nullptr ? total : shares[i / width] * total;
  }
  // The gradient of log_bottom, opposite to that of log_top; item (b, c, h).
  constexpr Number dlogit(const Number* dy, const Number* top, const Number* bottom,
                          const Number* shares, bool detached, int64_t item) const {
    Number total = 0;
    for_members(item, [&](int64_t at) {
      for (int64_t e = 0; e < width; ++e) {
        const Number high = detached ? Number{0} : top[at * width + e];
        total += dy[at * width + e] * (bottom[item * width + e] - high);
      }
    });
    return shares[item] * (1 - shares[item]) * total;
  }
};

}  // namespace linnet
