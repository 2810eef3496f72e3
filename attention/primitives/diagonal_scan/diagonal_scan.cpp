// Diagonal recurrences on Variables: conversion of dtypes, tensors saved for backward.
#include "attention/primitives/diagonal_scan/diagonal_scan.h"

#include <cmath>

#include "attention/primitives/common/binding.h"
#include "attention/primitives/diagonal_scan/cpu.h"
#include "attention/primitives/diagonal_scan/cuda/diagonal_scan.h"
#include "core/cuda/backend.h"
#include "core/kernel_choice.h"
#include "core/threads.h"

namespace linnet {
namespace {

using namespace diagonal;

constexpr const char* kName = "diagonal scan";

struct Math {
  double exp(double x) const { return std::exp(x); }
  double cos(double x) const { return std::cos(x); }
  double sin(double x) const { return std::sin(x); }
};

// One call: its tensors, and what the scan reads of the context.
struct Call {
  DiagonalScanTensors in;
  DiagonalScanContext context;  // keeps the masks that the scan points into
  Scan scan;

  bool bilinear() const { return context.discretization == Discretization::bilinear; }
};

template <typename T>
DiagonalScanInputs<T> inputs_of(const Call& call) {
  const DiagonalScanTensors& in = call.in;
  return {call.scan,      in.modes.data<double>(),   in.u.data<T>(),
          in.c.data<T>(), binding::pointer<T>(in.d), binding::pointer<T>(in.state)};
}

template <typename T>
void make_modes(const Call& call) {
  const auto rates = call.in.rates<T>(call.bilinear());
  double* to = call.in.modes.data<double>();
  parallel_for(rates.H * rates.M, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) rates.put_mode(i, Math{}, to);
  });
}

template <typename T>
void rate_gradients(const Call& call, const DiagonalScanTensors& to) {
  const auto rates = call.in.rates<T>(call.bilinear());
  const double* d = to.modes.data<double>();
  for (int64_t h = 0; h < rates.H; ++h) {
    to.log_step.data<T>()[h] = static_cast<T>(rates.dlog_step(h, d, Math{}));
  }
  for (int64_t i = 0; i < rates.rows * rates.M; ++i) {
    const RateGradient one = rates.dpole(i, d, Math{});
    to.log_decay.data<T>()[i] = static_cast<T>(one.log_decay);
    to.frequency.data<T>()[i] = static_cast<T>(one.frequency);
  }
}

// [B,T] of the device that u is on.
template <typename T>
const T* elements_of(const Tensor& x, DType dtype, const Tensor& u, const char* name) {
  if (!x.defined()) return nullptr;
  binding::check_leading(x, u, 2, kName, name);
  require(x.dtype() == dtype && x.device() == u.device(), kName, ": expected ", name, " of ",
          name_of(dtype), " on ", name_of(u.device()), ", got ", name_of(x.dtype()), " on ",
          name_of(x.device()));
  return static_cast<const T*>(x.raw());
}

void check_shapes(const DiagonalScanVariables& in, bool later) {
  const auto shape = [](const Variable& x) { return x.defined() ? x.shape() : Shape(); };
  require(shape(in.u).rank() == 3 && shape(in.c).rank() == 4 && shape(in.log_decay).rank() == 2,
          kName, ": expected u [B,T,H], c [G,H,M,2] and log_decay [1 or H,M], got ", shape(in.u),
          ", ", shape(in.c), ", ", shape(in.log_decay));
  const int64_t B = in.u.size(0), H = in.u.size(2), G = in.c.size(0), M = in.c.size(2);
  const int64_t rows = in.log_decay.size(0);
  require(in.c.shape() == Shape({G, H, M, 2}) && M > 0 && G > 0, kName, ": expected c [G,", H,
          ",M,2], got ", in.c.shape());
  require(shape(in.log_step) == Shape({H}) && (rows == 1 || rows == H) &&
              in.log_decay.size(1) == M && shape(in.frequency) == in.log_decay.shape(),
          kName, ": expected log_step [", H, "], log_decay and frequency [1 or ", H, ",", M,
          "], got ", shape(in.log_step), ", ", shape(in.log_decay), ", ", shape(in.frequency));
  require(!in.d.defined() || in.d.shape() == Shape({G, H}), kName, ": expected d [", G, ",", H,
          "], got ", shape(in.d));
  require(!in.state.defined() || in.state.shape() == Shape({B, H, M, 2}), kName,
          ": expected a state [", B, ",", H, ",", M, ",2], got ", shape(in.state));
  require(!later || !in.state.defined(), kName,
          ": a scan over later tokens continues from no state");
}

