// Time is cut into parts that warps take side by side: the first kernel adds up every part, the
// second one goes through it from what the parts around it hold. Sums have one order, that of the
// tokens of a part and then of the parts.
#include "attention/primitives/group_prefix/cuda/group_scan.h"

#include <algorithm>

#include "attention/primitives/common/cuda/warp_items.h"
#include "core/cuda/for_each.h"
#include "core/cuda/stored_values.h"

namespace linnet::cuda {
namespace {

// Sums of one column that shared memory holds, visible and total; wider ones stay where they are,
// and their time is not cut.
constexpr int64_t kSharedRows = 2048;
// A part holds at least so many tokens, and there are no more parts than make a wave: 16 warps on
// each of an H100's multiprocessors, which registers allow, and shared memory up to 1,536 rows.
constexpr int64_t kLeastTokens = 32, kWarpsWanted = 16 * 132, kMaxParts = 64;

struct Arguments {
  GroupScan p;
  bool in_shared;
  StoredValues left, right, probe;
  StoredResults out;
  float *visible, *total;  // [B,H,R,L]
  int64_t length, parts;   // tokens of a part (the last one may have fewer)
  // [B,H,R,parts + 1,L]: the sums before the first part, then what each part adds to them. Of sums
  // over whole documents, part_visible has those of the document that a part begins inside of.
  float *part_visible, *part_total;
  // [B,parts]: whether a document begins in a part, and whether a group does in its last document.
  uint8_t *cuts, *groups;
};

// One part of a row, head and column; the lanes of a warp have the rows of its sums.
struct PartOfColumn {
  const Arguments& a;
  const GroupScan& p;
  int64_t column, part, b, h, r;
  int lane;
  float *visible, *total;

  __device__ PartOfColumn(const Arguments& a, const WarpFloats& shared, int64_t item)
      : a(a),
        p(a.p),
        column(item / a.parts),
        part(item % a.parts),
        b(column / p.R / p.H),
        h(column / p.R % p.H),
        r(column % p.R),
        lane(warp_lane()),
        visible(a.in_shared ? shared.mine() : a.visible + column * p.L),
        total(a.in_shared ? shared.mine() + p.L : a.total + column * p.L) {}

  __device__ bool backwards() const { return p.reverse && !p.whole; }
  // Tokens [begin, end) are the part's; scans in reverse have their first part at the end.
  __device__ int64_t begin() const {
    return backwards() ? max(p.T - (part + 1) * a.length, int64_t{0}) : part * a.length;
  }
  __device__ int64_t end() const {
    return backwards() ? p.T - part * a.length : min((part + 1) * a.length, p.T);
  }
  // What part slot - 1 added; slot 0: what was there before.
  __device__ const float* of_slot(const float* sums, int64_t slot) const {
    return sums + (column * (a.parts + 1) + slot) * p.L;
  }
  __device__ bool cuts(int64_t of) const { return a.cuts[b * a.parts + of] != 0; }

  __device__ int64_t vector(int64_t token) const { return token * p.H + h; }
  template <typename F>
  __device__ void each_row(const F& f) const {
    for (int64_t l = lane; l < p.L; l += kLanes) f(l);
  }
  __device__ void clear() const {
    each_row([&](int64_t l) { visible[l] = total[l] = 0; });
  }
  __device__ void show() const {
    each_row([&](int64_t l) { visible[l] = total[l]; });
  }
  __device__ void read(int64_t t) const {
    const int64_t token = b * p.T + t;
    float sum = 0;
    if (p.valid(token)) {
      const StoredValues from = a.probe.from(vector(token) * p.L);
      each_row([&](int64_t l) { sum += from.at(l) * visible[l]; });
      if (!p.weighs_left) sum *= static_cast<float>(p.weight(token));
    }
    sum = warp_sum(sum);
    if (lane == 0) a.out.put(vector(token) * p.R + r, sum);
  }
  __device__ void add(int64_t t) const {
    const int64_t token = b * p.T + t;
    if (!p.valid(token)) return;
    const float value = a.right.at(vector(token) * p.R + r) *
                        (p.weighs_left ? static_cast<float>(p.weight(token)) : 1.0f);
    const StoredValues from = a.left.from(vector(token) * p.L);
    each_row([&](int64_t l) { total[l] += from.at(l) * value; });
  }

