#include "attention/primitives/group_prefix/group_prefix.h"

#include <algorithm>

#include "attention/primitives/common/binding.h"
#include "attention/primitives/common/chunked.h"
#include "attention/primitives/common/tile_gemm.h"
#include "attention/primitives/group_prefix/cuda/group_scan.h"
#include "attention/primitives/group_prefix/group_scan.h"
#include "core/cuda/backend.h"
#include "core/kernel_choice.h"

namespace linnet {
namespace {

constexpr const char* kName = "group prefix";
constexpr int64_t kColumns = 64;  // of `right` that one task scans
constexpr int64_t kTokens = 64;   // of a tile

// Arrays of the scan; `visible` and `total` [B,H,R,L] hold the sums before and, afterwards, after
// it.
struct ScanTensors {
  Tensor left, right, probe, out, visible, total;
};

// One row, head and some columns of `right`, with the sums of these columns side by side.
template <typename T>
class ColumnScan {
 public:
  ColumnScan(const GroupScan& rule, const ScanTensors& in, int64_t head, int64_t first)
      : rule_(rule),
        in_(in),
        b_(head / rule.H),
        h_(head % rule.H),
        first_(first),
        columns_(std::min(kColumns, rule.R - first)),
        visible_(static_cast<size_t>(rule.L * columns_)),
        total_(visible_.size()),
        left_(static_cast<size_t>(std::min(kTokens, rule.T) * rule.L)),
        right_(static_cast<size_t>(std::min(kTokens, rule.T) * columns_)),
        probe_(left_.size()),
        out_(right_.size()) {}

  void run() {
    copy(in_.visible, visible_, false);
    copy(in_.total, total_, false);
    rule_.whole ? whole() : rule_.reverse ? backward() : forward();
    copy(in_.visible, visible_, true);
    copy(in_.total, total_, true);
  }

 private:
  void clear() {
    std::fill(visible_.begin(), visible_.end(), T{0});
    std::fill(total_.begin(), total_.end(), T{0});
  }
  void forward() {
    for (int64_t t = 0; t < rule_.T;) {
      if (rule_.begins_document(b_, t)) {
        clear();
      } else if (rule_.begins_group(b_, t)) {
        visible_ = total_;
      }
      int64_t end = t + 1;
      while (end < rule_.T && end - t < kTokens && !changes(end)) ++end;
      read(t, end);
      add(t, end);
      t = end;
    }
  }
  void backward() {
    for (int64_t end = rule_.T; end > 0;) {
      int64_t t = end - 1;
      while (t > 0 && end - t < kTokens && !changes(t)) --t;
      read(t, end);
      add(t, end);
      if (rule_.begins_document(b_, t)) {
        clear();
      } else if (rule_.begins_group(b_, t)) {
        visible_ = total_;
      }
      end = t;
    }
  }
  void whole() {
    for (int64_t t = 0; t < rule_.T;) {
      const int64_t end = rule_.document_end(b_, t);
      clear();
      for (int64_t at = t; at < end; at += kTokens) add(at, std::min(at + kTokens, end));
      visible_ = total_;
      for (int64_t at = t; at < end; at += kTokens) read(at, std::min(at + kTokens, end));
      t = end;
    }
  }
  bool changes(int64_t t) const {
    return rule_.begins_document(b_, t) || rule_.begins_group(b_, t);
  }

  // Between the columns of this task and [B,H,R,L].
  void copy(const Tensor& sums, std::vector<T>& mine, bool back) const {
    T* all = sums.data<T>() + ((b_ * rule_.H + h_) * rule_.R + first_) * rule_.L;
    if (back) {
      chunked::transpose(mine.data(), columns_, rule_.L, columns_, all, rule_.L);
    } else {
      chunked::transpose<T>(all, rule_.L, columns_, rule_.L, mine.data(), columns_);
    }
  }
  // Tokens of x [B,T,H,width], some columns of them; masked ones are zeros.
  void gather(const Tensor& x, int64_t width, int64_t first, int64_t count, bool weighed,
              int64_t begin, int64_t end, std::vector<T>& tile) const {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t token = b_ * rule_.T + t;
      T* to = &tile[static_cast<size_t>((t - begin) * count)];
      const T* from = x.data<T>() + (token * rule_.H + h_) * width + first;
      const T weight = weighed ? static_cast<T>(rule_.weight(token)) : T{1};
      for (int64_t c = 0; c < count; ++c) to[c] = rule_.valid(token) ? weight * from[c] : T{0};
    }
  }
  void read(int64_t begin, int64_t end) {
    gather(in_.probe, rule_.L, 0, rule_.L, !rule_.weighs_left, begin, end, probe_);
    tile_gemm<T>(end - begin, columns_, rule_.L, T{1}, {probe_.data(), rule_.L},
                 {visible_.data(), columns_}, Write::overwrite, out_.data(), columns_);
    for (int64_t t = begin; t < end; ++t) {
      std::copy_n(&out_[static_cast<size_t>((t - begin) * columns_)], columns_,
                  in_.out.data<T>() + ((b_ * rule_.T + t) * rule_.H + h_) * rule_.R + first_);
    }
  }
  void add(int64_t begin, int64_t end) {
    gather(in_.left, rule_.L, 0, rule_.L, rule_.weighs_left, begin, end, left_);
    gather(in_.right, rule_.R, first_, columns_, false, begin, end, right_);
    tile_gemm<T>(rule_.L, columns_, end - begin, T{1}, {left_.data(), rule_.L, true},
                 {right_.data(), columns_}, Write::accumulate, total_.data(), columns_);
  }

