// The two walks of the backward pass, those of further parts of wide heads, and what lies between
// them.
#include <algorithm>

#include "attention/primitives/cuda/slot_attention_fast_backward.h"

namespace linnet::cuda::slot_attention_fast {

namespace {

using namespace backward_detail;

// One side of wide heads, keys or values: their columns beyond the first kPart.
struct Side {
  PartArguments part{};
  int count = 0;
  Tensor offsets;  // [count,B,T,H]

  Side(const Reads& readers, const Reads& own, const float* memory_in, const Tensor& like) {
    part.readers = readers;
    part.own = own;
    part.memory_in = memory_in;
    count = static_cast<int>((own.K - 1) / kPart);
    offsets =
        Tensor::empty({count, like.size(0), like.size(1), like.size(2)}, DType::f32, like.device());
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

}  // namespace

void backward(const Backward& call) {
  const int64_t B = call.q.B, T = std::max(call.q.T, call.k.T), H = call.q.H, N = call.logits.K;
  const auto scratch = [&](const Shape& shape, DType dtype) {
    return Tensor::empty(shape, dtype, call.device);
  };
  const Tensor probabilities = scratch({B, T, H, N}, DType::bf16);
  const Tensor dreads = scratch({B, T, H, N}, DType::bf16);
  const Tensor shifts = scratch({B, T, H}, DType::f32), means = scratch({B, T, H}, DType::f32);
  const Tensor entropies = scratch({B, T, H}, DType::f32);
  BackwardArguments a{};
  a.q = call.q;
  a.k = call.k;
  a.v = call.v;
  a.logits = call.logits;
  a.d_o = call.d_o;
  a.dq = call.dq;
  a.dk = call.dk;
  a.dv = call.dv;
  a.dlogits = call.dlogits;
  a.query_mask = call.query_mask;
  a.key_mask = call.key_mask;
  a.segments = call.segments;
  a.spans = call.spans.table;
  a.walks = call.spans.memories(B);
  a.in = call.state_in;
  a.dkeys_out = call.dkeys_out;
  a.dvalues_out = call.dvalues_out;
  a.dkeys_in = call.dkeys_in;
  a.dvalues_in = call.dvalues_in;
  a.dsums = call.dsums;
  a.reading = {static_cast<float>(call.options.scale), static_cast<int>(N),
               call.options.mask_empty};
  a.dropout = Dropout::of(call);
  a.probabilities = {pointer<kernel_bf16>(probabilities), B, T, H, N};
  a.dreads = {pointer<kernel_bf16>(dreads), B, T, H, N};
  a.kept_probabilities = a.probabilities;
  a.kept_dreads = a.dreads;
  a.shifts = pointer<float>(shifts);
  a.means = pointer<float>(means);
  a.entropies = pointer<float>(entropies);
  const int64_t chunks = a.chunks(T);
  const Tensor masses = scratch({H, chunks, N}, DType::f64);
  const Tensor tiles = scratch({H, chunks}, DType::i64);
  a.chunk_masses = pointer<double>(masses);
  a.chunk_tiles = pointer<int64_t>(tiles);

  Side keys(call.q, call.k, call.state_in.keys, shifts);
  Side values(call.d_o, call.v, call.state_in.values, shifts);
  const Shape every_slot({B, T, H, N});
  const Tensor reads = keys.reads(a, every_slot), dreads_of_parts = values.reads(a, every_slot);
  a.other_reads = pointer_or_null<float>(reads);
  a.other_dreads = pointer_or_null<float>(dreads_of_parts);
  a.key_offsets = keys.part_offsets();
  a.value_offsets = values.part_offsets();
  run_queries(a);

  keys.part.gathered = call.dq;
  keys.for_parts([&] {
    if (call.dq.data != nullptr) run_part_reads(a, keys.part);
  });
  // Reads are used up: their place gets what parts say to logits.
  const Tensor& dlogits = reads.defined() ? reads : dreads_of_parts;
  const Tensor sums = scratch({a.walks, H, N}, DType::f32);
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

}  // namespace linnet::cuda::slot_attention_fast
