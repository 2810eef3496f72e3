// The steps of linear attention on a device: features, scans of the state, normalisation.
#include "attention/primitives/linear_attention/cuda/linear_attention.h"

#include "attention/primitives/linear_attention/cuda/fast_calls.h"
#include "attention/primitives/linear_attention/cuda/kernels.h"
#include "attention/primitives/linear_attention/cuda/path.h"
#include "attention/primitives/linear_attention/cuda/states.h"
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

void check_keys(const LinearAttentionTensors& in) {
  const Tensor &k = in.k, &v = in.v;
  require(k.size(0) == v.size(0) && k.size(1) == v.size(1) && k.size(2) == v.size(2),
          "linear_attention: k ", k.shape(), " and v ", v.shape(), " do not belong together");
}

Tensor key_features(const LinearAttentionTensors& in) {
  return features(in.k, in.key_proportions, in.context.key_mask, in.context.options.feature_map, 1);
}
Tensor query_features(const LinearAttentionTensors& in) {
  return features(in.q, in.query_proportions, in.context.query_mask, in.context.options.feature_map,
                  in.context.options.query_scale);
}

void key_feature_gradients(const LinearAttentionTensors& in, const Tensor& gradients,
                           const LinearAttentionTensors& out) {
  feature_gradients(in.k, in.key_proportions, in.context.key_mask, in.context.options.feature_map,
                    1, gradients, out.k, out.key_proportions);
}
void query_feature_gradients(const LinearAttentionTensors& in, const Tensor& gradients,
                             const LinearAttentionTensors& out) {
  feature_gradients(in.q, in.query_proportions, in.context.query_mask,
                    in.context.options.feature_map, in.context.options.query_scale, gradients,
                    out.q, out.query_proportions);
}

// A scan of the state, or of its transpose, along the tokens of x [B,T,.,.].
StateScan scan_of(const Tensor& x, int64_t features, int64_t values, int64_t state_heads,
                  bool transposed = false) {
  StateScan scan;
  scan.states = x.size(0);
  scan.time = x.size(1);
  scan.features = static_cast<int>(features);
  scan.values = static_cast<int>(values);
  scan.rows = static_cast<int>(transposed ? values + 1 : features);
  scan.columns = static_cast<int>(transposed ? features : values + 1);
  scan.heads = scan.state_heads = static_cast<int>(state_heads);
  scan.transposed = transposed;
  return scan;
}
void update(StateScan& scan, const Tensor& left, const Tensor& right) {
  scan.left = pointer<const float>(left);
  scan.right = pointer<const float>(right);
  scan.update_heads = static_cast<int>(left.size(2));
  scan.right_width = static_cast<int>(right.size(3));
}
// Returns the reads, [B,T,heads,columns], of the columns that the scan has by then.
Tensor read(StateScan& scan, const Tensor& probe) {
  const Tensor out = Tensor::empty({probe.size(0), probe.size(1), probe.size(2), scan.columns},
                                   DType::f32, probe.device());
  scan.probe = pointer<const float>(probe);
  scan.out = pointer<float>(out);
  scan.heads = static_cast<int>(probe.size(2));
  return out;
}

// Where the state restarts, and how it decays.
void set_order(const LinearAttentionTensors& in, StateScan& scan) {
  scan.segments = pointer_or_null<const int32_t>(in.context.segments);
  scan.log_decay = pointer_or_null<const float>(in.log_decay);
  scan.channel_decay = in.channel_decay();
  scan.decay_mask = pointer_or_null<const uint8_t>(in.context.key_mask);
}
// Of which tokens there are states, noncausal; `table` must live as long.
void set_spans(const LinearAttentionTensors& in, const Tensor& table, StateScan& scan) {
  scan.states = static_cast<int64_t>(in.spans.size());
  scan.spans = pointer_or_null<const int32_t>(table);
}

}  // namespace

