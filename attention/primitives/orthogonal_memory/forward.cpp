// The orthogonal memory, forward: sums by group, then reads in tiles of queries.
#include "attention/primitives/common/tile_gemm.h"
#include "attention/primitives/orthogonal_memory/plan.h"
#include "core/error.h"
#include "core/threads.h"

namespace linnet {

using namespace orthogonal_memory_detail;

template <typename T>
void orthogonal_memory_forward(const OrthogonalMemoryInputs<T>& in,
                               const OrthogonalMemoryOptions& options, SequenceView<T> y,
                               OrthogonalMemoryState<T, int64_t> state_out) {
  const Plan plan = make_plan(in, options);
  const int64_t d = in.q.K, r = in.rank, M = plan.memories;
  require(y.B == in.q.B && y.T == in.q.T && y.H == in.q.H && y.K == d,
          "orthogonal memory: y must have the shape of q");
  std::vector<T> sums(plan.seen.size() * static_cast<size_t>(M * r));
  const std::vector<Basis<T>> bases = load_bases(in);
  sum_groups(in, plan, bases, sums.data());
  accumulate_groups(in, plan, sums.data(), state_out);

  struct Item {
    const Sequence* sequence;
    int64_t head, begin, end;
  };
  constexpr int64_t kQueries = 4 * kRows;
  std::vector<Item> items;
  int64_t rows = 0;  // of the largest tile
  for (const Sequence& s : plan.sequences) {
    rows = std::max(rows, std::min(kRows, s.queries));
    for (int64_t head = 0; head < in.q.H; ++head) {
      for (int64_t i = 0; i < s.queries; i += kQueries) {
        items.push_back({&s, head, i, std::min(s.queries, i + kQueries)});
      }
    }
  }
  const int64_t padded = simd::round_up<T>(r);
  parallel_tasks(static_cast<int64_t>(items.size()), 1, [&] {
    return [&, queries = std::vector<T>(static_cast<size_t>(rows * d)),
            weights = std::vector<T>(static_cast<size_t>(rows * padded)),
            mean = std::vector<T>(static_cast<size_t>(padded), T{0}),
            drawn = std::vector<T>()](int64_t item) mutable {
      const auto& [s, head, begin, end] = items[item];
      const Basis<T>& basis = bases[head];
      for (int64_t i = begin; i < end; i += kRows) {
        const int64_t n = std::min(kRows, end - i), t = s->query_begin + i;
        load_rows(in.q, in.query_mask, s->row, t, n, head, queries.data());
        tile_gemm<T>(n, padded, d, T{1}, {queries.data(), d}, {basis.columns.get(), padded},
                     Write::overwrite, weights.data(), padded);
        int64_t group = -1;
        for (int64_t j = 0; j < n; ++j) {
          const int64_t own = s->first_group + s->group_of(i + j);
          T* row = weights.data() + j * padded;
          if (plan.seen[own] == 0 || !is_valid(in.query_mask, s->row, t + j, in.q.T)) {
            std::fill_n(row, padded, T{0});
            continue;
          }
          if (own != group) {
            const T* sum = sums.data() + (own * M + (M == 1 ? 0 : head)) * r;
            const T factor = T{1} / static_cast<T>(plan.seen[own]);
            for (int64_t l = 0; l < r; ++l) mean[l] = sum[l] * factor;
            group = own;
          }
          memory_weights(r, padded, static_cast<T>(options.scale), mean.data(), row);
          const T* kept = kept_weights(in, options, s->row, t + j, head, drawn);
          for (int64_t l = 0; l < padded; ++l) row[l] *= mean[l];
          for (int64_t l = 0; kept != nullptr && l < padded; ++l) row[l] *= kept[l];
        }
        tile_gemm<T>(n, d, r, T{1}, {weights.data(), padded}, basis.rows, Write::overwrite,
                     y.at(s->row, t, head), y.time_stride);
      }
    };
  });
}

template void orthogonal_memory_forward<float>(const OrthogonalMemoryInputs<float>&,
                                               const OrthogonalMemoryOptions&, SequenceView<float>,
                                               OrthogonalMemoryState<float, int64_t>);
template void orthogonal_memory_forward<double>(const OrthogonalMemoryInputs<double>&,
                                                const OrthogonalMemoryOptions&,
                                                SequenceView<double>,
                                                OrthogonalMemoryState<double, int64_t>);

}  // namespace linnet
