#include "attention/common/landmarks/landmark_logits_cpu.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "attention/primitives/common/tile_gemm.h"
#include "core/threads.h"

namespace linnet::landmark_rule {
namespace {

constexpr int64_t kTokens = 64;  // of a tile

// One head's proposals and some of its tokens. Masked tokens and unused landmarks are 0 here,
// whatever their memory holds.
template <typename T>
class Tile {
 public:
  explicit Tile(const Logits<T>& rule)
      : rule_(rule),
        w_(size(rule.n.C)),
        x_(size(kTokens)),
        d_(static_cast<size_t>(kTokens * C())) {}

  int64_t C() const { return rule_.n.C; }
  int64_t K() const { return rule_.n.K; }
  TileOperand<T> w() const { return {w_.data(), K()}; }
  TileOperand<T> x() const { return {x_.data(), K()}; }
  TileOperand<T> d() const { return {d_.data(), C()}; }
  const T* key(int64_t r) const { return x_.data() + r * K(); }
  const T* gradients(int64_t r) const { return d_.data() + r * C(); }

  void take_proposals(int64_t b, int64_t h) {
    for (int64_t c = 0; c < C(); ++c) {
      T* to = w_.data() + c * K();
      if (rule_.used(b, h, c)) {
        std::copy_n(rule_.proposal(b, h, c), K(), to);
      } else {
        std::fill_n(to, K(), T{0});
      }
    }
  }
  void take_keys(int64_t b, int64_t h, int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      T* to = x_.data() + (t - begin) * K();
      if (rule_.valid(b, t)) {
        std::copy_n(rule_.key(b, t, h), K(), to);
      } else {
        std::fill_n(to, K(), T{0});
      }
    }
  }
  void take_gradients(const T* dlogits, int64_t b, int64_t h, int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const T* from = dlogits + ((b * rule_.n.T + t) * rule_.n.H + h) * C();
      T* to = d_.data() + (t - begin) * C();
      for (int64_t c = 0; c < C(); ++c) {
        to[c] = rule_.valid(b, t) && rule_.used(b, h, c) ? from[c] : T{0};
      }
    }
  }

 private:
  size_t size(int64_t rows) const { return static_cast<size_t>(rows * rule_.n.K); }

  const Logits<T>& rule_;
  std::vector<T> w_, x_, d_;  // [C,K], [kTokens,K], [kTokens,C]
};

}  // namespace

template <typename T>
void write_logits(const Logits<T>& rule, T* logits) {
  const Sizes& n = rule.n;
  const int64_t tiles = (n.T + kTokens - 1) / kTokens;
  parallel_tasks(n.B * n.H * tiles, 4, [&] {
    return [&, tile = Tile<T>(rule)](int64_t task) mutable {
      const int64_t b = task / tiles / n.H, h = task / tiles % n.H, begin = task % tiles * kTokens;
      const int64_t end = std::min(n.T, begin + kTokens);
      tile.take_proposals(b, h);
      tile.take_keys(b, h, begin, end);
      T* first = logits + ((b * n.T + begin) * n.H + h) * n.C;
      TileOperand<T> w = tile.w();
      w.transposed = true;
      tile_gemm<T>(end - begin, n.C, n.K, rule.scale, tile.x(), w, Write::overwrite, first,
                   n.H * n.C);
      for (int64_t r = 0; r < end - begin; ++r) {
        const T norm = rule.scale * rule.half * dot_row(tile.key(r), tile.key(r), n.K);
        T* row = first + r * n.H * n.C;
        for (int64_t c = 0; c < n.C; ++c) {
          row[c] = rule.used(b, h, c) ? row[c] - norm : -std::numeric_limits<T>::infinity();
        }
      }
    };
  });
}

template <typename T>
void write_gradients(const Logits<T>& rule, const T* dlogits, T* dk, T* dw) {
  const Sizes& n = rule.n;
  // A head's dw is the sum over its tokens, in order.
  parallel_tasks(n.B * n.H, 1, [&] {
    return [&, tile = Tile<T>(rule)](int64_t task) mutable {
      const int64_t b = task / n.H, h = task % n.H;
      T* to = dw + task * n.C * n.K;
      std::fill_n(to, n.C * n.K, T{0});
      tile.take_proposals(b, h);
      for (int64_t begin = 0; begin < n.T; begin += kTokens) {
        const int64_t end = std::min(n.T, begin + kTokens);
        tile.take_keys(b, h, begin, end);
        tile.take_gradients(dlogits, b, h, begin, end);
        T* first = dk + ((b * n.T + begin) * n.H + h) * n.K;
        tile_gemm<T>(end - begin, n.K, n.C, rule.scale, tile.d(), tile.w(), Write::overwrite, first,
                     n.H * n.K);
        for (int64_t r = 0; r < end - begin; ++r) {
          const T factor = -2 * rule.half * rule.scale * sum_row(tile.gradients(r), n.C);
          axpy_row(n.K, factor, tile.key(r), first + r * n.H * n.K);
        }
        TileOperand<T> d = tile.d();
        d.transposed = true;
        tile_gemm<T>(n.C, n.K, end - begin, rule.scale, d, tile.x(), Write::accumulate, to, n.K);
      }
    };
  });
}

template void write_logits<float>(const Logits<float>&, float*);
template void write_logits<double>(const Logits<double>&, double*);
template void write_gradients<float>(const Logits<float>&, const float*, float*, float*);
template void write_gradients<double>(const Logits<double>&, const double*, double*, double*);

}  // namespace linnet::landmark_rule
