// The steps of the orthogonal memory on a device: projections, sums along time, reads.
#include "attention/primitives/orthogonal_memory/cuda/orthogonal_memory.h"

#include "attention/primitives/common/binding.h"
#include "attention/primitives/orthogonal_memory/cuda/fast_calls.h"
#include "attention/primitives/orthogonal_memory/cuda/kernels.h"
#include "attention/primitives/orthogonal_memory/cuda/path.h"
#include "attention/primitives/orthogonal_memory/cuda/step.h"
#include "core/cuda/elementwise.h"
#include "core/cuda/kernel.h"

namespace linnet::cuda {
namespace {

using namespace orthogonal_memory_detail;

// The call without results; its plan is not made yet. Throws Error on shapes that do not fit.
Problem problem_of(const OrthogonalMemoryContext& context, const OrthogonalMemoryTensors& in) {
  const Tensor &q = in.q, &f = in.f, &basis = in.basis;
  const OrthogonalMemoryOptions& options = context.options;
  const bool segmented = context.segments.defined() && !context.cross;
  const int64_t rank = basis.size(options.shared ? 0 : 1);
  check_orthogonal_memory(binding::sizes_of(q), binding::sizes_of(f), rank, options, !segmented);
  Problem p{};
  p.rows = q.size(0);
  p.queries = q.size(1);
  p.codes = f.size(1);
  p.heads = q.size(2);
  p.width = q.size(3);
  p.rank = rank;
  p.memories = options.shared ? 1 : p.heads;
  p.sums_per_token = options.scope != MemoryScope::whole || segmented;
  p.scope = options.scope;
  p.window = options.window;
  p.scale = static_cast<float>(options.scale);
  p.basis = pointer<const float>(basis);
  p.basis_head_stride = options.shared ? p.width : p.rank * p.width;
  p.basis_row_stride = options.shared ? p.heads * p.width : p.width;
  p.query_mask = pointer_or_null<const uint8_t>(context.query_mask);
  p.code_mask = pointer_or_null<const uint8_t>(context.code_mask);
  if (!context.cross) {
    p.segments = pointer_or_null<const int32_t>(context.segments);
    p.positions = pointer_or_null<const int32_t>(context.positions);
  }
  p.drops = options.dropout > 0;
  p.dropout = RowDropout(options.dropout, options.dropout_key, p.heads * p.rank);
  p.examples = pointer_or_null<const int64_t>(context.place.examples);
  p.time_offset = context.place.time_offset;
  p.completed = pointer_or_null<const float>(in.completed);
  p.partial = pointer_or_null<const float>(in.partial);
  p.counts = pointer_or_null<const int64_t>(in.counts);
  return p;
}

// Makes the plan; the tokens' reads.
Tensor plan_and_sum(const Problem& p, const Tensor& f) {
  make_plan(p);
  return sum_codes(p, project_codes(p, f));
}

}  // namespace

OrthogonalMemorySaved orthogonal_memory_forward(const OrthogonalMemoryContext& context,
                                                const OrthogonalMemoryTensors& in, const Tensor& y,
                                                const OrthogonalMemoryTensors& state_out,
                                                const Tensor& memory_tokens) {
  Problem p = problem_of(context, in);
  if (orthogonal_memory_is_fast(context, in)) {
    return orthogonal_memory_fast_forward(context, in, y, state_out, memory_tokens);
  }
  p.completed_out = pointer<float>(state_out.completed);
  p.partial_out = pointer<float>(state_out.partial);
  p.counts_out = pointer<int64_t>(state_out.counts);
  p.tokens = pointer<int64_t>(memory_tokens);
  if (is_orthogonal_memory_step(context, in)) {
    orthogonal_memory_step(p, in, y);
    return {};
  }
  const Tensor marks = Tensor::empty({p.rows, p.codes}, DType::u8, y.device());
  p.marks = pointer<uint8_t>(marks);
  const Tensor sums = plan_and_sum(p, in.f);
  const Tensor weights = project(p, in.q, p.query_mask);
  read_weights(p, sums, weights);
  expand(p, weights, nullptr, y);
  return {};
}

void orthogonal_memory_backward(const OrthogonalMemoryContext& context,
                                const OrthogonalMemoryTensors& in,
                                const OrthogonalMemorySaved& saved, const Tensor& dy,
                                const Tensor& dcompleted_out, const Tensor& dpartial_out,
                                const OrthogonalMemoryTensors& gradients) {
  if (saved.path == CallPath::tensor_cores && orthogonal_memory_backward_is_fast(in)) {
    return orthogonal_memory_fast_backward(context, in, saved, dy, dcompleted_out, dpartial_out,
                                           gradients);
  }
  Problem p = problem_of(context, in);
  const Device device = in.q.device();
  const Tensor marks = Tensor::empty({p.rows, p.codes}, DType::u8, device);
  const Tensor tokens = Tensor::empty({p.rows, p.queries}, DType::i64, device);
  p.marks = pointer<uint8_t>(marks);
  p.tokens = pointer<int64_t>(tokens);
  p.dcompleted_out = pointer_or_null<const float>(dcompleted_out);
  p.dpartial_out = pointer_or_null<const float>(dpartial_out);
  p.dcompleted = pointer_or_null<float>(gradients.completed);
  p.dpartial = pointer_or_null<float>(gradients.partial);
  const Tensor sums = plan_and_sum(p, in.f);
  const Tensor dqueries = project(p, in.q, p.query_mask);
  const Tensor dreads = project(p, dy, p.query_mask);
  const Tensor weights = Tensor::empty(dqueries.shape(), DType::f32, device);
  read_gradients(p, sums, dqueries, dreads, weights);
  expand(p, dqueries, nullptr, gradients.q);
  const Tensor dcodes = sum_gradients(p, dreads);
  expand(p, dcodes, p.code_mask, gradients.f);

  bool accumulate = false;
  const auto add = [&](const Tensor& left, const Tensor& right, const uint8_t* mask) {
    cuda::sum_rows(basis_gradients(p, left, right, mask),
                   gradients.basis.reshape({gradients.basis.elements()}), accumulate);
    accumulate = true;
  };
  add(weights, dy, p.query_mask);
  add(dqueries, in.q, p.query_mask);
  add(dcodes, in.f, p.code_mask);
}

}  // namespace linnet::cuda
