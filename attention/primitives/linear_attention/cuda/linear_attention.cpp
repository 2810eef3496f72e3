// The steps of linear attention on a device: features, scans of the state, normalisation.
#include "attention/primitives/linear_attention/cuda/linear_attention.h"

#include "attention/primitives/linear_attention/cuda/fast_calls.h"
#include "attention/primitives/linear_attention/cuda/kernels.h"
#include "attention/primitives/linear_attention/cuda/path.h"
#include "attention/primitives/linear_attention/cuda/step.h"
#include "core/error.h"

namespace linnet::cuda {
namespace {

using namespace linear_attention_detail;

void check_widths(int64_t features, int64_t values) {
  require(features > 0 && values > 0, "linear_attention: widths must be positive, got m=", features,
          " V=", values);
  require(features <= kWidestState, "linear_attention: ", features, " features are more than the ",
          kWidestState, " that the CUDA kernels cover; use --device cpu");
}

void check_options(const LinearAttentionOptions& options) {
  require(options.normalizer == Normalizer::none || options.epsilon > 0,
          "linear_attention: epsilon must be positive, got ", options.epsilon);
}

void check_heads(int64_t heads, int64_t key_heads) {
  require(key_heads > 0 && heads % key_heads == 0, "linear_attention: ", heads,
          " query heads cannot share ", key_heads, " key heads; expected a divisor");
}

void check_keys(const LinearAttentionArrays& in) {
  const Tensor &k = in.k, &v = in.v;
  require(k.size(0) == v.size(0) && k.size(1) == v.size(1) && k.size(2) == v.size(2),
          "linear_attention: k ", k.shape(), " and v ", v.shape(), " do not belong together");
}

Tensor key_features(const LinearAttentionContext& context, const LinearAttentionArrays& in) {
  return features(in.k, in.key_proportions, context.key_mask, context.options.feature_map, 1);
}
Tensor query_features(const LinearAttentionContext& context, const LinearAttentionArrays& in) {
  return features(in.q, in.query_proportions, context.query_mask, context.options.feature_map,
                  context.options.query_scale);
}

void key_feature_gradients(const LinearAttentionContext& context, const LinearAttentionArrays& in,
                           const Tensor& gradients, const LinearAttentionArrays& out) {
  feature_gradients(in.k, in.key_proportions, context.key_mask, context.options.feature_map, 1,
                    gradients, out.k, out.key_proportions);
}
void query_feature_gradients(const LinearAttentionContext& context, const LinearAttentionArrays& in,
                             const Tensor& gradients, const LinearAttentionArrays& out) {
  feature_gradients(in.q, in.query_proportions, context.query_mask, context.options.feature_map,
                    context.options.query_scale, gradients, out.q, out.query_proportions);
}

// An output of a scan's reads: [B,T,heads,width] where x is [B,T,heads,.].
Tensor rows_like(const Tensor& x, int64_t width) {
  return Tensor::empty({x.size(0), x.size(1), x.size(2), width}, DType::f32, x.device());
}

// A scan with these sizes: the state as it is, or its transpose.
StateScan scan_of(int64_t features, int64_t values, int64_t state_heads) {
  StateScan scan;
  scan.features = features;
  scan.values = values;
  scan.columns = values + 1;
  scan.state_heads = state_heads;
  return scan;
}
StateScan transposed_scan_of(int64_t features, int64_t values, int64_t state_heads) {
  StateScan scan = scan_of(features, values, state_heads);
  scan.columns = features;
  scan.transposed = true;
  return scan;
}

// Where the state restarts, and how it decays.
void set_order(const LinearAttentionContext& context, const LinearAttentionArrays& in,
               StateScan& scan) {
  scan.segments = context.segments;
  scan.log_decay = in.log_decay;
  scan.decay_mask = context.key_mask;
}

}  // namespace

void linear_attention_causal_forward(const LinearAttentionContext& context,
                                     const LinearAttentionArrays& in, const Tensor& y,
                                     const Tensor& memory, const Tensor& mass,
                                     const Tensor& denominators) {
  check_options(context.options);
  check_heads(in.q.size(2), in.k.size(2));
  check_keys(in);
  require(
      in.q.size(0) == in.k.size(0) && in.q.size(1) == in.k.size(1) && in.q.size(3) == in.k.size(3),
      "linear_attention: causal attention of q ", in.q.shape(), " over k ", in.k.shape(),
      "; expected as many tokens and the same width");
  require(in.query_proportions.defined() == in.key_proportions.defined(),
          "linear_attention: proportions must be given for both queries and keys, or for neither");
  const int64_t m = memory.size(2), V = memory.size(3);
  check_widths(m, V);
  if (in.path == CallPath::tensor_cores) {
    return fast_causal_forward(context, in, y, memory, mass, denominators);
  }
  if (in.q.size(1) == 1) {
    return linear_attention_step(context, in, y, memory, mass, denominators);
  }
  StateScan scan = scan_of(m, V, in.k.size(2));
  scan.left = key_features(context, in);
  scan.right = values_with_normalizer(in.v, context.key_mask);
  scan.probe = query_features(context, in);
  scan.out = rows_like(in.q, V + 1);
  scan.in = {in.memory, in.mass};
  scan.out_state = {memory, mass};
  set_order(context, in, scan);
  run(scan);
  normalize(scan.out, context.query_mask, context.options, y, denominators);
}

void linear_attention_causal_backward(const LinearAttentionContext& context,
                                      const LinearAttentionArrays& in, const Tensor& y,
                                      const Tensor& denominators, const Tensor& dy,
                                      const Tensor& dmemory, const Tensor& dmass,
                                      const LinearAttentionArrays& gradients) {
  const int64_t V = in.v.size(3), G = in.k.size(2);
  const int64_t m = in.k.size(3) * (in.key_proportions.defined() ? 2 : 1);
  if (in.path == CallPath::tensor_cores) {
    if (linear_attention_backward_is_fast(m, V, true)) {
      return fast_causal_backward(context, in, denominators, dy, dmemory, dmass, gradients);
    }
    // y as the tensor-core kernels left it is too coarse for these: once more, by the plain ones.
    LinearAttentionArrays plain = in;
    plain.path = CallPath::plain;
    const Tensor whole = Tensor::empty(y.shape(), DType::f32, y.device());
    const Tensor sums = Tensor::empty({y.size(0), G, m, V}, DType::f32, y.device());
    const Tensor sum = Tensor::empty({y.size(0), G, m}, DType::f32, y.device());
    const Tensor divisors = Tensor::empty(denominators.shape(), DType::f32, y.device());
    linear_attention_causal_forward(context, plain, whole, sums, sum, divisors);
    return linear_attention_causal_backward(context, plain, whole, divisors, dy, dmemory, dmass,
                                            gradients);
  }
  const Tensor keys = key_features(context, in), queries = query_features(context, in);
  const Tensor values = values_with_normalizer(in.v, context.key_mask);
  const Tensor dsums = output_gradients(y, dy, denominators, context.query_mask, context.options);
  Tensor dqueries, dkeys;
  {
    StateScan scan = transposed_scan_of(m, V, G);
    scan.left = values;
    scan.right = keys;
    scan.probe = dsums;
    scan.out = rows_like(in.q, m);
    scan.in = {in.memory, in.mass};
    set_order(context, in, scan);
    run(scan);
    query_feature_gradients(context, in, scan.out, gradients);
    if (gradients.log_decay.defined()) dqueries = scan.out;
  }
  {
    StateScan scan = transposed_scan_of(m, V, G);
    scan.reverse = true;
    scan.left = dsums;
    scan.right = queries;
    scan.probe = values;
    scan.out = rows_like(in.k, m);
    scan.in = {dmemory, dmass};
    scan.out_state = {gradients.memory, gradients.mass};
    set_order(context, in, scan);
    run(scan);
    key_feature_gradients(context, in, scan.out, gradients);
    if (gradients.log_decay.defined()) dkeys = scan.out;
  }
  if (gradients.log_decay.defined()) {
    run(DecayGradients{queries,
                       dqueries,
                       keys,
                       dkeys,
                       {in.memory, in.mass},
                       {gradients.memory, gradients.mass},
                       context.segments,
                       context.key_mask,
                       gradients.log_decay});
  }
  StateScan scan = scan_of(m, V, G);
  scan.reverse = true;
  scan.columns = V;  // the normalizer's column: values have no gradient
  scan.left = queries;
  scan.right = dsums;
  scan.probe = keys;
  scan.out = rows_like(in.v, V);
  scan.in = {dmemory, dmass};
  set_order(context, in, scan);
  run(scan);
  value_gradients(scan.out, context.key_mask, gradients.v);
}

void linear_attention_memory_forward(const LinearAttentionContext& context,
                                     const LinearAttentionArrays& in,
                                     const std::vector<Span>& spans, const Tensor& memory,
                                     const Tensor& mass) {
  check_keys(in);
  check_widths(memory.size(2), memory.size(3));
  if (in.path == CallPath::tensor_cores) {
    return fast_memory_forward(context, in, spans, memory, mass);
  }
  StateScan scan = scan_of(memory.size(2), memory.size(3), in.k.size(2));
  scan.left = key_features(context, in);
  scan.right = values_with_normalizer(in.v, context.key_mask);
  scan.out_state = {memory, mass};
  scan.spans = spans_on_device(context.segments, spans, in.k.device());
  run(scan);
}

void linear_attention_memory_backward(const LinearAttentionContext& context,
                                      const LinearAttentionArrays& in,
                                      const std::vector<Span>& spans, const Tensor& dmemory,
                                      const Tensor& dmass, const LinearAttentionArrays& gradients) {
  const int64_t m = dmemory.size(2), V = dmemory.size(3), G = in.k.size(2);
  if (in.path == CallPath::tensor_cores && linear_attention_backward_is_fast(m, V, false)) {
    return fast_memory_backward(context, in, spans, dmemory, dmass, gradients);
  }
  StateScan scan = transposed_scan_of(m, V, G);
  scan.probe = values_with_normalizer(in.v, context.key_mask);
  scan.out = rows_like(in.k, m);
  scan.in = {dmemory, dmass};
  scan.spans = spans_on_device(context.segments, spans, in.k.device());
  run(scan);
  key_feature_gradients(context, in, scan.out, gradients);
  StateScan value_scan = scan_of(m, V, G);
  value_scan.columns = V;
  value_scan.probe = key_features(context, in);
  value_scan.out = rows_like(in.v, V);
  value_scan.in = scan.in;
  value_scan.spans = scan.spans;
  run(value_scan);
  value_gradients(value_scan.out, context.key_mask, gradients.v);
}

void linear_attention_read_forward(const LinearAttentionContext& context,
                                   const LinearAttentionArrays& in, const std::vector<Span>& spans,
                                   const Tensor& y, const Tensor& denominators) {
  check_options(context.options);
  check_heads(in.q.size(2), in.memory.size(1));
  check_widths(in.memory.size(2), in.memory.size(3));
  if (in.path == CallPath::tensor_cores) {
    return fast_read_forward(context, in, spans, y, denominators);
  }
  StateScan scan = scan_of(in.memory.size(2), in.memory.size(3), in.memory.size(1));
  scan.probe = query_features(context, in);
  scan.out = rows_like(in.q, in.memory.size(3) + 1);
  scan.in = {in.memory, in.mass};
  scan.spans = spans_on_device(context.segments, spans, in.q.device());
  run(scan);
  normalize(scan.out, context.query_mask, context.options, y, denominators);
}

void linear_attention_read_backward(const LinearAttentionContext& context,
                                    const LinearAttentionArrays& in, const std::vector<Span>& spans,
                                    const Tensor& y, const Tensor& denominators, const Tensor& dy,
                                    const LinearAttentionArrays& gradients) {
  const int64_t m = in.memory.size(2), V = in.memory.size(3), G = in.memory.size(1);
  if (in.path == CallPath::tensor_cores) {
    if (linear_attention_backward_is_fast(m, V, false)) {
      return fast_read_backward(context, in, spans, denominators, dy, gradients);
    }
    // As in causal passes: y once more.
    LinearAttentionArrays plain = in;
    plain.path = CallPath::plain;
    const Tensor whole = Tensor::empty(y.shape(), DType::f32, y.device());
    const Tensor divisors = Tensor::empty(denominators.shape(), DType::f32, y.device());
    linear_attention_read_forward(context, plain, spans, whole, divisors);
    return linear_attention_read_backward(context, plain, spans, whole, divisors, dy, gradients);
  }
  const Tensor dsums = output_gradients(y, dy, denominators, context.query_mask, context.options);
  StateScan scan = transposed_scan_of(m, V, G);
  scan.probe = dsums;
  scan.out = rows_like(in.q, m);
  scan.in = {in.memory, in.mass};
  scan.spans = spans_on_device(context.segments, spans, in.q.device());
  run(scan);
  query_feature_gradients(context, in, scan.out, gradients);
  StateScan sum = scan_of(m, V, G);
  sum.left = query_features(context, in);
  sum.right = dsums;
  sum.out_state = {gradients.memory, gradients.mass};
  sum.spans = scan.spans;
  run(sum);
}

Tensor linear_attention_features(const LinearAttentionOptions& options, const Tensor& x,
                                 const Tensor& mask) {
  return features(x, Tensor(), mask, options.feature_map, options.query_scale);
}

Tensor linear_attention_feature_gradients(const LinearAttentionOptions& options, const Tensor& x,
                                          const Tensor& mask, const Tensor& dfeatures) {
  const Tensor dx = Tensor::empty(x.shape(), x.dtype(), x.device());
  feature_gradients(x, Tensor(), mask, options.feature_map, options.query_scale, dfeatures, dx,
                    Tensor());
  return dx;
}

}  // namespace linnet::cuda
