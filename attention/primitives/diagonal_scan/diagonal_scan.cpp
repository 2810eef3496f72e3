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

// All of one call, in the computing type (on a device u as it is).
struct Call {
  Tensor u, log_step, log_decay, frequency, c, d, state, modes;
  DiagonalScanContext context;  // keeps the masks that the scan points into
  Scan scan;
  bool bilinear = false, on_device = false;
};

template <typename T>
Rates<T> rates_of(const Call& call) {
  return {call.scan.H,
          call.scan.M,
          call.log_decay.size(0),
          call.bilinear,
          call.log_step.data<T>(),
          call.log_decay.data<T>(),
          call.frequency.data<T>()};
}

template <typename T>
ScanInputs<T> inputs_of(const Call& call) {
  return {call.scan,        call.modes.data<double>(),   call.u.data<T>(),
          call.c.data<T>(), binding::pointer<T>(call.d), binding::pointer<T>(call.state)};
}

template <typename T>
void make_modes(const Call& call) {
  const Rates<T> rates = rates_of<T>(call);
  double* to = call.modes.data<double>();
  parallel_for(rates.H * rates.M, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Mode mode = rates.mode(i / rates.M, i % rates.M, Math{});
      to[4 * i] = mode.pole.re;
      to[4 * i + 1] = mode.pole.im;
      to[4 * i + 2] = mode.gain.re;
      to[4 * i + 3] = mode.gain.im;
    }
  });
}

template <typename T>
void rate_gradients(const Call& call, const Tensor& dmodes, const cuda::RateTensors& to) {
  const Rates<T> rates = rates_of<T>(call);
  const double* d = dmodes.data<double>();
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

void check_shapes(const DiagonalScanInputs& in, bool later) {
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

Call prepare(const DiagonalScanInputs& in, const DiagonalScanContext& context) {
  check_shapes(in, context.later);
  require_plain_allowed(kName, in.u.value());
  const Device device = in.u.value().device();
  const DType dtype = binding::computing_type(in.u);
  Call call;
  call.on_device = kCuda && on_cuda(in.u.value());
  require(!call.on_device || in.u.dtype() != DType::f64, kName,
          ": f64 is computed on the CPU only");
  call.u = call.on_device ? in.u.value() : binding::converted(in.u, dtype, kName, device);
  const auto converted = [&](const Variable& x) {
    return binding::converted(x, dtype, kName, device);
  };
  call.log_step = converted(in.log_step);
  call.log_decay = converted(in.log_decay);
  call.frequency = converted(in.frequency);
  call.c = converted(in.c);
  call.d = converted(in.d);
  call.state = converted(in.state);
  call.context = context;
  call.bilinear = context.discretization == Discretization::bilinear;
  Scan& scan = call.scan;
  scan = {in.u.size(0), in.u.size(1), in.u.size(2), in.c.size(2), in.c.size(0), context.later};
  scan.mask = elements_of<uint8_t>(context.mask, DType::u8, call.u, "mask");
  scan.segments = elements_of<int32_t>(context.segments, DType::i32, call.u, "segments");
  call.modes = Tensor::empty({scan.H, scan.M, 4}, DType::f64, device);
  if constexpr (kCuda) {
    if (call.on_device) {
      cuda::diagonal_modes({call.log_step, call.log_decay, call.frequency}, call.bilinear,
                           call.modes);
      return call;
    }
  }
  binding::dispatch(dtype, [&](auto zero) { make_modes<decltype(zero)>(call); });
  return call;
}

// The tensors of a call as the device takes them.
cuda::DiagonalTensors tensors_of(const Call& call) {
  return {call.u, call.modes, call.c, call.d, call.state};
}

void add_gradients(Gradients& gradients, const Call& call) {
  const Scan& s = call.scan;
  const Device device = call.u.device();
  const Tensor dy = gradients.has_output(0)
                        ? gradients.output(0).to(call.u.dtype())
                        : Tensor::zeros({s.B, s.T, s.G, s.H}, call.u.dtype(), device);
  const Tensor dlast = s.later ? Tensor() : binding::output_or_none(gradients, 1);
  const auto like = [](const Tensor& x) {
    return x.defined() ? Tensor::empty(x.shape(), x.dtype(), x.device()) : Tensor();
  };
  const Tensor dmodes = like(call.modes), du = like(call.u), dc = like(call.c), dd = like(call.d);
  const Tensor dstate = like(call.state);
  const cuda::RateTensors drates{like(call.log_step), like(call.log_decay), like(call.frequency)};
  if constexpr (kCuda) {
    if (call.on_device) {
      cuda::diagonal_scan_backward(s, tensors_of(call), dy, dlast, {du, dmodes, dc, dd, dstate});
      cuda::diagonal_rates_backward({call.log_step, call.log_decay, call.frequency}, call.bilinear,
                                    dmodes, drates);
    }
  }
  if (!call.on_device) {
    binding::dispatch(call.u.dtype(), [&](auto zero) {
      using T = decltype(zero);
      scan_backward<T>(inputs_of<T>(call), dy.data<T>(), binding::pointer<T>(dlast),
                       {du.data<T>(), dmodes.data<double>(), dc.data<T>(), binding::pointer<T>(dd),
                        binding::pointer<T>(dstate)});
      rate_gradients<T>(call, dmodes, drates);
    });
  }
  binding::add_all(gradients,
                   {du, drates.log_step, drates.log_decay, drates.frequency, dc, dd, dstate});
}

}  // namespace

DiagonalScanResult diagonal_scan(const DiagonalScanInputs& inputs,
                                 const DiagonalScanContext& context) {
  const Call call = prepare(inputs, context);
  const Scan& s = call.scan;
  const Device device = call.u.device();
  const Tensor y = Tensor::empty({s.B, s.T, s.G, s.H}, call.u.dtype(), device);
  Tensor last;
  if (!s.later) last = Tensor::empty({s.B, s.H, s.M, 2}, call.c.dtype(), device);
  if constexpr (kCuda) {
    if (call.on_device) cuda::diagonal_scan(s, tensors_of(call), y, last);
  }
  if (!call.on_device) {
    binding::dispatch(call.u.dtype(), [&](auto zero) {
      using T = decltype(zero);
      scan_forward<T>(inputs_of<T>(call), y.data<T>(), binding::pointer<T>(last));
    });
  }
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