  const GroupScan& rule_;
  const ScanTensors& in_;
  int64_t b_, h_, first_, columns_;
  std::vector<T> visible_, total_, left_, right_, probe_, out_;
};

void scan(GroupScan rule, const ScanTensors& in) {
  rule.L = in.left.size(3);
  rule.R = in.right.size(3);
  if constexpr (kCuda) {
    if (on_cuda(in.out)) {
      return cuda::group_scan(rule, in.left, in.right, in.probe, in.out, in.visible, in.total);
    }
  }
  const int64_t blocks = (rule.R + kColumns - 1) / kColumns;
  binding::dispatch(in.out.dtype(), [&](auto zero) {
    const double work = 2 * static_cast<double>(in.out.elements() * rule.L);
    chunked::run_tasks(rule.B * rule.H * blocks, work, [&](int64_t task) {
      ColumnScan<decltype(zero)>(rule, in, task / blocks, task % blocks * kColumns).run();
    });
  });
}

// factor_a a + factor_b b of sums [B,H,m,n], as [B,H,n,m] where `transposed`; undefined ones are 0.
Tensor combined(const Tensor& a, double factor_a, const Tensor& b, double factor_b, bool transposed,
                const Shape& shape, DType dtype, Device device) {
  const int64_t m = shape[2], n = shape[3];
  const Shape shape_to = transposed ? Shape{shape[0], shape[1], n, m} : shape;
  if constexpr (kCuda) {
    if (device.kind == DeviceKind::cuda) {
      const Tensor to = Tensor::zeros(shape_to, dtype, device);
      if (a.defined()) cuda::add_sums(a, static_cast<float>(factor_a), transposed, to);
      if (b.defined()) cuda::add_sums(b, static_cast<float>(factor_b), transposed, to);
      return to;
    }
  }
  const Tensor to = Tensor::empty(shape_to, dtype, device);
  binding::dispatch(dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool as_it_is = a.defined() && factor_a == 1 && !b.defined();
    std::vector<T> sum(as_it_is ? 0 : static_cast<size_t>(m * n));
    const auto add = [&](const Tensor& x, double factor, int64_t at) {
      if (!x.defined()) return;
      const T* in = x.data<T>() + at;
      for (int64_t i = 0; i < m * n; ++i)
        sum[static_cast<size_t>(i)] += static_cast<T>(factor) * in[i];
    };
    for (int64_t at = 0; at < to.elements(); at += m * n) {
      std::fill(sum.begin(), sum.end(), T{0});
      if (!as_it_is) {
        add(a, factor_a, at);
        add(b, factor_b, at);
      }
      const T* from = as_it_is ? a.data<T>() + at : sum.data();
      T* out = to.data<T>() + at;
      if (transposed) {
        chunked::transpose<T>(from, n, m, n, out, m);
      } else {
        std::copy_n(from, m * n, out);
      }
    }
  });
  return to;
}

// [B,T] of the device that q is on.
template <typename T>
const T* elements_of(const Tensor& x, DType dtype, const Tensor& q, const char* name) {
  if (!x.defined()) return nullptr;
  binding::check_leading(x, q, 2, kName, name);
  require(x.dtype() == dtype && x.device() == q.device(), kName, ": expected ", name, " of ",
          name_of(dtype), " on ", name_of(q.device()), ", got ", name_of(x.dtype()), " on ",
          name_of(x.device()));
  return static_cast<const T*>(x.raw());
}

}  // namespace

