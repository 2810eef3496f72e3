#include "attention/primitives/group_prefix/cuda/group_scan.h"

#include "attention/primitives/common/cuda/warp_items.h"
#include "core/cuda/for_each.h"
#include "core/cuda/stored_values.h"

namespace linnet::cuda {
namespace {

// Sums of one column that shared memory holds, visible and total; wider ones stay where they are.
constexpr int64_t kSharedRows = 1024;

// One row, head and column; the lanes of a warp have the rows of its sums.
struct ScanColumn {
  GroupScan p;
  StoredValues left, right, probe;
  StoredResults out;
  float *visible, *total;
  int64_t b, h, r;
  int lane;

  __device__ int64_t vector(int64_t token) const { return token * p.H + h; }
  __device__ void clear() const {
    for (int64_t l = lane; l < p.L; l += kLanes) visible[l] = total[l] = 0;
  }
  __device__ void show() const {
    for (int64_t l = lane; l < p.L; l += kLanes) visible[l] = total[l];
  }
  __device__ void read(int64_t t) const {
    const int64_t token = b * p.T + t;
    float sum = 0;
    if (p.valid(token)) {
      const StoredValues from = probe.from(vector(token) * p.L);
      for (int64_t l = lane; l < p.L; l += kLanes) sum += from.at(l) * visible[l];
      if (!p.weighs_left) sum *= static_cast<float>(p.weight(token));
    }
    sum = warp_sum(sum);
    if (lane == 0) out.put(vector(token) * p.R + r, sum);
  }
  __device__ void add(int64_t t) const {
    const int64_t token = b * p.T + t;
    if (!p.valid(token)) return;
    const float value = right.at(vector(token) * p.R + r) *
                        (p.weighs_left ? static_cast<float>(p.weight(token)) : 1.0f);
    const StoredValues from = left.from(vector(token) * p.L);
    for (int64_t l = lane; l < p.L; l += kLanes) total[l] += from.at(l) * value;
  }
  __device__ void cross_boundary(int64_t t) const {
    if (p.begins_document(b, t)) {
      clear();
    } else if (p.begins_group(b, t)) {
      show();
    }
  }
  __device__ void run() const {
    if (p.whole) {
      for (int64_t t = 0; t < p.T;) {
        const int64_t end = p.document_end(b, t);
        clear();
        for (int64_t at = t; at < end; ++at) add(at);
        show();
        for (int64_t at = t; at < end; ++at) read(at);
        t = end;
      }
    } else if (p.reverse) {
      for (int64_t t = p.T - 1; t >= 0; --t) {
        read(t);
        add(t);
        cross_boundary(t);
      }
    } else {
      for (int64_t t = 0; t < p.T; ++t) {
        cross_boundary(t);
        read(t);
        add(t);
      }
    }
  }
};

__global__ void group_scan_columns(GroupScan p, bool in_shared, StoredValues left,
                                   StoredValues right, StoredValues probe, StoredResults out,
                                   float* visible, float* total) {
  SharedArena arena;
  const WarpFloats shared(arena, in_shared ? 2 * p.L : 0);
  const int64_t item = global_warp();
  if (item >= p.B * p.H * p.R) return;
  const int lane = warp_lane();
  float *sums = visible + item * p.L, *all = total + item * p.L;
  ScanColumn column{
      p, left, right, probe, out, sums, all, item / p.R / p.H, item / p.R % p.H, item % p.R, lane};
  if (in_shared) {
    column.visible = shared.mine();
    column.total = shared.mine() + p.L;
    for (int64_t l = lane; l < p.L; l += kLanes) {
      column.visible[l] = sums[l];
      column.total[l] = all[l];
    }
  }
  column.run();
  for (int64_t l = lane; in_shared && l < p.L; l += kLanes) {
    sums[l] = column.visible[l];
    all[l] = column.total[l];
  }
}

}  // namespace

void group_scan(const GroupScan& rule, const Tensor& left, const Tensor& right, const Tensor& probe,
                const Tensor& out, const Tensor& visible, const Tensor& total) {
  if (rule.T == 0) return;
  const bool in_shared = rule.L <= kSharedRows;
  const Launch how =
      warps("group_scan_columns", rule.B * rule.H * rule.R, in_shared ? 2 * rule.L : 0);
  launch(how, group_scan_columns, rule, in_shared, stored_values(left), stored_values(right),
         stored_values(probe), stored_results(out), pointer<float>(visible), pointer<float>(total));
}

void add_sums(const Tensor& from, float factor, bool transposed, const Tensor& to) {
  const int64_t m = from.size(2), n = from.size(3);
  const float* a = pointer<float>(from);
  float* sum = pointer<float>(to);
  for_each("add_sums", from.elements(), [=] __device__(int64_t i) {
    const int64_t row = i / n % m, column = i % n;
    const int64_t place = transposed ? (i / (m * n) * n + column) * m + row : i;
    sum[place] += factor * a[i];
  });
}

}  // namespace linnet::cuda