void linear_attention_causal_forward(const LinearAttentionTensors& in, const Tensor& y,
                                     const Tensor& memory, const Tensor& mass,
                                     const Tensor& denominators) {
  check_options(in.context.options);
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
    return fast_causal_forward(in, y, memory, mass, denominators);
  }
  if (in.q.size(1) == 1) {
    return linear_attention_step(in, y, memory, mass, denominators);
  }
  const Tensor keys = key_features(in), queries = query_features(in);
  const Tensor values = values_with_normalizer(in.v, in.context.key_mask);
  StateScan scan = scan_of(in.q, m, V, in.k.size(2));
  update(scan, keys, values);
  const Tensor sums = read(scan, queries);
  scan.in = state_of<const float>(in.memory, in.mass);
  scan.out_state = state_of<float>(memory, mass);
  set_order(in, scan);
  run(scan);
  normalize(sums, in.context.query_mask, in.context.options, y, denominators);
}

void linear_attention_causal_backward(const LinearAttentionTensors& in, const Tensor& y,
                                      const Tensor& denominators, const Tensor& dy,
                                      const Tensor& dmemory, const Tensor& dmass,
                                      const LinearAttentionTensors& gradients) {
  const int64_t V = in.v.size(3), G = in.k.size(2);
  const int64_t m = in.k.size(3) * (in.key_proportions.defined() ? 2 : 1);
  if (in.path == CallPath::tensor_cores) {
    if (linear_attention_backward_is_fast(m, V, true)) {
      return fast_causal_backward(in, denominators, dy, dmemory, dmass, gradients);
    }
    // y as the tensor-core kernels left it is too coarse for these: once more, by the plain ones.
    LinearAttentionTensors plain = in;
    plain.path = CallPath::plain;
    const Tensor whole = Tensor::empty(y.shape(), DType::f32, y.device());
    const Tensor sums = Tensor::empty({y.size(0), G, m, V}, DType::f32, y.device());
    const Tensor sum = Tensor::empty({y.size(0), G, m}, DType::f32, y.device());
    const Tensor divisors = Tensor::empty(denominators.shape(), DType::f32, y.device());
    linear_attention_causal_forward(plain, whole, sums, sum, divisors);
    return linear_attention_causal_backward(plain, whole, divisors, dy, dmemory, dmass, gradients);
  }
  const Tensor keys = key_features(in), queries = query_features(in);
  const Tensor values = values_with_normalizer(in.v, in.context.key_mask);
  const Tensor dsums =
      output_gradients(y, dy, denominators, in.context.query_mask, in.context.options);
  Tensor dqueries, dkeys;
  {
    StateScan scan = scan_of(in.q, m, V, G, true);
    update(scan, values, keys);
    dqueries = read(scan, dsums);
    scan.in = state_of<const float>(in.memory, in.mass);
    set_order(in, scan);
    run(scan);
    query_feature_gradients(in, dqueries, gradients);
    if (!gradients.log_decay.defined()) dqueries = Tensor();
  }
  {
    StateScan scan = scan_of(in.q, m, V, G, true);
    scan.reverse = true;
    update(scan, dsums, queries);
    dkeys = read(scan, values);
    scan.in = state_of<const float>(dmemory, dmass);
    scan.out_state = state_of<float>(gradients.memory, gradients.mass);
    set_order(in, scan);
    run(scan);
    key_feature_gradients(in, dkeys, gradients);
    if (!gradients.log_decay.defined()) dkeys = Tensor();
  }
  if (gradients.log_decay.defined()) {
    decay_gradients(in, gradients, decay_terms(queries, dqueries, keys, dkeys, in.channel_decay()));
  }
  StateScan scan = scan_of(in.q, m, V, G);
  scan.reverse = true;
  scan.columns = static_cast<int>(V);  // the normalizer's column: values have no gradient
  update(scan, queries, dsums);
  const Tensor dvalues = read(scan, keys);
  scan.in = state_of<const float>(dmemory, dmass);
  set_order(in, scan);
  run(scan);
  value_gradients(dvalues, in.context.key_mask, gradients.v);
}

