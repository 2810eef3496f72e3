#include "attention/primitives/diagonal_scan/cuda/diagonal_scan.h"

#include "attention/primitives/common/cuda/warp_items.h"
#include "core/cuda/for_each.h"
#include "core/cuda/stored_values.h"

namespace linnet::cuda {
namespace {

using diagonal::Scan;

constexpr int kTile = kLanes;  // steps of a tile

struct Math {
  __host__ __device__ double exp(double x) const { return ::exp(x); }
  __host__ __device__ double cos(double x) const { return ::cos(x); }
  __host__ __device__ double sin(double x) const { return ::sin(x); }
};

struct Pair {
  float re, im;
};
__device__ __forceinline__ Pair operator+(Pair a, Pair b) {
  return {a.re + b.re, a.im + b.im};
}
__device__ __forceinline__ Pair operator*(Pair a, Pair b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
__device__ __forceinline__ Pair operator*(float a, Pair b) {
  return {a * b.re, a * b.im};
}
__device__ __forceinline__ Pair conjugate(Pair a) {
  return {a.re, -a.im};
}
__device__ __forceinline__ Pair pair_at(const float* from, int64_t i) {
  return {from[2 * i], from[2 * i + 1]};
}
__device__ __forceinline__ void put_pair(float* to, int64_t i, Pair x) {
  to[2 * i] = x.re;
  to[2 * i + 1] = x.im;
}

// A pole is the sum of two floats: rounded to one, a mode that lives for thousands of tokens would
// turn by thousands of roundings too much.
struct Coefficients {
  Pair pole, rest, gain;
  __device__ explicit Coefficients(const double* mode)
      : pole{static_cast<float>(mode[0]), static_cast<float>(mode[1])},
        rest{static_cast<float>(mode[0] - static_cast<double>(pole.re)),
             static_cast<float>(mode[1] - static_cast<double>(pole.im))},
        gain{static_cast<float>(mode[2]), static_cast<float>(mode[3])} {}
  __device__ Pair advance(float u, Pair x) const { return pole * x + (rest * x + u * gain); }
  // The adjoint of the state before a step.
  __device__ Pair back(Pair after) const {
    return conjugate(pole) * after + conjugate(rest) * after;
  }
};

// A number for every step of a tile and mode. Rows are odd, so that lanes that are steps read
// different banks.
struct TileOfPairs {
  __host__ __device__ TileOfPairs(SharedArena& arena, int64_t M)
      : stride(M + 1 - M % 2),
        re(arena.take<float>(static_cast<size_t>(kTile * stride))),
        im(arena.take<float>(static_cast<size_t>(kTile * stride))) {}
  __device__ Pair get(int64_t step, int64_t n) const {
    return {re[step * stride + n], im[step * stride + n]};
  }
  __device__ void put(int64_t step, int64_t n, Pair x) const {
    re[step * stride + n] = x.re;
    im[step * stride + n] = x.im;
  }
  int64_t stride;
  float *re, *im;
};
struct Forward {
  __host__ __device__ Forward(SharedArena& arena, int64_t M)
      : read(arena, M), carried(arena.take<float>(static_cast<size_t>(2 * M))) {}
  TileOfPairs read;
  float* carried;
};
struct Backward {
  __host__ __device__ Backward(SharedArena& arena, int64_t M)
      : states(arena, M),
        adjoints(arena, M),
        carried(arena.take<float>(static_cast<size_t>(2 * M))) {}
  TileOfPairs states, adjoints;
  float* carried;
};

template <typename Layout>
Launch warp_blocks(const char* name, const Scan& s) {
  return {name, blocks_for(s.B * s.H, 1), kLanes, shared_bytes<Layout>(s.M)};
}

__host__ __device__ __forceinline__ int64_t tiles_of(const Scan& s) {
  return (s.T + kTile - 1) / kTile;
}
__device__ __forceinline__ int64_t steps_of(const Scan& s, int64_t tile) {
  return min(static_cast<int64_t>(kTile), s.T - tile * kTile);
}

// One row and channel. starts [B,H,tiles,M,2] (may be null) gets the state before every tile; y and
// last may be null.
__global__ void diagonal_scan_forward(Scan s, StoredValues u, const double* modes, const float* c,
                                      const float* d, const float* state, StoredResults y,
                                      float* last, float* starts) {
  SharedArena arena;
  const Forward shared(arena, s.M);
  const int64_t item = blockIdx.x, b = item / s.H, h = item % s.H;
  const int lane = static_cast<int>(threadIdx.x);
  // Each lane reads and writes the state of its own modes.
  for (int64_t n = lane; n < s.M; n += kLanes) {
    put_pair(shared.carried, n, state == nullptr ? Pair{0, 0} : pair_at(state, item * s.M + n));
  }
  for (int64_t tile = 0; tile < tiles_of(s); ++tile) {
    const int64_t first = tile * kTile, steps = steps_of(s, tile);
    for (int64_t n = lane; n < s.M; n += kLanes) {
      const Coefficients mode(modes + (h * s.M + n) * 4);
      Pair x = pair_at(shared.carried, n);
      if (starts != nullptr) put_pair(starts, (item * tiles_of(s) + tile) * s.M + n, x);
      for (int64_t step = 0; step < steps; ++step) {
        const int64_t token = s.token(b, first + step);
        if (s.begins(b, first + step)) x = {0, 0};
        const float input = s.valid(token) ? u.at(token * s.H + h) : 0.0f;
        if (s.later) shared.read.put(step, n, x);
        x = mode.advance(input, x);
        if (!s.later) shared.read.put(step, n, x);
      }
      put_pair(shared.carried, n, x);
    }
    __syncthreads();
    if (y.data != nullptr && lane < steps) {
      const int64_t token = s.token(b, first + lane);
      const bool valid = s.valid(token);
      const float input = valid ? u.at(token * s.H + h) : 0.0f;
      for (int64_t g = 0; g < s.G; ++g) {
        float total = 0;
        for (int64_t n = 0; n < s.M; ++n) {
          const Pair weight = pair_at(c, (g * s.H + h) * s.M + n), x = shared.read.get(lane, n);
          total += weight.re * x.re - weight.im * x.im;
        }
        total = 2 * total + (d == nullptr ? 0.0f : d[g * s.H + h] * input);
        y.put((token * s.G + g) * s.H + h, valid ? total : 0.0f);
      }
    }
    __syncthreads();
  }
  for (int64_t n = lane; last != nullptr && n < s.M; n += kLanes) {
    put_pair(last, item * s.M + n, pair_at(shared.carried, n));
  }
}

// One row's terms of the gradients of parameters, zeros at first: [B,H,M,4], [B,G,H,M,2], [B,G,H].
struct RowSums {
  float *modes, *c, *d;
};

__global__ void diagonal_scan_adjoint(Scan s, StoredValues u, const double* modes, const float* c,
                                      const float* d, const float* starts, StoredValues dy,
                                      const float* dlast, RowSums sums, StoredResults du,
                                      float* dstate) {
  SharedArena arena;
  const Backward shared(arena, s.M);
  const int64_t item = blockIdx.x, b = item / s.H, h = item % s.H;
  const int lane = static_cast<int>(threadIdx.x);
  for (int64_t n = lane; n < s.M; n += kLanes) {
    put_pair(shared.carried, n, dlast == nullptr ? Pair{0, 0} : pair_at(dlast, item * s.M + n));
  }
  for (int64_t tile = tiles_of(s) - 1; tile >= 0; --tile) {
    const int64_t first = tile * kTile, steps = steps_of(s, tile);
    for (int64_t n = lane; n < s.M; n += kLanes) {
      const Coefficients mode(modes + (h * s.M + n) * 4);
      const Pair start = pair_at(starts, (item * tiles_of(s) + tile) * s.M + n);
      Pair x = start;
      for (int64_t step = 0; step < steps; ++step) {
        const int64_t token = s.token(b, first + step);
        if (s.begins(b, first + step)) x = {0, 0};
        x = mode.advance(s.valid(token) ? u.at(token * s.H + h) : 0.0f, x);
        shared.states.put(step, n, x);
      }
      Pair adjoint = pair_at(shared.carried, n), of_pole{0, 0}, of_gain{0, 0};
      for (int64_t step = steps - 1; step >= 0; --step) {
        const int64_t token = s.token(b, first + step);
        const bool valid = s.valid(token), begins = s.begins(b, first + step);
        Pair read{0, 0};
        for (int64_t g = 0; valid && g < s.G; ++g) {
          const float dout = 2 * dy.at((token * s.G + g) * s.H + h);
          read = read + dout * conjugate(pair_at(c, (g * s.H + h) * s.M + n));
        }
        if (!s.later) adjoint = adjoint + read;
        shared.adjoints.put(step, n, adjoint);
        of_gain = of_gain + (valid ? u.at(token * s.H + h) : 0.0f) * adjoint;
        if (begins) {
          adjoint = {0, 0};
          continue;
        }
        const Pair before = step > 0 ? shared.states.get(step - 1, n) : start;
        of_pole = of_pole + conjugate(before) * adjoint;
        adjoint = mode.back(adjoint);
        if (s.later) adjoint = adjoint + read;
      }
      put_pair(shared.carried, n, adjoint);
      const int64_t at = 2 * (item * s.M + n);
      put_pair(sums.modes, at, pair_at(sums.modes, at) + of_pole);
      put_pair(sums.modes, at + 1, pair_at(sums.modes, at + 1) + of_gain);
      for (int64_t g = 0; g < s.G; ++g) {
        Pair total{0, 0};
        for (int64_t step = 0; step < steps; ++step) {
          const int64_t token = s.token(b, first + step);
          if (!s.valid(token) || (s.later && s.begins(b, first + step))) continue;
          const Pair before = step > 0 ? shared.states.get(step - 1, n) : start;
          const Pair state = s.later ? before : shared.states.get(step, n);
          total = total + 2 * dy.at((token * s.G + g) * s.H + h) * conjugate(state);
        }
        const int64_t place = ((b * s.G + g) * s.H + h) * s.M + n;
        put_pair(sums.c, place, pair_at(sums.c, place) + total);
      }
    }
    for (int64_t g = lane; sums.d != nullptr && g < s.G; g += kLanes) {
      float total = 0;
      for (int64_t step = 0; step < steps; ++step) {
        const int64_t token = s.token(b, first + step);
        if (!s.valid(token)) continue;
        total += dy.at((token * s.G + g) * s.H + h) * u.at(token * s.H + h);
      }
      sums.d[(b * s.G + g) * s.H + h] += total;
    }
    __syncthreads();
    if (lane < steps) {
      const int64_t token = s.token(b, first + lane);
      const bool valid = s.valid(token);
      float total = 0;
      for (int64_t n = 0; n < s.M; ++n) {
        const double* gain = modes + (h * s.M + n) * 4 + 2;
        const Pair adjoint = shared.adjoints.get(lane, n);
        total +=
            static_cast<float>(gain[0]) * adjoint.re + static_cast<float>(gain[1]) * adjoint.im;
      }
      for (int64_t g = 0; d != nullptr && valid && g < s.G; ++g) {
        total += d[g * s.H + h] * dy.at((token * s.G + g) * s.H + h);
      }
      du.put(token * s.H + h, valid ? total : 0.0f);
    }
    __syncthreads();
  }
  for (int64_t n = lane; dstate != nullptr && n < s.M; n += kLanes) {
    put_pair(dstate, item * s.M + n, pair_at(shared.carried, n));
  }
}

// to[i], f32 or f64, = the sum of from [B, count].
void sum_rows(const Tensor& from, const Tensor& to) {
  const int64_t count = to.elements(), rows = from.elements() / count;
  const float* all = pointer<float>(from);
  const bool wide = to.dtype() == DType::f64;
  double* wide_out = wide ? pointer<double>(to) : nullptr;
  float* out = wide ? nullptr : pointer<float>(to);
  for_each("diagonal_scan_rows", count, [=] __device__(int64_t i) {
    double total = 0;
    for (int64_t b = 0; b < rows; ++b) total += static_cast<double>(all[b * count + i]);
    if (wide) {
      wide_out[i] = total;
    } else {
      out[i] = static_cast<float>(total);
    }
  });
}

// y, last and starts may be undefined.
void run_forward(const Scan& s, const DiagonalScanTensors& in, const Tensor& y, const Tensor& last,
                 const Tensor& starts) {
  launch(warp_blocks<Forward>("diagonal_scan_forward", s), diagonal_scan_forward, s,
         stored_values(in.u), pointer<double>(in.modes), pointer<float>(in.c),
         pointer_or_null<float>(in.d), pointer_or_null<float>(in.state), stored_results(y),
         pointer_or_null<float>(last), pointer_or_null<float>(starts));
}

}  // namespace

void diagonal_modes(const DiagonalScanTensors& in, bool bilinear) {
  const auto rule = in.rates<float>(bilinear);
  double* to = pointer<double>(in.modes);
  for_each("diagonal_modes", rule.H * rule.M,
           [=] __device__(int64_t i) { rule.put_mode(i, Math{}, to); });
}

void diagonal_rates_backward(const DiagonalScanTensors& in, bool bilinear,
                             const DiagonalScanTensors& to) {
  const auto rule = in.rates<float>(bilinear);
  const double* d = pointer<double>(to.modes);
  float *dstep = pointer<float>(to.log_step), *ddecay = pointer<float>(to.log_decay);
  float* dfrequency = pointer<float>(to.frequency);
  for_each("diagonal_step_gradients", rule.H, [=] __device__(int64_t h) {
    dstep[h] = static_cast<float>(rule.dlog_step(h, d, Math{}));
  });
  for_each("diagonal_pole_gradients", rule.rows * rule.M, [=] __device__(int64_t i) {
    const diagonal::RateGradient one = rule.dpole(i, d, Math{});
    ddecay[i] = static_cast<float>(one.log_decay);
    dfrequency[i] = static_cast<float>(one.frequency);
  });
}

void diagonal_scan(const Scan& scan, const DiagonalScanTensors& in, const Tensor& y,
                   const Tensor& last) {
  run_forward(scan, in, y, last, {});
}

void diagonal_scan_backward(const Scan& s, const DiagonalScanTensors& in, const Tensor& dy,
                            const Tensor& dlast, const DiagonalScanTensors& to) {
  const Device device = in.u.device();
  const auto zeros = [&](const Shape& shape) { return Tensor::zeros(shape, DType::f32, device); };
  const Tensor starts = Tensor::empty({s.B, s.H, tiles_of(s), s.M, 2}, DType::f32, device);
  const Tensor modes = zeros({s.B, s.H, s.M, 4}), c = zeros({s.B, s.G, s.H, s.M, 2});
  const Tensor d = in.d.defined() ? zeros({s.B, s.G, s.H}) : Tensor();
  run_forward(s, in, {}, {}, starts);
  const RowSums sums{pointer<float>(modes), pointer<float>(c), pointer_or_null<float>(d)};
  launch(warp_blocks<Backward>("diagonal_scan_adjoint", s), diagonal_scan_adjoint, s,
         stored_values(in.u), pointer<double>(in.modes), pointer<float>(in.c),
         pointer_or_null<float>(in.d), pointer<float>(starts), stored_values(dy),
         pointer_or_null<float>(dlast), sums, stored_results(to.u),
         pointer_or_null<float>(to.state));
  sum_rows(modes, to.modes);
  sum_rows(c, to.c);
  if (d.defined()) sum_rows(d, to.d);
}

}  // namespace linnet::cuda
