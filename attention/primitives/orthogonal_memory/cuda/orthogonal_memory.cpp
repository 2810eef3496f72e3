// The steps of the orthogonal memory on a device: projections, sums along time, reads.
#include "attention/primitives/orthogonal_memory/cuda/orthogonal_memory.h"

#include "attention/primitives/orthogonal_memory/cuda/fast_calls.h"
#include "attention/primitives/orthogonal_memory/cuda/kernels.h"
#include "attention/primitives/orthogonal_memory/cuda/path.h"
#include "attention/primitives/orthogonal_memory/cuda/step.h"
#include "core/cuda/elementwise.h"
#include "core/error.h"

namespace linnet::cuda {
namespace {

using namespace orthogonal_memory_detail;

Sizes sizes_of(const OrthogonalMemoryContext& context, const OrthogonalMemoryArrays& in) {
  const Tensor &q = in.q, &f = in.f, &basis = in.basis;
  require(f.size(0) == q.size(0) && f.size(2) == q.size(2) && f.size(3) == q.size(3),
          "orthogonal memory: q ", q.shape(), " and f ", f.shape(), " do not fit together");
  const OrthogonalMemoryOptions& options = context.options;
  const bool whole = options.scope == MemoryScope::whole;
  const bool segmented = context.segments.defined() && !context.cross;
  require(options.scope != MemoryScope::completed_windows || options.window >= 1,
          "orthogonal memory: windows need at least 1 position, got ", options.window);
  require(f.size(1) == q.size(1) || (whole && !segmented), "orthogonal memory: ", f.size(1),
          " codes for ", q.size(1),
          " queries are for cross-attention only: ", "scope whole, one span a row");
  const int64_t H = q.size(2), d = q.size(3), r = basis.size(options.shared ? 0 : 1);
  require(r > 0, "orthogonal memory: it needs a basis of rank > 0");
  return {q.size(0),
          q.size(1),
          f.size(1),
          H,
          d,
          r,
          options.shared ? 1 : H,
          !whole || segmented,
          options.shared ? d : r * d,
          options.shared ? H * d : d,
          options.scope,
          options.window};
}

Plan plan_of(const OrthogonalMemoryContext& context, const OrthogonalMemoryArrays& in,
             const Sizes& sizes, const Tensor& tokens, const Tensor& counts_out) {
  const Plan plan{Tensor::empty({sizes.rows, sizes.codes}, DType::u8, in.q.device()), tokens};
  PlanInputs from{{}, {}, context.code_mask, in.counts, context.place.time_offset};
  if (!context.cross) {
    from.segments = context.segments;
    from.positions = context.positions;
  }
  make_plan(sizes, from, plan, counts_out);
  return plan;
}

// The tokens' reads.
Tensor sums_of(const OrthogonalMemoryContext& context, const OrthogonalMemoryArrays& in,
               const Sizes& sizes, const Plan& plan, const CarriedSums& out) {
  const Tensor codes = project_codes(sizes, in.f, context.code_mask, in.basis);
  const Tensor sums = Tensor::empty({sizes.rows, sizes.sums_per_row(), sizes.memories, sizes.rank},
                                    DType::f32, in.q.device());
  sum_codes(sizes, plan, codes, {in.completed, in.partial}, sums, out);
  return sums;
}

}  // namespace

OrthogonalMemorySaved orthogonal_memory_forward(const OrthogonalMemoryContext& context,
                                                const OrthogonalMemoryArrays& in, const Tensor& y,
                                                const OrthogonalMemoryArrays& state_out,
                                                const Tensor& memory_tokens) {
  const Sizes sizes = sizes_of(context, in);
  if (orthogonal_memory_is_fast(context, in)) {
    return orthogonal_memory_fast_forward(context, in, y, state_out, memory_tokens);
  }
  if (is_orthogonal_memory_step(context, in)) {
    orthogonal_memory_step(context, in, y, state_out, memory_tokens);
    return {};
  }
  const Plan plan = plan_of(context, in, sizes, memory_tokens, state_out.counts);
  const Tensor sums = sums_of(context, in, sizes, plan, {state_out.completed, state_out.partial});
  const Tensor weights = project(sizes, in.q, context.query_mask, in.basis);
  read_weights(sizes, plan, context, sums, weights);
  expand(sizes, weights, {}, in.basis, y);
  return {};
}

void orthogonal_memory_backward(const OrthogonalMemoryContext& context,
                                const OrthogonalMemoryArrays& in,
                                const OrthogonalMemorySaved& saved, const Tensor& dy,
                                const Tensor& dcompleted_out, const Tensor& dpartial_out,
                                const OrthogonalMemoryArrays& gradients) {
  if (saved.path == CallPath::tensor_cores && orthogonal_memory_backward_is_fast(in)) {
    return orthogonal_memory_fast_backward(context, in, saved, dy, dcompleted_out, dpartial_out,
                                           gradients);
  }
  const Sizes sizes = sizes_of(context, in);
  const Device device = in.q.device();
  const Plan plan = plan_of(context, in, sizes,
                            Tensor::empty({sizes.rows, sizes.queries}, DType::i64, device), {});
  const Tensor sums = sums_of(context, in, sizes, plan, {});
  const Tensor dqueries = project(sizes, in.q, context.query_mask, in.basis);
  const Tensor dreads = project(sizes, dy, context.query_mask, in.basis);
  const Tensor weights = Tensor::empty(dqueries.shape(), DType::f32, device);
  read_gradients(sizes, plan, context, sums, dqueries, dreads, weights);
  expand(sizes, dqueries, {}, in.basis, gradients.q);
  const Tensor dcodes =
      Tensor::empty({sizes.rows, sizes.codes, sizes.memories, sizes.rank}, DType::f32, device);
  sum_gradients(sizes, plan, dreads, {dcompleted_out, dpartial_out}, dcodes,
                {gradients.completed, gradients.partial});
  expand(sizes, dcodes, context.code_mask, in.basis, gradients.f);

  bool accumulate = false;
  const auto add = [&](const Tensor& left, const Tensor& right, const Tensor& mask) {
    sum_rows(basis_gradients(sizes, left, right, mask),
             gradients.basis.reshape({gradients.basis.elements()}), accumulate);
    accumulate = true;
  };
  add(weights, dy, context.query_mask);
  add(dqueries, in.q, context.query_mask);
  add(dcodes, in.f, context.code_mask);
}

}  // namespace linnet::cuda
