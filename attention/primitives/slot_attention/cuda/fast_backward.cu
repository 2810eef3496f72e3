// The two scans of the backward pass, those of further parts of wide heads, and what lies between
// them.
#include <vector>

#include "attention/primitives/slot_attention/cuda/fast_ends.h"
#include "attention/primitives/slot_attention/cuda/fast_starts.h"

namespace linnet::cuda::slot_attention_fast {

namespace {

using namespace backward_detail;

// That share a multiprocessor in both scans: registers bound them.
constexpr int64_t kBlocks = 2;
// The time that the memories and gradients at the edges of splits take, in eighths of both scans:
// of a chunk 1,165 and 2,258 instructions a warp, against 3,488 and 4,277 (N = K = V = 64,
// counted).
constexpr int64_t kEdgeEighths = 4;

// Of given weights, a memory that is only written needs one scan, whose gradients are all that
// comes in: no memories, and nothing at the edges of splits.
bool has_first_scan(const Backward& call) {
  return !call.given.are || call.q.T > 0;
}

// One side of wide heads, keys or values: their columns beyond the first kPart.
struct WideSide {
  bool of_values;
  int count;
  Tensor offsets;  // [count,B,T,H]
  Tensor reads;    // added up: f32 [B,T,H,N]; undefined where there are no parts

  WideSide(const Backward& call, bool of_values)
      : of_values(of_values),
        count(static_cast<int>(((of_values ? call.v : call.k).K - 1) / kPart)),
        offsets(Tensor::empty({count, call.q.B, call.time(), call.q.H}, DType::f32, call.device)) {}

  PartOffsets part_offsets() const {
    return {pointer<float>(offsets), count, count == 0 ? 0 : offsets.elements() / count};
  }
  // Calls body with each part, whose terms are added up in `products`.
  template <typename Body>
  void for_parts(const Tensor& products, const Body& body) const {
    const PartOffsets all = part_offsets();
    for (int i = 0; i < count; ++i) {
      body(WidePart{(i + 1) * kPart, i > 0, pointer_or_null<float>(products),
                    pointer<float>(offsets) + i * all.stride, nullptr});
    }
  }
  void read(const Backward& call, const BackwardWork& work) {
    if (count == 0) return;
    reads =
        Tensor::empty({call.q.B, call.time(), call.q.H, call.logits.K}, DType::f32, call.device);
    for_parts(reads, [&](const WidePart& part) { run_part_reads(call, work, of_values, part); });
  }
};

// The slots of one launch, from the first scan to the second.
struct SlotPart {
  Backward call;  // of these slots
  BackwardWork work;
  Tensor normalizers, tiles;  // of chunks
  WideSide keys, values;
  Tensor sums;  // of further parts, for normalizers

  // Reads, and the first scan.
  SlotPart(const Backward& part, const BackwardWork& all)
      : call(part), work(all), keys(call, false), values(call, true) {
    const int64_t B = call.q.B, T = call.time(), H = call.q.H, N = call.logits.K;
    const SlotReading& reading = call.reading;
    normalizers = Tensor::empty({H, work.chunks, N}, DType::f64, call.device);
    tiles = Tensor::empty({H, work.chunks}, DType::i64, call.device);
    sums = Tensor::empty({call.memories(), H, N}, DType::f32, call.device);
    call.dlogits = reading.of(call.dlogits);
    work.adds = reading.first > 0;
    work.chunk_normalizers = pointer<double>(normalizers);
    work.chunk_tiles = pointer<int64_t>(tiles);
    const int64_t before = reading.first * B * T * H;
    work.probabilities = {all.probabilities.data + before, B, T, H, N};
    work.dreads = {all.dreads.data + before, B, T, H, N};
    work.kept_probabilities = work.probabilities;
    work.kept_dreads = work.dreads;
    keys.read(call, work);
    values.read(call, work);
    work.other_reads = pointer_or_null<float>(keys.reads);
    work.other_dreads = pointer_or_null<float>(values.reads);
    work.key_offsets = keys.part_offsets();
    work.value_offsets = values.part_offsets();
    Backward first = call;
    if (reading.all > kSlots) first.dq = {};  // of all slots, later
    BackwardWork own = work;
    const int64_t number = reading.first / kSlots * B * T * H;
    own.shifts += number;
    own.means += number;
    own.entropies += number;
    if (has_first_scan(call)) run_queries(first, own);
  }

  // What each split adds to the gradients before it.
  void sum_splits(const SplitSums& to) const {
    run_key_sums(call, work, to);
    for (const WideSide* side : {&keys, &values}) {
      side->for_parts(
          {}, [&](const WidePart& part) { run_part_sums(call, work, side->of_values, part, to); });
    }
  }

  // dq as the first scan leaves it, and as the second does.
  void finish(const Ends& ends) {
    ends.give(call, work);
    if (call.dq.data != nullptr) {
      if (call.reading.all > kSlots) run_part_dq(call, work, 0);
      for (int i = 1; i <= keys.count; ++i) run_part_dq(call, work, i * kPart);
    }
    // Reads are used up: their place gets the parts' terms of logits.
    const Tensor& dlogits = keys.reads.defined() ? keys.reads : values.reads;
    bool accumulate = false;
    for (const WideSide* side : {&keys, &values}) {
      side->for_parts(dlogits, [&](WidePart part) {
        part.accumulate = accumulate;
        part.sums = pointer<float>(sums);
        accumulate = true;
        run_part_gradients(call, work, side->of_values, part);
      });
    }
    work.other_dlogits = pointer_or_null<float>(dlogits);
    if (accumulate) work.other_sums = pointer<float>(sums);
    run_keys(call, work);
  }
};

}  // namespace

tensor_core::SplitSizes backward_splits(const Backward& call) {
  if (!call.can_split()) return {1, call.time()};
  return tensor_core::split_sizes(call.time(), call.memories() * call.q.H,
                                  kBlocks * tensor_core::kMultiprocessors,
                                  {0, has_first_scan(call) ? kEdgeEighths : 0});
}

void backward(const Backward& call) {
  const tensor_core::SplitSizes splits = backward_splits(call);
  const Starts starts(call, splits, has_first_scan(call));
  Backward cut = call;
  starts.give(cut);
  const int64_t B = call.q.B, T = call.time(), H = call.q.H, N = call.logits.K;
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
  BackwardWork work{};
  work.splits = static_cast<unsigned>(splits.count);
  work.chunks = B * ((T + kChunk - 1) / kChunk) + call.memories();
  work.probabilities.data = pointer<kernel_bf16>(probabilities);
  work.dreads.data = pointer<kernel_bf16>(dreads);
  work.shifts = pointer<float>(shifts);
  work.means = pointer<float>(means);
  work.entropies = pointer<float>(entropies);

  std::vector<SlotPart> slots;
  for_slots(cut, [&](const Backward& part) { slots.emplace_back(part, work); });
  if (parts > 1 && has_first_scan(call)) run_join(call, work);
  Ends ends(call, splits.count);
  if (splits.count > 1) {
    for (const SlotPart& part : slots) part.sum_splits(ends.sums());
    // Sums of given weights pass their gradients on as they are.
    ends.join(call.given.are ? nullptr : starts.normalizers());
  }
  for (SlotPart& part : slots) part.finish(ends);
}

}  // namespace linnet::cuda::slot_attention_fast