  // What adding up a part finds in it.
  struct Boundaries {
    bool document = false, group = false;
  };
  __device__ void cross_boundary(int64_t t, Boundaries& found) const {
    if (p.begins_document(b, t)) {
      clear();
      found = {true, false};
    } else if (p.begins_group(b, t)) {
      show();
      found.group = true;
    }
  }
  // Adds every token, after visit(t).
  template <typename Visit>
  __device__ Boundaries go(const Visit& visit) const {
    Boundaries found;
    if (p.reverse) {
#pragma unroll 1
      for (int64_t t = end() - 1; t >= begin(); --t) {
        visit(t);
        add(t);
        cross_boundary(t, found);
      }
    } else {
#pragma unroll 1
      for (int64_t t = begin(); t < end(); ++t) {
        cross_boundary(t, found);
        visit(t);
        add(t);
      }
    }
    return found;
  }

  // Sums over whole documents: `visible` gets that of the first one, `total` that of the last.
  __device__ Boundaries add_documents() const {
    Boundaries found;
    for (int64_t t = begin(); t < end(); ++t) {
      if (p.begins_document(b, t)) {
        if (!found.document) show();
        each_row([&](int64_t l) { total[l] = 0; });
        found.document = true;
      }
      add(t);
    }
    if (!found.document) show();
    return found;
  }
  __device__ void read_documents() const {
    for (int64_t t = begin(); t < end();) {
      int64_t until = t + 1;  // no further than this part: its document may be all of the row
      while (until < end() && !p.begins_document(b, until)) ++until;
      clear();
#pragma unroll 1
      for (int64_t at = t; at < until; ++at) add(at);
      // The parts before and behind that the document reaches into.
      int64_t first = part, last = part;
      if (t == begin()) {
        while (first > 0 && !p.begins_document(b, first * a.length)) {
          --first;
          if (cuts(first)) break;
        }
      }
      if (until == end()) {
        while (last + 1 < a.parts && !p.begins_document(b, (last + 1) * a.length)) {
          ++last;
          if (cuts(last)) break;
        }
      }
      each_row([&](int64_t l) {
        float sum = 0;
#pragma unroll 1
        for (int64_t at = first; at < part; ++at) sum += of_slot(a.part_total, at + 1)[l];
        sum += total[l];
#pragma unroll 1
        for (int64_t at = part + 1; at <= last; ++at) sum += of_slot(a.part_visible, at + 1)[l];
        visible[l] = sum;
      });
#pragma unroll 1
      for (int64_t at = t; at < until; ++at) read(at);
      t = until;
    }
  }

