// The orthogonal memory: the literal equation with dense memories.
#include <cmath>

#include "attention/primitives/orthogonal_memory/plan.h"
#include "autograd/dropout.h"

namespace linnet {

using namespace orthogonal_memory_detail;

void orthogonal_memory_reference(const OrthogonalMemoryInputs<double>& in,
                                 const OrthogonalMemoryOptions& options, SequenceView<double> y,
                                 OrthogonalMemoryState<double, int64_t> state_out) {
  const int64_t r = in.rank, d = in.q.K, H = in.q.H, M = options.shared ? 1 : H;
  const DropoutSpec dropout{options.dropout, options.dropout_key, {}};
  const bool windows = options.scope == MemoryScope::completed_windows;
  const auto basis = [&](int64_t h, int64_t l, int64_t c) {
    return in.basis[h * in.basis_head_stride + l * in.basis_row_stride + c];
  };
  const auto window_of = [&](int64_t position) {
    return windows ? position / options.window : position;
  };
  // Adds B f_j of every valid token j with take(j) to a sum of r values; returns how many.
  const auto collect = [&](const Sequence& s, int64_t m, const auto& take, double* sum) {
    int64_t count = 0;
    for (int64_t j = 0; j < s.codes; ++j) {
      if (!take(j) || !is_valid(in.code_mask, s.row, s.code_begin + j, in.f.T)) continue;
      ++count;
      for (int64_t h = options.shared ? 0 : m; h < (options.shared ? H : m + 1); ++h) {
        const double* code = in.f.at(s.row, s.code_begin + j, h);
        for (int64_t l = 0; l < r; ++l) {
          for (int64_t c = 0; c < d; ++c) sum[l] += basis(h, l, c) * code[c];
        }
      }
    }
    return count;
  };
  for (const Sequence& s : make_plan(in, options).sequences) {
    const int64_t end = s.start + s.codes;
    for (int64_t h = 0; h < H; ++h) {
      const int64_t m = options.shared ? 0 : h;
      const double* completed = s.carries_in ? in.state.completed + (s.row * M + m) * r : nullptr;
      const double* partial =
          s.carries_in && windows ? in.state.partial + (s.row * M + m) * r : nullptr;
      for (int64_t i = 0; i < s.queries; ++i) {
        double* out = y.at(s.row, s.query_begin + i, h);
        std::fill_n(out, d, 0.0);
        if (!is_valid(in.query_mask, s.row, s.query_begin + i, in.q.T)) continue;
        std::vector<double> sum(static_cast<size_t>(r), 0.0);
        const int64_t own = window_of(s.start + i);
        int64_t count = collect(
            s, m,
            [&](int64_t j) {
              if (options.scope == MemoryScope::whole) return true;
              if (options.scope == MemoryScope::prefix) return j <= i;
              return window_of(s.start + j) < own;
            },
            sum.data());
        if (completed != nullptr) {
          // The carried partial window counts as soon as its window is over.
          const bool over = partial != nullptr && window_of(s.start) < own;
          for (int64_t l = 0; l < r; ++l) sum[l] += completed[l] + (over ? partial[l] : 0.0);
          count += in.state.counts[2 * s.row] + (over ? in.state.counts[2 * s.row + 1] : 0);
        }
        if (count == 0) continue;
        std::vector<float> kept(static_cast<size_t>(H * r), 1.0F);
        if (options.dropout > 0) {
          dropout_row(dropout, in.examples ? in.examples[s.row] : s.row,
                      in.time_offset + s.query_begin + i, H * r, kept.data());
        }
        // memory = diag(mean) B; y = memory^T softmax(scale memory q).
        std::vector<double> memory(static_cast<size_t>(r * d)), logits(static_cast<size_t>(r), 0.0);
        double largest = -std::numeric_limits<double>::infinity(), total = 0;
        for (int64_t l = 0; l < r; ++l) {
          for (int64_t c = 0; c < d; ++c) {
            memory[l * d + c] = sum[l] / static_cast<double>(count) * basis(h, l, c);
            logits[l] +=
                options.scale * memory[l * d + c] * in.q.at(s.row, s.query_begin + i, h)[c];
          }
          largest = std::max(largest, logits[l]);
        }
        for (const double logit : logits) total += std::exp(logit - largest);
        for (int64_t l = 0; l < r; ++l) {
          for (int64_t c = 0; c < d; ++c) {
            out[c] += kept[h * r + l] * std::exp(logits[l] - largest) / total * memory[l * d + c];
          }
        }
      }
    }
    if (!s.carries_out || state_out.completed == nullptr) continue;
    // Tokens before `boundary` are in completed windows.
    const int64_t boundary = windows ? end / options.window * options.window : end;
    const bool over = windows && s.codes > 0 && boundary > s.start;
    for (int64_t m = 0; m < M; ++m) {
      double* completed = state_out.completed + (s.row * M + m) * r;
      double* partial = state_out.partial + (s.row * M + m) * r;
      for (int64_t l = 0; l < r; ++l) {
        const double before = s.carries_in ? in.state.completed[(s.row * M + m) * r + l] : 0.0;
        const double open =
            s.carries_in && windows ? in.state.partial[(s.row * M + m) * r + l] : 0.0;
        completed[l] = before + (over ? open : 0.0);
        partial[l] = over ? 0.0 : open;
      }
      const bool whole = options.scope == MemoryScope::whole;
      int64_t counts[2] = {s.carries_in ? in.state.counts[2 * s.row] : 0,
                           s.carries_in && windows ? in.state.counts[2 * s.row + 1] : 0};
      if (over) counts[0] += counts[1], counts[1] = 0;
      counts[0] += collect(
          s, m, [&](int64_t j) { return whole || s.start + j < boundary; }, completed);
      counts[1] += collect(
          s, m, [&](int64_t j) { return !whole && s.start + j >= boundary; }, partial);
      std::copy_n(counts, 2, state_out.counts + 2 * s.row);
    }
  }
}

}  // namespace linnet
