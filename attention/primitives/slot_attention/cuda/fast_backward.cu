// The two scans of the backward pass, those of further parts of wide heads, and what lies between
// them.
#include <algorithm>
#include <vector>

#include "attention/primitives/slot_attention/cuda/fast_backward.h"

namespace linnet::cuda::slot_attention_fast {

namespace {

using namespace backward_detail;

int64_t time_of(const Backward& call) {
  return std::max(call.q.T, call.k.T);
}

// One side of wide heads, keys or values: their columns beyond the first kPart.
struct Side {
  PartArguments part{};
  int count = 0;
  Tensor offsets;  // [count,B,T,H]

  Side(const Reads& readers, const Reads& own, const float* memory_in, const Backward& call) {
    part.readers = readers;
    part.own = own;
    part.memory_in = memory_in;
    count = static_cast<int>((own.K - 1) / kPart);
    offsets = Tensor::empty({count, call.q.B, time_of(call), call.q.H}, DType::f32, call.device);
  }
  PartOffsets part_offsets() const {
    return {pointer<float>(offsets), count, count == 0 ? 0 : offsets.elements() / count};
  }
  // Calls body with the arguments of each part.
  template <typename Body>
  void for_parts(const Body& body) {
    for (int i = 0; i < count; ++i) {
      part.first = (i + 1) * kPart;
      part.offsets = pointer<float>(offsets) + i * part_offsets().stride;
      body();
    }
  }
  // Their reads, added up: f32 [B,T,H,N], undefined where there are no parts.
  Tensor reads(const BackwardArguments& a, const Shape& shape) {
    if (count == 0) return {};
    const Tensor sums = Tensor::empty(shape, DType::f32, offsets.device());
    part.products = pointer<float>(sums);
    part.gathered = {};
    for_parts([&] {
      part.accumulate = part.first > kPart;
      run_part_reads(a, part);
    });
    return sums;
  }
};

// The slots of one launch, from the first scan to the second.
struct SlotPart {
  BackwardArguments a;
  Tensor normalizers, tiles;  // of chunks
  Side keys, values;
  Tensor reads, dreads;  // of further parts of both sides
  Tensor sums;           // sums of further parts for normalizers

  // Reads, and the first scan.
  SlotPart(const BackwardArguments& all, const Backward& call, const SlotReading& reading)
      : a(all),
        keys(call.q, call.k, call.state_in.keys, call),
        values(call.d_o, call.v, call.state_in.values, call) {
    const int64_t B = call.q.B, T = time_of(call), H = call.q.H, N = reading.slots;
    const int64_t chunks = a.chunks(T);
    normalizers = Tensor::empty({H, chunks, N}, DType::f64, call.device);
    tiles = Tensor::empty({H, chunks}, DType::i64, call.device);
    sums = Tensor::empty({a.scans, H, N}, DType::f32, call.device);
    a.reading = reading;
    a.logits = reading.of(call.logits);
    a.dlogits = reading.of(call.dlogits);
    a.chunk_normalizers = pointer<double>(normalizers);
    a.chunk_tiles = pointer<int64_t>(tiles);
    const int64_t before = reading.first * B * T * H;
    a.probabilities = {all.probabilities.data + before, B, T, H, N};
    a.dreads = {all.dreads.data + before, B, T, H, N};
    a.kept_probabilities = a.probabilities;
    a.kept_dreads = a.dreads;
    reads = keys.reads(a, {B, T, H, N});
    dreads = values.reads(a, {B, T, H, N});
    a.other_reads = pointer_or_null<float>(reads);
    a.other_dreads = pointer_or_null<float>(dreads);
    a.key_offsets = keys.part_offsets();
    a.value_offsets = values.part_offsets();
    const int64_t number = reading.first / kSlots * B * T * H;
    a.shifts += number;
    a.means += number;
    a.entropies += number;
    if (reading.all > kSlots) a.dq = {};  // of all slots, later
    run_queries(a);
    a.shifts = all.shifts;
    a.means = all.means;
    a.entropies = all.entropies;
  }

