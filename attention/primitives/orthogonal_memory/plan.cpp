// Checks of a call of the orthogonal memory; groups of tokens and their sums.
#include "attention/primitives/orthogonal_memory/plan.h"

#include <cmath>

#include "attention/primitives/common/row_dropout.h"
#include "attention/primitives/common/tile_gemm.h"
#include "core/error.h"
#include "core/threads.h"

namespace linnet {

template <typename T>
void check_orthogonal_memory(const SequenceView<const T>& q, const SequenceView<const T>& f,
                             int64_t rank, const OrthogonalMemoryOptions& options,
                             bool one_span_a_row) {
  require(f.B == q.B && f.H == q.H && f.K == q.K, "orthogonal memory: q [", q.B, ",", q.T, ",", q.H,
          ",", q.K, "] and f [", f.B, ",", f.T, ",", f.H, ",", f.K, "] do not fit together");
  require(rank > 0, "orthogonal memory: it needs a basis of rank > 0");
  require(options.scope != MemoryScope::completed_windows || options.window >= 1,
          "orthogonal memory: windows need at least 1 position, got ", options.window);
  require(f.T == q.T || (options.scope == MemoryScope::whole && one_span_a_row),
          "orthogonal memory: ", f.T, " codes for ", q.T,
          " queries are for cross-attention only: ", "scope whole, one span a row");
}
template void check_orthogonal_memory(const SequenceView<const float>&,
                                      const SequenceView<const float>&, int64_t,
                                      const OrthogonalMemoryOptions&, bool);
template void check_orthogonal_memory(const SequenceView<const double>&,
                                      const SequenceView<const double>&, int64_t,
                                      const OrthogonalMemoryOptions&, bool);

namespace orthogonal_memory_detail {

template <typename T>
Plan make_plan(const OrthogonalMemoryInputs<T>& in, const OrthogonalMemoryOptions& options) {
  const auto& q = in.q;
  const auto& f = in.f;
  check_orthogonal_memory(q, f, in.basis == nullptr ? 0 : in.rank, options,
                          static_cast<int64_t>(in.spans.size()) == q.B);
  const bool whole = options.scope == MemoryScope::whole;
  Plan plan;
  plan.memories = options.shared ? 1 : q.H;
  plan.inclusive = options.scope != MemoryScope::completed_windows;
  int64_t groups = 0;
  for (const Span& span : in.spans) {
    require(!span.carries_in || (in.state.completed && in.state.partial && in.state.counts),
            "orthogonal memory: a span continues a state, but there is none");
    const bool cross = f.T != q.T;
    const int64_t queries = span.end - span.begin;
    Sequence s{span.row,
               span.begin,
               queries,
               cross ? 0 : span.begin,
               cross ? f.T : queries,
               span.start_position,
               options.scope == MemoryScope::prefix ? 1 : options.window,
               whole,
               span.carries_in,
               span.carries_out,
               groups,
               1};
    if (!whole) s.groups = queries == 0 ? 0 : s.group_of(queries - 1) + 1;
    const int64_t* carried = span.carries_in ? in.state.counts + 2 * span.row : nullptr;
    int64_t seen = carried ? carried[0] : 0;
    for (int64_t k = 0; k < s.groups; ++k) {
      int64_t valid = carried && k == 0 && !plan.inclusive ? carried[1] : 0;
      for (int64_t j = s.code_from(k); j < s.code_from(k + 1); ++j) {
        valid += is_valid(in.code_mask, s.row, s.code_begin + j, f.T) ? 1 : 0;
      }
      plan.valid.push_back(valid);
      plan.seen.push_back(plan.inclusive ? seen + valid : seen);
      seen += valid;
    }
    groups += s.groups;
    plan.sequences.push_back(s);
  }
  return plan;
}

template <typename T>
void sum_codes(const OrthogonalMemoryInputs<T>& in, const Sequence& s, int64_t head, int64_t begin,
               int64_t end, T* out) {
  const int64_t d = in.f.K;
  for (int64_t k = begin; k < end; ++k) {
    T* sum = out + (k - begin) * d;
    std::fill_n(sum, d, T{0});
    for (int64_t j = s.code_from(k); j < s.code_from(k + 1); ++j) {
      if (!is_valid(in.code_mask, s.row, s.code_begin + j, in.f.T)) continue;
      const T* code = in.f.at(s.row, s.code_begin + j, head);
      for (int64_t c = 0; c < d; ++c) sum[c] += code[c];
    }
  }
}

template <typename T>
void sum_groups(const OrthogonalMemoryInputs<T>& in, const Plan& plan,
                const std::vector<Basis<T>>& bases, T* sums) {
  struct Item {
    const Sequence* sequence;
    int64_t memory, begin, end;
  };
  constexpr int64_t kGroups = 8 * kRows;
  std::vector<Item> items;
  int64_t rows = 0;  // of the largest tile
  for (const Sequence& s : plan.sequences) {
    rows = std::max(rows, std::min(kRows, s.groups));
    for (int64_t m = 0; m < plan.memories; ++m) {
      for (int64_t k = 0; k < s.groups; k += kGroups) {
        items.push_back({&s, m, k, std::min(s.groups, k + kGroups)});
      }
    }
  }
  const int64_t d = in.f.K, r = in.rank, stride = plan.memories * r;
  const int64_t heads = in.q.H / plan.memories;
  parallel_tasks(static_cast<int64_t>(items.size()), 1, [&] {
    return [&, codes = std::vector<T>(static_cast<size_t>(rows * d))](int64_t i) mutable {
      const auto& [s, memory, begin, end] = items[i];
      for (int64_t head = memory * heads; head < (memory + 1) * heads; ++head) {
        const Basis<T>& basis = bases[head];
        for (int64_t k = begin; k < end; k += kRows) {
          const int64_t n = std::min(kRows, end - k);
          sum_codes(in, *s, head, k, k + n, codes.data());
          tile_gemm<T>(n, r, d, T{1}, {codes.data(), d}, {basis.columns.get(), basis.padded},
                       head == memory * heads ? Write::overwrite : Write::accumulate,
                       sums + (s->first_group + k) * stride + memory * r, stride);
        }
      }
    };
  });
}

template <typename T>
void accumulate_groups(const OrthogonalMemoryInputs<T>& in, const Plan& plan, T* sums,
                       const OrthogonalMemoryState<T, int64_t>& state_out) {
  const int64_t r = in.rank, M = plan.memories;
  const int64_t count = static_cast<int64_t>(plan.sequences.size()) * M;
  parallel_for(count, 1, [&](int64_t first, int64_t last) {
    std::vector<T> running(static_cast<size_t>(r)), own(static_cast<size_t>(r));
    for (int64_t i = first; i < last; ++i) {
      const Sequence& s = plan.sequences[i / M];
      const int64_t place = (s.row * M + i % M) * r;
      const auto carried = [&](const T* from, int64_t l) {
        return s.carries_in && from != nullptr ? from[place + l] : T{0};
      };
      for (int64_t l = 0; l < r; ++l) running[l] = carried(in.state.completed, l);
      for (int64_t l = 0; l < r; ++l)
        own[l] = carried(plan.inclusive ? nullptr : in.state.partial, l);
      for (int64_t k = 0; k < s.groups; ++k) {
        T* sum = sums + ((s.first_group + k) * M + i % M) * r;
        const bool partial = k + 1 == s.groups && s.last_is_partial();
        for (int64_t l = 0; l < r; ++l) {
          own[l] += sum[l];
          sum[l] = plan.inclusive ? running[l] + own[l] : running[l];
          if (partial) continue;
          running[l] += own[l];
          own[l] = 0;
        }
      }
      if (!s.carries_out) continue;
      if (state_out.completed) std::copy_n(running.data(), r, state_out.completed + place);
      if (state_out.partial) std::copy_n(own.data(), r, state_out.partial + place);
    }
  });
  for (const Sequence& s : plan.sequences) {
    if (!s.carries_out || state_out.counts == nullptr) continue;
    int64_t completed = s.carries_in ? in.state.counts[2 * s.row] : 0;
    int64_t partial = s.carries_in && !plan.inclusive ? in.state.counts[2 * s.row + 1] : 0;
    for (int64_t k = 0; k < s.groups; ++k) {
      partial = plan.valid[s.first_group + k];
      if (k + 1 == s.groups && s.last_is_partial()) break;
      completed += partial;
      partial = 0;
    }
    state_out.counts[2 * s.row] = completed;
    state_out.counts[2 * s.row + 1] = partial;
  }
}

template <typename T>
const T* kept_weights(const OrthogonalMemoryInputs<T>& in, const OrthogonalMemoryOptions& options,
                      int64_t row, int64_t t, int64_t head, std::vector<T>& kept) {
  if (!(options.dropout > 0)) return nullptr;
  kept.assign(static_cast<size_t>(simd::round_up<T>(in.rank)), T{0});
  RowDropout(options.dropout, options.dropout_key, in.q.H * in.rank)
      .fill(in.examples ? in.examples[row] : row, in.time_offset + t, head * in.rank, in.rank,
            kept.data());
  return kept.data();
}

#define LINNET_INSTANTIATE(T)                                                                     \
  template Plan make_plan<T>(const OrthogonalMemoryInputs<T>&, const OrthogonalMemoryOptions&);   \
  template void sum_codes<T>(const OrthogonalMemoryInputs<T>&, const Sequence&, int64_t, int64_t, \
                             int64_t, T*);                                                        \
  template void sum_groups<T>(const OrthogonalMemoryInputs<T>&, const Plan&,                      \
                              const std::vector<Basis<T>>&, T*);                                  \
  template void accumulate_groups<T>(const OrthogonalMemoryInputs<T>&, const Plan&, T*,           \
                                     const OrthogonalMemoryState<T, int64_t>&);                   \
  template const T* kept_weights<T>(const OrthogonalMemoryInputs<T>&,                             \
                                    const OrthogonalMemoryOptions&, int64_t, int64_t, int64_t,    \
                                    std::vector<T>&);
LINNET_INSTANTIATE(float)
LINNET_INSTANTIATE(double)
#undef LINNET_INSTANTIATE

}  // namespace orthogonal_memory_detail

using namespace orthogonal_memory_detail;

template <typename T>
void orthogonal_memory_counts(const OrthogonalMemoryInputs<T>& in,
                              const OrthogonalMemoryOptions& options, int64_t* counts) {
  const Plan plan = make_plan(in, options);
  for (const Sequence& s : plan.sequences) {
    for (int64_t i = 0; i < s.queries; ++i) {
      counts[s.row * in.q.T + s.query_begin + i] = plan.seen[s.first_group + s.group_of(i)];
    }
  }
}
template void orthogonal_memory_counts<float>(const OrthogonalMemoryInputs<float>&,
                                              const OrthogonalMemoryOptions&, int64_t*);
template void orthogonal_memory_counts<double>(const OrthogonalMemoryInputs<double>&,
                                               const OrthogonalMemoryOptions&, int64_t*);

}  // namespace linnet
