#include "attention/flash/cuda/group_scan.h"

#include "core/cuda/for_each.h"

namespace linnet::cuda {
namespace {

constexpr int kThreads = 64;

// One row and column: its sums stride by R.
template <typename T>
struct ScanColumn {
  GroupScan p;
  const T *left, *right, *probe;
  T* out;
  float *visible, *total;
  int64_t b, r;

  __device__ void clear() const {
    for (int64_t l = 0; l < p.L; ++l) visible[l * p.R] = total[l * p.R] = 0;
  }
  __device__ void show() const {
    for (int64_t l = 0; l < p.L; ++l) visible[l * p.R] = total[l * p.R];
  }
  __device__ void read(int64_t t) const {
    const int64_t token = b * p.T + t;
    float sum = 0;
    if (p.valid(token)) {
      for (int64_t l = 0; l < p.L; ++l) sum += load(probe + token * p.L + l) * visible[l * p.R];
      if (!p.weighs_left) sum *= static_cast<float>(p.weight(token));
    }
    store(out + token * p.R + r, sum);
  }
  __device__ void add(int64_t t) const {
    const int64_t token = b * p.T + t;
    if (!p.valid(token)) return;
    const float value = load(right + token * p.R + r) *
                        (p.weighs_left ? static_cast<float>(p.weight(token)) : 1.0f);
    for (int64_t l = 0; l < p.L; ++l) total[l * p.R] += load(left + token * p.L + l) * value;
  }
  __device__ void turn(int64_t t) const {
    if (p.begins_document(b, t)) {
      clear();
    } else if (p.begins_group(b, t)) {
      show();
    }
  }
};

template <typename T>
__global__ void group_scan_columns(GroupScan p, const T* left, const T* right, const T* probe,
                                   T* out, float* visible, float* total) {
  const int64_t i = global_thread();
  if (i >= p.B * p.R) return;
  const int64_t b = i / p.R, r = i % p.R, place = b * p.L * p.R + r;
  const ScanColumn<T> column{p, left, right, probe, out, visible + place, total + place, b, r};
  if (p.whole) {
    for (int64_t t = 0; t < p.T;) {
      const int64_t end = p.document_end(b, t);
      column.clear();
      for (int64_t at = t; at < end; ++at) column.add(at);
      column.show();
      for (int64_t at = t; at < end; ++at) column.read(at);
      t = end;
    }
  } else if (p.reverse) {
    for (int64_t t = p.T - 1; t >= 0; --t) {
      column.read(t);
      column.add(t);
      column.turn(t);
    }
  } else {
    for (int64_t t = 0; t < p.T; ++t) {
      column.turn(t);
      column.read(t);
      column.add(t);
    }
  }
}

}  // namespace

void group_scan(const GroupScan& rule, const Tensor& left, const Tensor& right, const Tensor& probe,
                const Tensor& out, const Tensor& visible, const Tensor& total) {
  if (rule.T == 0) return;
  dispatch(out.dtype(), [&](auto zero) {
    using T = decltype(zero);
    launch({"group_scan_columns", blocks_for(rule.B * rule.R, kThreads), kThreads},
           group_scan_columns<T>, rule, pointer<T>(left), pointer<T>(right), pointer<T>(probe),
           pointer<T>(out), pointer<float>(visible), pointer<float>(total));
  });
}

void add_sums(const Tensor& from, float factor, bool turned, const Tensor& to) {
  const int64_t m = from.size(1), n = from.size(2);
  const float* a = pointer<float>(from);
  float* sum = pointer<float>(to);
  for_each("add_sums", from.elements(), [=] __device__(int64_t i) {
    const int64_t row = i / n % m, column = i % n;
    const int64_t place = turned ? (i / (m * n) * n + column) * m + row : i;
    sum[place] += factor * a[i];
  });
}

}  // namespace linnet::cuda