GroupPrefixResult group_prefix(const Variable& q, const Variable& k, const Variable& v,
                               const GroupPrefixContext& context, const GroupPrefixState& state) {
  require(q.shape().rank() == 4 && v.shape().rank() == 4 && k.shape() == q.shape() &&
              v.size(0) == q.size(0) && v.size(1) == q.size(1) && v.size(2) == q.size(2),
          kName, ": expected q, k [B,T,H,K] and v [B,T,H,V], got ", q.shape(), ", ", k.shape(),
          ", ", v.shape());
  const int64_t B = q.size(0), T = q.size(1), H = q.size(2), K = q.size(3), V = v.size(3);
  require(context.options.group > 0, kName, ": groups need a size of at least 1, got ",
          context.options.group);
  require_plain_allowed(kName, q.value());
  const Device device = q.value().device();
  const bool on_device = kCuda && on_cuda(q.value());
  require(!on_device || q.dtype() != DType::f64, kName, ": f64 is computed on the CPU only");
  const DType dtype = binding::computing_type(q);
  const Shape sums{B, H, K, V}, transposed_sums{B, H, V, K};
  require(state.completed.defined() == state.all.defined(), kName,
          ": sums over completed groups come with those over all tokens");
  require(!context.options.whole || !state.all.defined(), kName,
          ": sums over whole sequences continue from no state");
  for (const Variable& x : {state.completed, state.all}) {
    require(!x.defined() || x.shape() == sums, kName, ": expected sums ", sums, ", got ",
            x.defined() ? x.shape() : Shape());
  }
  // Kernels of the device read bf16 as it is.
  const DType stored = on_device ? q.dtype() : dtype;
  const auto arrays = [&](const Variable& x) { return x.value().to(stored); };
  GroupScan rule;
  rule.B = B;
  rule.T = T;
  rule.H = H;
  rule.group = context.options.group;
  rule.whole = context.options.whole;
  rule.mean = context.options.mean;
  rule.scale = context.options.scale;
  rule.mask = elements_of<uint8_t>(context.mask, DType::u8, q.value(), "mask");
  rule.segments = elements_of<int32_t>(context.segments, DType::i32, q.value(), "segments");
  rule.positions = elements_of<int32_t>(context.positions, DType::i32, q.value(), "positions");

  const Tensor before = binding::converted(state.completed, dtype, kName, device);
  const Tensor all = binding::converted(state.all, dtype, kName, device);
  const Tensor queries = arrays(q), keys = arrays(k), values = arrays(v);
  // A scan has the columns of `right` first: those of v, or, the other way around, those of k.
  const auto clone = [=](const Tensor& x, bool by_values) {
    return combined(x, 1, {}, 0, by_values, sums, dtype, device);
  };
  const auto transposed_back = [=](const Tensor& a, double factor_a, const Tensor& b,
                                   double factor_b) {
    return combined(a, factor_a, b, factor_b, true, transposed_sums, dtype, device);
  };
  const Tensor y = Tensor::empty({B, T, H, V}, stored, device);
  const ScanTensors forward{keys, values, queries, y, clone(before, true), clone(all, true)};
  scan(rule, forward);
  // Masks and positions live as long as the rule that points into them.
  const GroupPrefixContext kept = context;
  const DType given = q.dtype();
  const std::vector<Variable> outputs = record_many(
      kName,
      {y.to(given), transposed_back(forward.visible, 1, {}, 0),
       transposed_back(forward.total, 1, {}, 0)},
      {q, k, v, state.completed, state.all}, [=](Gradients& gradients) {
        static_cast<void>(kept);
        const Tensor dy = gradients.has_output(0) ? gradients.output(0).to(stored)
                                                  : Tensor::zeros({B, T, H, V}, stored, device);
        const Tensor dbefore = binding::output_or_none(gradients, 1);
        const Tensor dall = binding::output_or_none(gradients, 2);
        const auto empty = [&](int64_t width) {
          return Tensor::empty({B, T, H, width}, stored, device);
        };
        const Tensor dq = empty(K), dk = empty(K), dv = empty(V);
        scan(rule, {values, keys, dy, dq, clone(before, false), clone(all, false)});
        GroupScan back = rule;
        back.reverse = back.weighs_left = true;
        const auto pending = [&](bool by_values) {
          return combined(dbefore, 1, dall, 1, by_values, sums, dtype, device);
        };
        const ScanTensors to_values{queries, dy, keys, dv, clone(dall, true), pending(true)};
        scan(back, to_values);
        scan(back, {dy, queries, values, dk, clone(dall, false), pending(false)});
        gradients.add(0, dq);
        gradients.add(1, dk);
        gradients.add(2, dv);
        gradients.add(3, transposed_back(to_values.total, 1, to_values.visible, -1));
        gradients.add(4, transposed_back(to_values.visible, 1, {}, 0));
      });
  if (context.options.whole) return {outputs[0], {}};
  return {outputs[0], {outputs[1], outputs[2]}};
}

}  // namespace linnet