Call prepare(const DiagonalScanVariables& in, const DiagonalScanContext& context) {
  check_shapes(in, context.later);
  require_plain_allowed(kName, in.u.value());
  const Device device = in.u.value().device();
  const DType dtype = binding::computing_type(in.u);
  const bool on_device = on_cuda(in.u.value());
  require(!on_device || in.u.dtype() != DType::f64, kName, ": f64 is computed on the CPU only");
  const auto converted = [&](const Variable& x) {
    return binding::converted(x, dtype, kName, device);
  };
  Call call;
  call.context = context;
  Scan& scan = call.scan;
  scan = {in.u.size(0), in.u.size(1), in.u.size(2), in.c.size(2), in.c.size(0), context.later};
  call.in = {on_device ? in.u.value() : converted(in.u),
             converted(in.log_step),
             converted(in.log_decay),
             converted(in.frequency),
             converted(in.c),
             converted(in.d),
             converted(in.state),
             Tensor::empty({scan.H, scan.M, 4}, DType::f64, device)};
  scan.mask = elements_of<uint8_t>(context.mask, DType::u8, call.in.u, "mask");
  scan.segments = elements_of<int32_t>(context.segments, DType::i32, call.in.u, "segments");
  if constexpr (kCuda) {
    if (on_device) {
      cuda::diagonal_modes(call.in, call.bilinear());
      return call;
    }
  }
  binding::dispatch(dtype, [&](auto zero) { make_modes<decltype(zero)>(call); });
  return call;
}

void run_forward(const Call& call, const Tensor& y, const Tensor& last) {
  if constexpr (kCuda) {
    if (on_cuda(y)) return cuda::diagonal_scan(call.scan, call.in, y, last);
  }
  binding::dispatch(y.dtype(), [&](auto zero) {
    using T = decltype(zero);
    scan_forward<T>(inputs_of<T>(call), y.data<T>(), binding::pointer<T>(last));
  });
}

void run_backward(const Call& call, const Tensor& dy, const Tensor& dlast,
                  const DiagonalScanTensors& to) {
  if constexpr (kCuda) {
    if (on_cuda(dy)) {
      cuda::diagonal_scan_backward(call.scan, call.in, dy, dlast, to);
      return cuda::diagonal_rates_backward(call.in, call.bilinear(), to);
    }
  }
  binding::dispatch(dy.dtype(), [&](auto zero) {
    using T = decltype(zero);
    scan_backward<T>(inputs_of<T>(call), dy.data<T>(), binding::pointer<T>(dlast),
                     {to.u.data<T>(), to.modes.data<double>(), to.c.data<T>(),
                      binding::pointer<T>(to.d), binding::pointer<T>(to.state)});
    rate_gradients<T>(call, to);
  });
}

void add_gradients(Gradients& gradients, const Call& call) {
  using binding::empty_like;
  const Scan& s = call.scan;
  const DiagonalScanTensors& in = call.in;
  const Tensor dy = gradients.has_output(0)
                        ? gradients.output(0).to(in.u.dtype())
                        : Tensor::zeros({s.B, s.T, s.G, s.H}, in.u.dtype(), in.u.device());
  const Tensor dlast = s.later ? Tensor() : binding::output_or_none(gradients, 1);
  const DiagonalScanTensors d{
      empty_like(in.u), empty_like(in.log_step), empty_like(in.log_decay), empty_like(in.frequency),
      empty_like(in.c), empty_like(in.d),        empty_like(in.state),     empty_like(in.modes)};
  run_backward(call, dy, dlast, d);
  binding::add_all(gradients, {d.u, d.log_step, d.log_decay, d.frequency, d.c, d.d, d.state});
}

}  // namespace

DiagonalScanResult diagonal_scan(const DiagonalScanVariables& inputs,
                                 const DiagonalScanContext& context) {
  const Call call = prepare(inputs, context);
  const Scan& s = call.scan;
  const Device device = call.in.u.device();
  const Tensor y = Tensor::empty({s.B, s.T, s.G, s.H}, call.in.u.dtype(), device);
  Tensor last;
  if (!s.later) last = Tensor::empty({s.B, s.H, s.M, 2}, call.in.c.dtype(), device);
  run_forward(call, y, last);
  std::vector<Tensor> outputs{y.to(inputs.u.dtype())};
  if (!s.later) outputs.push_back(last);
  const std::vector<Variable> found =
      record_many(kName, std::move(outputs),
                  {inputs.u, inputs.log_step, inputs.log_decay, inputs.frequency, inputs.c,
                   inputs.d, inputs.state},
                  [call](Gradients& gradients) { add_gradients(gradients, call); });
  return {found[0], s.later ? Variable() : found[1]};
}

}  // namespace linnet
