// The orthogonal memory, backward. Sums are recomputed (they cost 1/window of the reads); gradients
// of sums and of the basis are made by fixed runs of tokens and added up in order.
#include "attention/primitives/common/tile_gemm.h"
#include "attention/primitives/orthogonal_memory/plan.h"
#include "core/error.h"
#include "core/threads.h"

namespace linnet {
namespace {

using namespace orthogonal_memory_detail;

// A run of queries, or of groups of codes, of one head.
struct Run {
  const Sequence* sequence;
  int64_t head, begin, end;
  // Where its gradients of sums begin, in groups (runs of queries).
  int64_t slot;
};

template <typename T>
class Backward {
 public:
  Backward(const OrthogonalMemoryInputs<T>& in, const OrthogonalMemoryOptions& options,
           SequenceView<const T> dy, const OrthogonalMemoryGradients<T>& out)
      : in_(in),
        options_(options),
        dy_(dy),
        out_(out),
        plan_(make_plan(in, options)),
        bases_(load_bases(in)),
        d_(in.q.K),
        r_(in.rank),
        M_(plan_.memories),
        padded_(simd::round_up<T>(in.rank)) {}

  void run(const T* dcompleted_out, const T* dpartial_out) {
    sums_.resize(plan_.seen.size() * static_cast<size_t>(M_ * r_));
    sum_groups(in_, plan_, bases_, sums_.data());
    accumulate_groups(in_, plan_, sums_.data(), {});
    plan_runs();
    through_reads();
    through_sums(dcompleted_out, dpartial_out);
    through_codes();
    sum_basis();
  }

 private:
  void plan_runs();
  void through_reads();
  void read_tile(const Run& run, const Basis<T>& basis, int64_t first, int64_t count, T* dbasis);
  void through_sums(const T* dcompleted_out, const T* dpartial_out);
  void through_codes();
  void sum_basis();