void linear_attention_memory_forward(const LinearAttentionTensors& in, const Tensor& memory,
                                     const Tensor& mass) {
  check_keys(in);
  check_widths(memory.size(2), memory.size(3));
  if (in.path == CallPath::tensor_cores) {
    return fast_memory_forward(in, memory, mass);
  }
  const Tensor keys = key_features(in);
  const Tensor values = values_with_normalizer(in.v, in.context.key_mask);
  const Tensor spans = spans_on_device(in);
  StateScan scan = scan_of(in.k, memory.size(2), memory.size(3), in.k.size(2));
  update(scan, keys, values);
  scan.out_state = state_of<float>(memory, mass);
  set_spans(in, spans, scan);
  run(scan);
}

void linear_attention_memory_backward(const LinearAttentionTensors& in, const Tensor& dmemory,
                                      const Tensor& dmass,
                                      const LinearAttentionTensors& gradients) {
  const int64_t m = dmemory.size(2), V = dmemory.size(3), G = in.k.size(2);
  if (in.path == CallPath::tensor_cores && linear_attention_backward_is_fast(m, V, false)) {
    return fast_memory_backward(in, dmemory, dmass, gradients);
  }
  const Tensor spans = spans_on_device(in);
  const Tensor values = values_with_normalizer(in.v, in.context.key_mask);
  StateScan scan = scan_of(in.k, m, V, G, true);
  const Tensor dkeys = read(scan, values);
  scan.in = state_of<const float>(dmemory, dmass);
  set_spans(in, spans, scan);
  run(scan);
  key_feature_gradients(in, dkeys, gradients);
  const Tensor keys = key_features(in);
  StateScan value_scan = scan_of(in.k, m, V, G);
  value_scan.columns = static_cast<int>(V);
  const Tensor dvalues = read(value_scan, keys);
  value_scan.in = scan.in;
  set_spans(in, spans, value_scan);
  run(value_scan);
  value_gradients(dvalues, in.context.key_mask, gradients.v);
}

void linear_attention_read_forward(const LinearAttentionTensors& in, const Tensor& y,
                                   const Tensor& denominators) {
  check_options(in.context.options);
  check_heads(in.q.size(2), in.memory.size(1));
  check_widths(in.memory.size(2), in.memory.size(3));
  if (in.path == CallPath::tensor_cores) {
    return fast_read_forward(in, y, denominators);
  }
  const Tensor queries = query_features(in), spans = spans_on_device(in);
  StateScan scan = scan_of(in.q, in.memory.size(2), in.memory.size(3), in.memory.size(1));
  const Tensor sums = read(scan, queries);
  scan.in = state_of<const float>(in.memory, in.mass);
  set_spans(in, spans, scan);
  run(scan);
  normalize(sums, in.context.query_mask, in.context.options, y, denominators);
}

void linear_attention_read_backward(const LinearAttentionTensors& in, const Tensor& y,
                                    const Tensor& denominators, const Tensor& dy,
                                    const LinearAttentionTensors& gradients) {
  const int64_t m = in.memory.size(2), V = in.memory.size(3), G = in.memory.size(1);
  if (in.path == CallPath::tensor_cores) {
    if (linear_attention_backward_is_fast(m, V, false)) {
      return fast_read_backward(in, denominators, dy, gradients);
    }
    // As in causal passes: y once more.
    LinearAttentionTensors plain = in;
    plain.path = CallPath::plain;
    const Tensor whole = Tensor::empty(y.shape(), DType::f32, y.device());
    const Tensor divisors = Tensor::empty(denominators.shape(), DType::f32, y.device());
    linear_attention_read_forward(plain, whole, divisors);
    return linear_attention_read_backward(plain, whole, divisors, dy, gradients);
  }
  const Tensor dsums =
      output_gradients(y, dy, denominators, in.context.query_mask, in.context.options);
  const Tensor spans = spans_on_device(in);
  StateScan scan = scan_of(in.q, m, V, G, true);
  const Tensor dqueries = read(scan, dsums);
  scan.in = state_of<const float>(in.memory, in.mass);
  set_spans(in, spans, scan);
  run(scan);
  query_feature_gradients(in, dqueries, gradients);
  const Tensor queries = query_features(in);
  StateScan sum = scan_of(in.q, m, V, G);
  update(sum, queries, dsums);
  sum.out_state = state_of<float>(gradients.memory, gradients.mass);
  set_spans(in, spans, sum);
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
