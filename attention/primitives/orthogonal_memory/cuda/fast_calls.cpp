#include "attention/primitives/orthogonal_memory/cuda/fast_calls.h"

#include "attention/primitives/orthogonal_memory/cuda/fast.h"
#include "attention/primitives/orthogonal_memory/cuda/whole.h"
#include "attention/tensor_core/aligned_views.h"
#include "core/cuda/elementwise.h"
#include "core/cuda/kernel.h"

namespace linnet::cuda {
namespace {

namespace fast = orthogonal_memory_fast;

int64_t chunks_of(const Tensor& x) {
  return (x.size(1) + fast::kChunkTokens - 1) / fast::kChunkTokens;
}

// Inputs of both passes.
template <typename Call>
Call call_of(const OrthogonalMemoryContext& context, const OrthogonalMemoryArrays& in) {
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

OrthogonalMemorySaved forward_whole(fast::Forward call, const OrthogonalMemoryArrays& in,
                                    const OrthogonalMemoryArrays& state_out, const Tensor& tokens) {
  const int64_t B = call.q.B, H = call.q.H, chunks = chunks_of(in.f);
  const int64_t entries = call.reads_codes() ? chunks : 1;
  const Device device = in.q.device();
  OrthogonalMemorySaved saved;
  saved.path = CallPath::tensor_cores;
  saved.tokens = tokens;
  saved.sums = Tensor::empty({B, entries, H, 2, call.rank}, DType::f32, device);
  saved.edges = Tensor::empty({B, chunks, H, 2, call.q.K}, DType::f32, device);
  saved.edge_counts = Tensor::empty({B, chunks, 3}, DType::i32, device);
  const Tensor counts = Tensor::empty({B, entries, 2}, DType::i64, device);
  call.saved.sums = pointer<float>(saved.sums);
  call.saved.counts = pointer<int64_t>(counts);
  const fast::Edges edges{pointer<float>(saved.edges), pointer<int32_t>(saved.edge_counts), chunks};
  fast::edge_sums(call, edges);
  fast::whole_totals(
      call, edges,
      {pointer_or_null<const float>(in.completed), pointer_or_null<const int64_t>(in.counts),
       pointer<float>(state_out.completed), pointer<float>(state_out.partial),
       pointer<int64_t>(state_out.counts)});
  fast::forward(call);
  return saved;
}

OrthogonalMemorySaved forward_causal(fast::Forward call, const OrthogonalMemoryContext& context,
                                     const OrthogonalMemoryArrays& in,
                                     const OrthogonalMemoryArrays& state_out,
                                     const Tensor& tokens) {
  const int64_t B = call.q.B, chunks = chunks_of(in.q);
  const Device device = in.q.device();
  OrthogonalMemorySaved saved;
  saved.path = CallPath::tensor_cores;
  saved.tokens = tokens;
  saved.sums = Tensor::empty({B, chunks, call.q.H, 2, call.rank}, DType::f32, device);
  saved.phases = Tensor::empty({B, chunks}, DType::i32, device);
  call.saved.sums = pointer<float>(saved.sums);
  call.saved.phases = pointer<int32_t>(saved.phases);
  call.positions = pointer_or_null<const int32_t>(context.positions);
  call.completed = pointer_or_null<const float>(in.completed);
  call.partial = pointer_or_null<const float>(in.partial);
  call.counts = pointer_or_null<const int64_t>(in.counts);
  call.completed_out = pointer<float>(state_out.completed);
  call.partial_out = pointer<float>(state_out.partial);
  call.counts_out = pointer<int64_t>(state_out.counts);
  fast::forward(call);
  return saved;
}

}  // namespace

OrthogonalMemorySaved orthogonal_memory_fast_forward(const OrthogonalMemoryContext& context,
                                                     const OrthogonalMemoryArrays& in,
                                                     const Tensor& y,
                                                     const OrthogonalMemoryArrays& state_out,
                                                     const Tensor& memory_tokens) {
  auto call = call_of<fast::Forward>(context, in);
  call.y = view_of<kernel_bf16>(y);
  call.tokens = pointer<int64_t>(memory_tokens);
  return call.whole ? forward_whole(call, in, state_out, memory_tokens)
                    : forward_causal(call, context, in, state_out, memory_tokens);
}

void orthogonal_memory_fast_backward(const OrthogonalMemoryContext& context,
                                     const OrthogonalMemoryArrays& in,
                                     const OrthogonalMemorySaved& saved, const Tensor& given_dy,
                                     const Tensor& dcompleted_out, const Tensor& dpartial_out,
                                     const OrthogonalMemoryArrays& gradients) {
  const Tensor dy = aligned(given_dy);
  auto call = call_of<fast::Backward>(context, in);
  const int64_t B = call.q.B, H = call.q.H, basis = in.basis.elements();
  const Device device = in.q.device();
  // One gradient of the basis for each run and row, and whole, one for the codes' terms.
  const int64_t slots = (call.split.runs + (call.whole ? 1 : 0)) * B;
  const Tensor dbasis = Tensor::empty({slots, basis}, DType::f32, device);
  call.saved.sums = pointer<float>(saved.sums);
  call.dy = view_of<const kernel_bf16>(dy);
  call.tokens = pointer<const int64_t>(saved.tokens);
  call.dq = view_of<kernel_bf16>(gradients.q);
  call.df = view_of<kernel_bf16>(gradients.f);
  call.dbasis = pointer<float>(dbasis);
  if (call.whole) {
    const int64_t chunks = chunks_of(in.f), entries = call.reads_codes() ? chunks : call.split.runs;
    const Tensor dsums = Tensor::empty({B, entries, H, 2, call.rank}, DType::f32, device);
    const Tensor dcodes =
        Tensor::empty({B, call.reads_codes() ? chunks : 1, H, 2, call.q.K}, DType::f32, device);
    call.dsums = pointer<float>(dsums);
    fast::backward(call);
    fast::WholeGradients to;
    to.entries = entries;
    to.dcompleted_out = pointer_or_null<const float>(dcompleted_out);
    to.dcompleted = pointer_or_null<float>(gradients.completed);
    to.dbasis = call.dbasis + call.split.runs * B * basis;
    to.dcodes = pointer<float>(dcodes);
    fast::whole_gradients(
        call, {pointer<float>(saved.edges), pointer<int32_t>(saved.edge_counts), chunks}, to);
    fast::spread_gradients(call, to);
    if (gradients.partial.defined()) gradients.partial.fill(0);
  } else {
    call.saved.phases = pointer<int32_t>(saved.phases);
    call.dcompleted_out = pointer_or_null<const float>(dcompleted_out);
    call.dpartial_out = pointer_or_null<const float>(dpartial_out);
    call.dcompleted = pointer_or_null<float>(gradients.completed);
    call.dpartial = pointer_or_null<float>(gradients.partial);
    fast::backward(call);
  }
  sum_rows(dbasis, gradients.basis.reshape({basis}), false);
}

}  // namespace linnet::cuda