  const OrthogonalMemoryInputs<T>& in_;
  const OrthogonalMemoryOptions& options_;
  SequenceView<const T> dy_;
  const OrthogonalMemoryGradients<T>& out_;
  Plan plan_;
  std::vector<Basis<T>> bases_;
  int64_t d_, r_, M_, padded_;
  // Sums that readers of a group see; their gradients become those of the group's own sums.
  std::vector<T> sums_, dsums_;
  std::vector<Run> reads_, codes_;
  // Gradients of sums by run, [slots, r]; of the basis by run of either kind, [runs, r, d].
  std::vector<T> read_dsums_, run_dbasis_;
};

template <typename T>
void Backward<T>::plan_runs() {
  int64_t slots = 0;
  for (const Sequence& s : plan_.sequences) {
    // At most 64 runs a sequence, for the memory of their basis gradients.
    const auto step = [](int64_t n) { return std::max(8 * kRows, (n + 63) / 64); };
    for (int64_t head = 0; head < in_.q.H; ++head) {
      for (int64_t i = 0; i < s.queries; i += step(s.queries)) {
        const int64_t end = std::min(s.queries, i + step(s.queries));
        reads_.push_back({&s, head, i, end, slots});
        slots += s.group_of(end - 1) - s.group_of(i) + 1;
      }
      for (int64_t k = 0; k < s.groups; k += step(s.groups)) {
        codes_.push_back({&s, head, k, std::min(s.groups, k + step(s.groups)), 0});
      }
    }
  }
  read_dsums_.assign(static_cast<size_t>(slots * r_), T{0});
  run_dbasis_.assign((reads_.size() + codes_.size()) * static_cast<size_t>(r_ * d_), T{0});
}

template <typename T>
void Backward<T>::through_reads() {
  parallel_tasks(static_cast<int64_t>(reads_.size()), 1, [&] {
    return [&](int64_t i) {
      const Run& run = reads_[i];
      for (int64_t first = run.begin; first < run.end; first += kRows) {
        read_tile(run, bases_[run.head], first, std::min(kRows, run.end - first),
                  run_dbasis_.data() + i * r_ * d_);
      }
    };
  });
}

// With a = scale * m * y and u = B dy, per token: dp = m * u, da = p * (dp - p . dp),
// dm = p * u + scale * y * da, dy = scale * m * da (y = B q here). The factors of dropout on p go
// to u.
template <typename T>
void Backward<T>::read_tile(const Run& run, const Basis<T>& basis, int64_t first, int64_t count,
                            T* dbasis) {
  using simd::load;
  using simd::Vector;
  static thread_local std::vector<T> buffer, drawn;  // kept: a call has many tiles
  buffer.resize(static_cast<size_t>(2 * kRows * d_ + (4 * kRows + 2) * padded_));
  T* q = buffer.data();
  T* dy = q + kRows * d_;
  T* projected = dy + kRows * d_;             // B q, then its gradient
  T* weights = projected + kRows * padded_;   // p, then p * m
  T* dprojected = weights + kRows * padded_;  // B dy
  T* mean = dprojected + kRows * padded_;
  const Sequence& s = *run.sequence;
  const int64_t t = s.query_begin + first;
  const T scale = static_cast<T>(options_.scale);
  load_rows(in_.q, in_.query_mask, s.row, t, count, run.head, q);
  load_rows(dy_, in_.query_mask, s.row, t, count, run.head, dy);
  tile_gemm<T>(count, padded_, d_, T{1}, {q, d_}, {basis.columns.get(), padded_}, Write::overwrite,
               projected, padded_);
  tile_gemm<T>(count, padded_, d_, T{1}, {dy, d_}, {basis.columns.get(), padded_}, Write::overwrite,
               dprojected, padded_);
  std::fill_n(mean, padded_, T{0});
  int64_t group = -1;
  T factor = 0;
  for (int64_t j = 0; j < count; ++j) {
    const int64_t k = s.group_of(first + j), own = s.first_group + k;
    T* y = projected + j * padded_;
    T* p = weights + j * padded_;
    T* u = dprojected + j * padded_;
    if (plan_.seen[own] == 0 || !is_valid(in_.query_mask, s.row, t + j, in_.q.T)) {
      std::fill_n(y, padded_, T{0});
      std::fill_n(p, padded_, T{0});
      continue;
    }
    if (own != group) {
      const T* sum = sums_.data() + (own * M_ + (M_ == 1 ? 0 : run.head)) * r_;
      factor = T{1} / static_cast<T>(plan_.seen[own]);
      for (int64_t l = 0; l < r_; ++l) mean[l] = sum[l] * factor;
      group = own;
    }
    std::copy_n(y, padded_, p);
    memory_weights(r_, padded_, scale, mean, p);
    const T* kept = kept_weights(in_, options_, s.row, t + j, run.head, drawn);
    for (int64_t l = 0; kept != nullptr && l < padded_; ++l) u[l] *= kept[l];
    Vector<T> along = {};
    for (int64_t l = 0; l < padded_; l += simd::kLanes<T>) {
      along += load(p + l) * load(mean + l) * load(u + l);
    }
    const T dot = simd::sum<T>(along);
    T* dsum = read_dsums_.data() + (run.slot + k - s.group_of(run.begin)) * r_;
    for (int64_t l = 0; l < r_; ++l) {
      const T da = p[l] * (mean[l] * u[l] - dot);
      dsum[l] += factor * (p[l] * u[l] + scale * y[l] * da);
      y[l] = scale * mean[l] * da;
      p[l] *= mean[l];
    }
    for (int64_t l = 0; kept != nullptr && l < padded_; ++l) p[l] *= kept[l];
  }
  tile_gemm<T>(count, d_, r_, T{1}, {projected, padded_}, basis.rows, Write::overwrite,
               out_.dq.at(s.row, t, run.head), out_.dq.time_stride);
  tile_gemm<T>(r_, d_, count, T{1}, {weights, padded_, true}, {dy, d_}, Write::accumulate, dbasis,
               d_);
  tile_gemm<T>(r_, d_, count, T{1}, {projected, padded_, true}, {q, d_}, Write::accumulate, dbasis,
               d_);
}

// From gradients of reads to gradients of each group's own sum: sums over later readers.
template <typename T>
void Backward<T>::through_sums(const T* dcompleted_out, const T* dpartial_out) {
  dsums_.assign(sums_.size(), T{0});
  for (const Run& run : reads_) {
    const int64_t m = M_ == 1 ? 0 : run.head, first = run.sequence->group_of(run.begin);
    const int64_t groups = run.sequence->group_of(run.end - 1) - first + 1;
    for (int64_t k = 0; k < groups; ++k) {
      const T* from = read_dsums_.data() + (run.slot + k) * r_;
      T* to = dsums_.data() + ((run.sequence->first_group + first + k) * M_ + m) * r_;
      for (int64_t l = 0; l < r_; ++l) to[l] += from[l];
    }
  }
  const int64_t rows = in_.q.B * M_ * r_;
  if (out_.dcompleted) std::fill_n(out_.dcompleted, rows, T{0});
  if (out_.dpartial) std::fill_n(out_.dpartial, rows, T{0});
  const int64_t count = static_cast<int64_t>(plan_.sequences.size()) * M_;
  parallel_for(count, 1, [&](int64_t begin, int64_t end) {
    std::vector<T> running(static_cast<size_t>(r_)), open(static_cast<size_t>(r_));
    for (int64_t i = begin; i < end; ++i) {
      const Sequence& s = plan_.sequences[i / M_];
      const int64_t place = (s.row * M_ + i % M_) * r_;
      const auto seed = [&](const T* from, std::vector<T>& to) {
        for (int64_t l = 0; l < r_; ++l) to[l] = s.carries_out && from ? from[place + l] : T{0};
      };
      // running: gradient of everything completed; open: of the group's own sum.
      seed(dcompleted_out, running);
      seed(dpartial_out, open);
      for (int64_t k = s.groups - 1; k >= 0; --k) {
        T* dsum = dsums_.data() + ((s.first_group + k) * M_ + i % M_) * r_;
        const bool partial = k + 1 == s.groups && s.last_is_partial();
        for (int64_t l = 0; l < r_; ++l) {
          const T read = dsum[l];
          dsum[l] = (partial ? open[l] : running[l]) + (plan_.inclusive ? read : T{0});
          running[l] += read;
        }
        if (k == 0) std::copy_n(dsum, r_, open.data());
      }
      if (!s.carries_in) continue;
      if (out_.dcompleted) std::copy_n(running.data(), r_, out_.dcompleted + place);
      if (out_.dpartial && !plan_.inclusive) {
        std::copy_n(open.data(), r_, out_.dpartial + place);
      }
    }
  });
}

// df_j = B^T dsum of its group, the same for all tokens of a group; dB += dsum (sum of f_j)^T.
template <typename T>
void Backward<T>::through_codes() {
  parallel_tasks(static_cast<int64_t>(codes_.size()), 1, [&] {
    return [&, sums = std::vector<T>(static_cast<size_t>(kRows * d_)),
            dcodes = std::vector<T>(static_cast<size_t>(kRows * d_))](int64_t i) mutable {
      const Run& run = codes_[i];
      const Sequence& s = *run.sequence;
      T* dbasis = run_dbasis_.data() + (static_cast<int64_t>(reads_.size()) + i) * r_ * d_;
      for (int64_t first = run.begin; first < run.end; first += kRows) {
        const int64_t n = std::min(kRows, run.end - first), stride = M_ * r_;
        const T* dsums =
            dsums_.data() + (s.first_group + first) * stride + (M_ == 1 ? 0 : run.head) * r_;
        sum_codes(in_, s, run.head, first, first + n, sums.data());
        tile_gemm<T>(n, d_, r_, T{1}, {dsums, stride}, bases_[run.head].rows, Write::overwrite,
                     dcodes.data(), d_);
        tile_gemm<T>(r_, d_, n, T{1}, {dsums, stride, true}, {sums.data(), d_}, Write::accumulate,
                     dbasis, d_);
        for (int64_t k = 0; k < n; ++k) {
          for (int64_t j = s.code_from(first + k); j < s.code_from(first + k + 1); ++j) {
            T* df = out_.df.at(s.row, s.code_begin + j, run.head);
            if (is_valid(in_.code_mask, s.row, s.code_begin + j, in_.f.T)) {
              std::copy_n(dcodes.data() + k * d_, d_, df);
            } else {
              std::fill_n(df, d_, T{0});
            }
          }
        }
      }
    };
  });
}

template <typename T>
void Backward<T>::sum_basis() {
  parallel_for(in_.q.H, 1, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head) {
      for (int64_t l = 0; l < r_; ++l) {
        T* row = out_.dbasis + head * in_.basis_head_stride + l * in_.basis_row_stride;
        std::fill_n(row, d_, T{0});
        for (size_t i = 0; i < reads_.size() + codes_.size(); ++i) {
          const Run& run = i < reads_.size() ? reads_[i] : codes_[i - reads_.size()];
          if (run.head != head) continue;
          const T* part = run_dbasis_.data() + (static_cast<int64_t>(i) * r_ + l) * d_;
          for (int64_t c = 0; c < d_; ++c) row[c] += part[c];
        }
      }
    }
  });
}

}  // namespace

template <typename T>
void orthogonal_memory_backward(const OrthogonalMemoryInputs<T>& in,
                                const OrthogonalMemoryOptions& options, SequenceView<const T> dy,
                                const T* dcompleted_out, const T* dpartial_out,
                                const OrthogonalMemoryGradients<T>& gradients) {
  Backward<T>(in, options, dy, gradients).run(dcompleted_out, dpartial_out);
}

template void orthogonal_memory_backward<float>(const OrthogonalMemoryInputs<float>&,
                                                const OrthogonalMemoryOptions&,
                                                SequenceView<const float>, const float*,
                                                const float*,
                                                const OrthogonalMemoryGradients<float>&);
template void orthogonal_memory_backward<double>(const OrthogonalMemoryInputs<double>&,
                                                 const OrthogonalMemoryOptions&,
                                                 SequenceView<const double>, const double*,
                                                 const double*,
                                                 const OrthogonalMemoryGradients<double>&);

}  // namespace linnet