  // The sums that a part begins with.
  __device__ void enter() const {
    if (a.parts == 1) {
      if (!a.in_shared) return;
      const int64_t first = column * p.L;
      each_row([&](int64_t l) {
        visible[l] = a.visible[first + l];
        total[l] = a.total[first + l];
      });
      return;
    }
    int64_t from = part;
    while (from > 0 && !cuts(from - 1)) --from;
    each_row([&](int64_t l) {
      float seen = of_slot(a.part_visible, from)[l], sum = of_slot(a.part_total, from)[l];
#pragma unroll 1
      for (int64_t at = from; at < part; ++at) {
        if (a.groups[b * a.parts + at] != 0) seen = sum + of_slot(a.part_visible, at + 1)[l];
        sum += of_slot(a.part_total, at + 1)[l];
      }
      visible[l] = seen;
      total[l] = sum;
    });
  }
};

// part_visible, part_total, cuts and groups of all parts.
__global__ void group_scan_parts(const __grid_constant__ Arguments a) {
  SharedArena arena;
  const WarpFloats shared(arena, 2 * a.p.L);
  const int64_t item = global_warp();
  if (item >= a.p.B * a.p.H * a.p.R * a.parts) return;
  const PartOfColumn at(a, shared, item);
  at.clear();
  const PartOfColumn::Boundaries found = a.p.whole ? at.add_documents() : at.go([](int64_t) {});
  float* seen = a.part_visible + at.column * (a.parts + 1) * a.p.L;
  float* sums = a.part_total + at.column * (a.parts + 1) * a.p.L;
  at.each_row([&](int64_t l) {
    seen[(at.part + 1) * a.p.L + l] = at.visible[l];
    sums[(at.part + 1) * a.p.L + l] = at.total[l];
    if (at.part > 0) return;
    seen[l] = a.visible[at.column * a.p.L + l];
    sums[l] = a.total[at.column * a.p.L + l];
  });
  if (at.lane == 0 && at.h == 0 && at.r == 0) {
    a.cuts[at.b * a.parts + at.part] = found.document ? 1 : 0;
    a.groups[at.b * a.parts + at.part] = found.group ? 1 : 0;
  }
}

template <bool whole>
__global__ void group_scan_columns(const __grid_constant__ Arguments a) {
  SharedArena arena;
  const WarpFloats shared(arena, a.in_shared ? 2 * a.p.L : 0);
  const int64_t item = global_warp();
  if (item >= a.p.B * a.p.H * a.p.R * a.parts) return;
  const PartOfColumn at(a, shared, item);
  if constexpr (whole) {
    at.read_documents();
    return;
  }
  at.enter();
  at.go([&](int64_t t) { at.read(t); });
  if (!a.in_shared || at.part + 1 < a.parts) return;
  const int64_t first = at.column * a.p.L;
  at.each_row([&](int64_t l) {
    a.visible[first + l] = at.visible[l];
    a.total[first + l] = at.total[l];
  });
}

}  // namespace

void group_scan(const GroupScan& rule, const Tensor& left, const Tensor& right, const Tensor& probe,
                const Tensor& out, const Tensor& visible, const Tensor& total) {
  const int64_t columns = rule.B * rule.H * rule.R;
  if (rule.T == 0 || columns == 0) return;
  const bool in_shared = rule.L <= kSharedRows;
  const int64_t wanted =
      in_shared ? std::min(kWarpsWanted / columns, rule.T / kLeastTokens) : int64_t{1};
  const int64_t length = (rule.T - 1) / std::clamp<int64_t>(wanted, 1, kMaxParts) + 1;
  const int64_t parts = (rule.T - 1) / length + 1;
  const auto of_parts = [&](DType dtype, const Shape& shape) {
    return parts == 1 ? Tensor() : Tensor::empty(shape, dtype, out.device());
  };
  const Shape sums{columns, parts + 1, rule.L};
  const Tensor part_visible = of_parts(DType::f32, sums), part_total = of_parts(DType::f32, sums);
  const Tensor cuts = of_parts(DType::u8, {rule.B, parts});
  const Tensor groups = of_parts(DType::u8, {rule.B, parts});
  const Arguments a{rule,
                    in_shared,
                    stored_values(left),
                    stored_values(right),
                    stored_values(probe),
                    stored_results(out),
                    pointer<float>(visible),
                    pointer<float>(total),
                    length,
                    parts,
                    pointer_or_null<float>(part_visible),
                    pointer_or_null<float>(part_total),
                    pointer_or_null<uint8_t>(cuts),
                    pointer_or_null<uint8_t>(groups)};
  const int64_t floats = in_shared ? 2 * rule.L : 0;
  if (parts > 1) launch(warps("group_scan_parts", columns * parts, floats), group_scan_parts, a);
  launch(warps("group_scan_columns", columns * parts, floats),
         rule.whole ? group_scan_columns<true> : group_scan_columns<false>, a);
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