  // dq as the first scan leaves it, and as the second does.
  void finish(const Backward& call) {
    a.adds = a.reading.first > 0;
    keys.part.gathered = call.dq;
    if (call.dq.data != nullptr && a.reading.all > kSlots) {
      keys.part.first = 0;
      run_part_reads(a, keys.part);
    }
    keys.for_parts([&] {
      if (call.dq.data != nullptr) run_part_reads(a, keys.part);
    });
    // Reads are used up: their place gets the parts' terms of logits.
    const Tensor& dlogits = reads.defined() ? reads : dreads;
    keys.part.passed = a.kept_dreads;
    values.part.passed = a.kept_probabilities;
    keys.part.factor = a.reading.scale;
    values.part.factor = a.dropout.row.keep;
    values.part.of_values = true;
    keys.part.gathered = call.dk;
    values.part.gathered = call.dv;
    keys.part.dmemory_out = call.dkeys_out;
    values.part.dmemory_out = call.dvalues_out;
    keys.part.dmemory_in = call.dkeys_in;
    values.part.dmemory_in = call.dvalues_in;
    bool accumulate = false;
    for (Side* side : {&keys, &values}) {
      side->part.products = pointer_or_null<float>(dlogits);
      side->part.sums = pointer<float>(sums);
      side->for_parts([&] {
        side->part.accumulate = accumulate;
        accumulate = true;
        run_part_gradients(a, side->part);
      });
    }
    a.other_dlogits = pointer_or_null<float>(dlogits);
    if (accumulate) a.other_sums = pointer<float>(sums);
    run_keys(a);
  }
};

}  // namespace

void backward(const Backward& call) {
  const int64_t B = call.q.B, T = time_of(call), H = call.q.H, N = call.logits.K;
  const int64_t rows = B * T * H, parts = (N + kSlots - 1) / kSlots;
  const auto scratch = [&](const Shape& shape, DType dtype) {
    return Tensor::empty(shape, dtype, call.device);
  };
  const Tensor probabilities = scratch({N * rows}, DType::bf16);
  const Tensor dreads = scratch({N * rows}, DType::bf16);
  const Shape every_part({parts, B, T, H});
  const Tensor shifts = scratch(every_part, DType::f32);
  const Tensor means = scratch(every_part, DType::f32);
  const Tensor entropies = scratch(every_part, DType::f32);
  BackwardArguments a{};
  a.q = call.q;
  a.k = call.k;
  a.v = call.v;
  a.d_o = call.d_o;
  a.dq = call.dq;
  a.dk = call.dk;
  a.dv = call.dv;
  a.query_mask = call.query_mask;
  a.key_mask = call.key_mask;
  a.segments = call.segments;
  a.spans = call.spans.table;
  a.scans = call.spans.memories(B);
  a.in = call.state_in;
  a.dkeys_out = call.dkeys_out;
  a.dvalues_out = call.dvalues_out;
  a.dkeys_in = call.dkeys_in;
  a.dvalues_in = call.dvalues_in;
  a.dsums = call.dsums;
  a.dropout = Dropout::of(call);
  a.probabilities.data = pointer<kernel_bf16>(probabilities);
  a.dreads.data = pointer<kernel_bf16>(dreads);
  a.shifts = pointer<float>(shifts);
  a.means = pointer<float>(means);
  a.entropies = pointer<float>(entropies);

  std::vector<SlotPart> slots;
  for_slots(call.options, N,
            [&](const SlotReading& reading) { slots.emplace_back(a, call, reading); });
  if (parts > 1) {
    run_join({rows, static_cast<int>(parts), static_cast<int>(N),
              static_cast<float>(call.options.scale), a.probabilities.data, a.dreads.data, a.shifts,
              a.means, a.entropies});
  }
  for (SlotPart& part : slots) part.finish(call);
}

}  // namespace linnet::cuda::slot_attention_fast
