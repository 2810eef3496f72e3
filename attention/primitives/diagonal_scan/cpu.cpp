// Diagonal recurrences on the CPU: a vector has one mode of neighbouring channels, so that nothing
// is summed across its lanes.
#include "attention/primitives/diagonal_scan/cpu.h"

#include <algorithm>
#include <vector>

#include "attention/primitives/common/chunked.h"
#include "attention/primitives/common/simd.h"

namespace linnet::diagonal {
namespace {

constexpr int64_t kSteps = 64;  // between the states from which backward restarts

// The state of one vector of channels, or values that belong to each of its modes: [M] pairs of
// real and imaginary vectors.
template <typename T>
struct Pair {
  simd::Vector<T> re, im;
};
template <typename T>
Pair<T> operator+(const Pair<T>& a, const Pair<T>& b) {
  return {a.re + b.re, a.im + b.im};
}
template <typename T>
Pair<T> operator*(const Pair<T>& a, const Pair<T>& b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
template <typename T>
Pair<T> operator*(simd::Vector<T> a, const Pair<T>& b) {
  return {a * b.re, a * b.im};
}
template <typename T>
Pair<T> conjugate(const Pair<T>& a) {
  return {a.re, -a.im};
}

template <typename T>
struct Lanes {
  simd::Vector<T> of;
};

// A pole is the sum of two floats: rounded to one, a mode that lives for thousands of tokens would
// turn by thousands of roundings too much.
template <typename T>
struct Coefficients {
  Pair<T> pole, rest, gain;
};

// A few neighbouring channels of one row.
template <typename T>
class Channels {
 public:
  using Vector = simd::Vector<T>;
  static constexpr int64_t kLanes = simd::kLanes<T>;

  Channels(const DiagonalScanInputs<T>& in, int64_t first)
      : in_(in), s_(in.scan), first_(first), count_(std::min(kLanes, s_.H - first)) {
    for (int64_t n = 0; n < s_.M; ++n) {
      Coefficients<T> mode{};
      for (int64_t lane = 0; lane < count_; ++lane) {
        const double* from = in.modes + ((first_ + lane) * s_.M + n) * 4;
        mode.pole.re[lane] = static_cast<T>(from[0]);
        mode.pole.im[lane] = static_cast<T>(from[1]);
        mode.rest.re[lane] = static_cast<T>(from[0] - static_cast<double>(mode.pole.re[lane]));
        mode.rest.im[lane] = static_cast<T>(from[1] - static_cast<double>(mode.pole.im[lane]));
        mode.gain.re[lane] = static_cast<T>(from[2]);
        mode.gain.im[lane] = static_cast<T>(from[3]);
      }
      modes_.push_back(mode);
    }
    for (int64_t g = 0; g < s_.G; ++g) {
      d_.push_back({in.d == nullptr ? Vector{} : row(in.d + g * s_.H)});
      for (int64_t n = 0; n < s_.M; ++n) c_.push_back(pairs(in.c, g * s_.H, n));
    }
  }

  // [rows,H] and [rows,H,M,2] at these channels.
  Vector row(const T* from) const {
    return count_ == kLanes ? simd::load(from + first_) : simd::load_partial(from + first_, count_);
  }
  void put_row(T* to, Vector x) const {
    count_ == kLanes ? simd::store(to + first_, x) : simd::store_partial(to + first_, x, count_);
  }
  Pair<T> pairs(const T* from, int64_t rows, int64_t n) const {
    Pair<T> x{};
    for (int64_t lane = 0; lane < count_; ++lane) {
      const T* at = from + ((rows + first_ + lane) * s_.M + n) * 2;
      x.re[lane] = at[0];
      x.im[lane] = at[1];
    }
    return x;
  }
  void put_pairs(T* to, int64_t rows, int64_t n, const Pair<T>& x) const {
    for (int64_t lane = 0; lane < count_; ++lane) {
      T* at = to + ((rows + first_ + lane) * s_.M + n) * 2;
      at[0] = x.re[lane];
      at[1] = x.im[lane];
    }
  }

  void load_state(const T* from, int64_t b, Pair<T>* x) const {
    for (int64_t n = 0; n < s_.M; ++n)
      x[n] = from == nullptr ? Pair<T>{} : pairs(from, b * s_.H, n);
  }
  void store_state(T* to, int64_t b, const Pair<T>* x) const {
    for (int64_t n = 0; to != nullptr && n < s_.M; ++n) put_pairs(to, b * s_.H, n, x[n]);
  }

  // u of a token, zeros where it is masked.
  Vector input(int64_t token) const {
    return s_.valid(token) ? row(in_.u + token * s_.H) : Vector{};
  }
  void advance(Vector u, Pair<T>* x) const {
    for (int64_t n = 0; n < s_.M; ++n) {
      const Coefficients<T>& m = modes_[static_cast<size_t>(n)];
      x[n] = m.pole * x[n] + (m.rest * x[n] + u * m.gain);
    }
  }
  // Step i from x, the state after the step before it.
  void step(int64_t b, int64_t i, Pair<T>* x) const {
    if (s_.begins(b, i)) std::fill_n(x, s_.M, Pair<T>{});
    advance(input(s_.token(b, i)), x);
  }

  void forward(int64_t b, Pair<T>* x, T* y) const {
    for (int64_t i = 0; i < s_.T; ++i) {
      const int64_t token = s_.token(b, i);
      if (s_.begins(b, i)) std::fill_n(x, s_.M, Pair<T>{});
      const Vector u = input(token);
      if (!s_.later) advance(u, x);
      for (int64_t g = 0; g < s_.G; ++g) {
        put_row(y + (token * s_.G + g) * s_.H, s_.valid(token) ? read(g, u, x) : Vector{});
      }
      if (s_.later) advance(u, x);
    }
  }

  // The factor of u beside the state.
  Vector skip(int64_t g) const { return d_[static_cast<size_t>(g)].of; }

 private:
  Vector read(int64_t g, Vector u, const Pair<T>* x) const {
    Vector sum{};
    const Pair<T>* c = c_.data() + g * s_.M;
    for (int64_t n = 0; n < s_.M; ++n) sum += c[n].re * x[n].re - c[n].im * x[n].im;
    return sum + sum + skip(g) * u;
  }

 protected:
  const DiagonalScanInputs<T>& in_;
  const Scan& s_;
  int64_t first_, count_;
  std::vector<Coefficients<T>> modes_;
  std::vector<Pair<T>> c_;  // [G,M]
  std::vector<Lanes<T>> d_;
};

// Sums over tokens: in T over some steps, then in double.
template <typename T>
class Sums {
 public:
  explicit Sums(int64_t count)
      : part_(static_cast<size_t>(count * simd::kLanes<T>)), total_(part_.size()) {}
  void add(int64_t i, simd::Vector<T> x) {
    T* at = part_.data() + i * simd::kLanes<T>;
    simd::store(at, simd::load(at) + x);
  }
  void flush() {
    for (size_t i = 0; i < part_.size(); ++i) {
      total_[i] += static_cast<double>(part_[i]);
      part_[i] = 0;
    }
  }
  double at(int64_t i, int64_t lane) const {
    return total_[static_cast<size_t>(i * simd::kLanes<T> + lane)];
  }

 private:
  std::vector<T> part_;
  std::vector<double> total_;
};

template <typename T>
class ChannelsBackward : public Channels<T> {
 public:
  using Base = Channels<T>;
  using Base::c_, Base::count_, Base::first_, Base::modes_, Base::s_;
  using typename Base::Vector;

  ChannelsBackward(const DiagonalScanInputs<T>& in, int64_t first)
      : Base(in, first),
        chunks_((s_.T + kSteps - 1) / kSteps),
        starts_(static_cast<size_t>(chunks_ * s_.M)),
        states_(static_cast<size_t>((kSteps + 1) * s_.M)),
        adjoint_(static_cast<size_t>(s_.M)),
        read_(adjoint_.size()),
        of_modes_(4 * s_.M),
        of_c_(2 * s_.G * s_.M),
        of_d_(s_.G) {}

  void row(int64_t b, const T* dy, const T* dlast, const DiagonalScanGradients<T>& to) {
    Pair<T>* x = states_.data();
    this->load_state(this->in_.state, b, x);
    for (int64_t i = 0; i < s_.T; ++i) {
      if (i % kSteps == 0) std::copy_n(x, s_.M, starts_.data() + i / kSteps * s_.M);
      this->step(b, i, x);
    }
    this->load_state(dlast, b, adjoint_.data());
    for (int64_t chunk = chunks_ - 1; chunk >= 0; --chunk) {
      const int64_t begin = chunk * kSteps, end = std::min(s_.T, begin + kSteps);
      // States after each step of the chunk, behind that before it.
      std::copy_n(starts_.data() + chunk * s_.M, s_.M, x);
      for (int64_t i = begin; i < end; ++i) {
        Pair<T>* next = x + (i - begin + 1) * s_.M;
        std::copy_n(next - s_.M, s_.M, next);
        this->step(b, i, next);
      }
      for (int64_t i = end - 1; i >= begin; --i) back(b, i, x + (i - begin) * s_.M, dy, to.du);
      of_modes_.flush();
      of_c_.flush();
      of_d_.flush();
    }
    this->store_state(to.dstate, b, adjoint_.data());
  }

  void store_sums(const DiagonalScanGradients<T>& to) const {
    for (int64_t lane = 0; lane < count_; ++lane) {
      const int64_t h = first_ + lane;
      for (int64_t i = 0; i < 4 * s_.M; ++i) {
        to.dmodes[h * s_.M * 4 + i] = of_modes_.at(i, lane);
      }
      for (int64_t g = 0; g < s_.G; ++g) {
        for (int64_t i = 0; i < 2 * s_.M; ++i) {
          to.dc[(g * s_.H + h) * s_.M * 2 + i] = static_cast<T>(of_c_.at(g * s_.M * 2 + i, lane));
        }
        if (to.dd != nullptr) to.dd[g * s_.H + h] = static_cast<T>(of_d_.at(g, lane));
      }
    }
  }

 private:
  // Step i, from the adjoint of the state after it to that of the state before it; `before` [M] is
  // that state, and behind it is the one after.
  void back(int64_t b, int64_t i, const Pair<T>* before, const T* dy, T* du) {
    const int64_t token = s_.token(b, i), M = s_.M;
    const bool valid = s_.valid(token), begins = s_.begins(b, i);
    const Pair<T>* reads = s_.later ? before : before + M;
    const bool reads_nothing = s_.later && begins;
    const Vector u = this->input(token);
    Vector dinput{};
    std::fill(read_.begin(), read_.end(), Pair<T>{});
    Pair<T>*adjoint = adjoint_.data(), *read = read_.data();
    for (int64_t g = 0; valid && g < s_.G; ++g) {
      const Vector d = Base::row(dy + (token * s_.G + g) * s_.H), twice = d + d;
      of_d_.add(g, d * u);
      dinput += d * this->skip(g);
      if (reads_nothing) continue;
      for (int64_t n = 0; n < M; ++n) {
        const Pair<T>& c = c_[static_cast<size_t>(g * M + n)];
        read[n] = read[n] + twice * conjugate(c);
        of_c_.add(2 * (g * M + n), twice * reads[n].re);
        of_c_.add(2 * (g * M + n) + 1, -(twice * reads[n].im));
      }
    }
    for (int64_t n = 0; n < M; ++n) {
      const Coefficients<T>& m = modes_[static_cast<size_t>(n)];
      const Pair<T> after = s_.later ? adjoint[n] : adjoint[n] + read[n];
      dinput += m.gain.re * after.re + m.gain.im * after.im;
      of_modes_.add(4 * n + 2, u * after.re);
      of_modes_.add(4 * n + 3, u * after.im);
      if (begins) {
        adjoint[n] = Pair<T>{};
        continue;
      }
      const Pair<T> product = conjugate(before[n]) * after;
      of_modes_.add(4 * n, product.re);
      of_modes_.add(4 * n + 1, product.im);
      adjoint[n] = conjugate(m.pole) * after + conjugate(m.rest) * after;
      if (s_.later) adjoint[n] = adjoint[n] + read[n];
    }
    this->put_row(du + token * s_.H, valid ? dinput : Vector{});
  }

  int64_t chunks_;
  std::vector<Pair<T>> starts_, states_, adjoint_, read_;
  Sums<T> of_modes_, of_c_, of_d_;
};

template <typename T>
int64_t blocks(const Scan& s) {
  return (s.H + simd::kLanes<T> - 1) / simd::kLanes<T>;
}

}  // namespace

template <typename T>
void scan_forward(const DiagonalScanInputs<T>& in, T* y, T* last) {
  const Scan& s = in.scan;
  const int64_t channels = blocks<T>(s), work = s.B * s.T * s.H * (s.M * (10 + 2 * s.G) + s.G);
  count_multiply_adds(work);
  chunked::run_tasks(s.B * channels, static_cast<double>(work), [&](int64_t task) {
    const Channels<T> mine(in, task % channels * simd::kLanes<T>);
    std::vector<Pair<T>> x(static_cast<size_t>(s.M));
    const int64_t b = task / channels;
    mine.load_state(in.state, b, x.data());
    mine.forward(b, x.data(), y);
    mine.store_state(last, b, x.data());
  });
}

template <typename T>
void scan_backward(const DiagonalScanInputs<T>& in, const T* dy, const T* dlast,
                   const DiagonalScanGradients<T>& to) {
  const Scan& s = in.scan;
  const int64_t work = s.B * s.T * s.H * (s.M * (36 + 4 * s.G) + 2 * s.G);
  count_multiply_adds(work);
  chunked::run_tasks(blocks<T>(s), static_cast<double>(work), [&](int64_t task) {
    ChannelsBackward<T> mine(in, task * simd::kLanes<T>);
    for (int64_t b = 0; b < s.B; ++b) mine.row(b, dy, dlast, to);
    mine.store_sums(to);
  });
}

template void scan_forward<float>(const DiagonalScanInputs<float>&, float*, float*);
template void scan_forward<double>(const DiagonalScanInputs<double>&, double*, double*);
template void scan_backward<float>(const DiagonalScanInputs<float>&, const float*, const float*,
                                   const DiagonalScanGradients<float>&);
template void scan_backward<double>(const DiagonalScanInputs<double>&, const double*, const double*,
                                    const DiagonalScanGradients<double>&);

}  // namespace linnet::diagonal
