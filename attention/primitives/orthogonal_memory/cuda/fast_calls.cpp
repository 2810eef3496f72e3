#include "attention/primitives/orthogonal_memory/cuda/fast_calls.h"

#include "attention/primitives/orthogonal_memory/cuda/fast.h"
#include "attention/primitives/orthogonal_memory/cuda/whole.h"
#include "attention/tensor_core/aligned_views.h"
#include "core/cuda/elementwise.h"
#include "core/cuda/kernel.h"

namespace linnet::cuda {
namespace {

namespace fast = orthogonal_memory_fast;

// What both passes read, but for what is saved.
template <typename Call>
Call call_of(const OrthogonalMemoryContext& context, const OrthogonalMemoryTensors& in) {
  Call call;
  call.q = view_of<const kernel_bf16>(in.q);
  call.f = view_of<const kernel_bf16>(in.f);
  call.query_mask = pointer_or_null<const uint8_t>(context.query_mask);
  call.code_mask = pointer_or_null<const uint8_t>(context.code_mask);
  if (!context.cross) call.segments = pointer_or_null<const int32_t>(context.segments);
  call.basis = pointer<const float>(in.basis);
  call.rank = static_cast<int>(in.basis.size(1));
  call.whole = context.options.scope == MemoryScope::whole;
  call.inclusive = context.options.scope == MemoryScope::prefix;
  if (context.options.scope == MemoryScope::completed_windows) {
    call.window = static_cast<int>(context.options.window);
  }
  call.scale = static_cast<float>(context.options.scale);
  call.drops = context.options.dropout > 0;
  call.dropout =
      RowDropout(context.options.dropout, context.options.dropout_key, call.q.H * call.rank);
  call.examples = pointer_or_null<const int64_t>(context.place.examples);
  call.time_offset = context.place.time_offset;
  if (call.whole) call.split = fast::chunk_runs(call.q.B * call.q.H, call.q.T);
  return call;
}

void set_saved(fast::Inputs& call, const OrthogonalMemorySaved& saved) {
  call.tokens = pointer<int64_t>(saved.tokens);
  call.saved.sums = pointer<float>(saved.sums);
  call.saved.phases = pointer_or_null<int32_t>(saved.phases);
  call.saved.edges = pointer_or_null<float>(saved.edges);
  call.saved.edge_counts = pointer_or_null<int32_t>(saved.edge_counts);
}

}  // namespace

OrthogonalMemorySaved orthogonal_memory_fast_forward(const OrthogonalMemoryContext& context,
                                                     const OrthogonalMemoryTensors& in,
                                                     const Tensor& y,
                                                     const OrthogonalMemoryTensors& state_out,
                                                     const Tensor& memory_tokens) {
  auto call = call_of<fast::Forward>(context, in);
  call.y = view_of<kernel_bf16>(y);
  if (!call.whole) call.positions = pointer_or_null<const int32_t>(context.positions);
  call.completed = pointer_or_null<const float>(in.completed);
  call.partial = pointer_or_null<const float>(in.partial);
  call.counts = pointer_or_null<const int64_t>(in.counts);
  call.completed_out = pointer<float>(state_out.completed);
  call.partial_out = pointer<float>(state_out.partial);
  call.counts_out = pointer<int64_t>(state_out.counts);

  const int64_t B = call.q.B, H = call.q.H, chunks = call.chunks();
  const int64_t entries = call.reads_codes() ? chunks : 1;
  const Device device = y.device();
  OrthogonalMemorySaved saved;
  saved.path = CallPath::tensor_cores;
  saved.tokens = memory_tokens;
  saved.sums = Tensor::empty({B, entries, H, 2, call.rank}, DType::f32, device);
  Tensor counts;
  if (call.whole) {
    saved.edges = Tensor::empty({B, chunks, H, 2, call.q.K}, DType::f32, device);
    saved.edge_counts = Tensor::empty({B, chunks, 3}, DType::i32, device);
    counts = Tensor::empty({B, entries, 2}, DType::i64, device);
    call.saved.counts = pointer<int64_t>(counts);
  } else {
    saved.phases = Tensor::empty({B, chunks}, DType::i32, device);
  }
  set_saved(call, saved);
  if (call.whole) {
    fast::edge_sums(call);
    fast::whole_totals(call);
  }
  fast::forward(call);
  return saved;
}

void orthogonal_memory_fast_backward(const OrthogonalMemoryContext& context,
                                     const OrthogonalMemoryTensors& in,
                                     const OrthogonalMemorySaved& saved, const Tensor& given_dy,
                                     const Tensor& dcompleted_out, const Tensor& dpartial_out,
                                     const OrthogonalMemoryTensors& gradients) {
  const Tensor dy = aligned(given_dy);
  auto call = call_of<fast::Backward>(context, in);
  set_saved(call, saved);
  const int64_t B = call.q.B, H = call.q.H, basis = in.basis.elements();
  const Device device = in.q.device();
  // One gradient of the basis for each run and row, and whole, one for the codes' terms.
  const int64_t slots = (call.split.runs + (call.whole ? 1 : 0)) * B;
  const Tensor dbasis = Tensor::empty({slots, basis}, DType::f32, device);
  call.dy = view_of<const kernel_bf16>(dy);
  call.dq = view_of<kernel_bf16>(gradients.q);
  call.df = view_of<kernel_bf16>(gradients.f);
  call.dbasis = pointer<float>(dbasis);
  call.dcompleted_out = pointer_or_null<const float>(dcompleted_out);
  call.dpartial_out = pointer_or_null<const float>(dpartial_out);
  call.dcompleted = pointer_or_null<float>(gradients.completed);
  call.dpartial = pointer_or_null<float>(gradients.partial);
  Tensor dsums, dcodes;
  if (call.whole) {
    dsums = Tensor::empty({B, call.entries(), H, 2, call.rank}, DType::f32, device);
    dcodes = Tensor::empty({B, call.reads_codes() ? call.chunks() : 1, H, 2, call.q.K}, DType::f32,
                           device);
    call.dsums = pointer<float>(dsums);
  }
  fast::backward(call);
  if (call.whole) {
    fast::whole_gradients(call, pointer<float>(dcodes));
    fast::spread_gradients(call, pointer<const float>(dcodes));
    if (gradients.partial.defined()) gradients.partial.fill(0);
  }
  sum_rows(dbasis, gradients.basis.reshape({basis}), false);
}

}  // namespace linnet::cuda
