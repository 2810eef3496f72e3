// Skyformer: parameters, mixer, literal definition, registry entry.
#include "attention/skyformer/skyformer.h"

#include "attention/common/gaussian_kernel.h"
#include "attention/common/iterated_inverse_definition.h"
#include "attention/common/mixer_support.h"
#include "attention/define.h"
#include "attention/primitives/matrices/matrices.h"
#include "attention/skyformer/preconditioner.h"
#include "attention/skyformer/sampled_rows.h"
#include "autograd/arithmetic.h"
#include "autograd/layout.h"
#include "autograd/products.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"skyformer", "the authors' code", {{"rows", "128"}, {"draws", "shared"}}},
    {"leapformer", "LeaPformer's tables, by the same code", {{"rows", "128"}, {"draws", "shared"}}},
    {"lavo",
     "LAVO's table 11, which repeats the authors' results",
     {{"rows", "128"}, {"draws", "shared"}}},
    {"released",
     "the authors' code to the last term: one divisor for a batch, the scale of heads of 32",
     {{"rows", "128"}, {"draws", "shared"}, {"norm", "batch"}, {"kernel_width", "32"}}}};

class SkyformerMixer : public AttentionMixer {
 public:
  SkyformerMixer(const SkyformerParams& params, const MixerOptions& options,
                 const MixerScope& scope)
      : AttentionMixer(options, scope), params_(params) {}

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState&) const override {
    require_usage(!context.segments.defined(),
                  "skyformer samples one set of rows of each sequence; do not pack documents into "
                  "rows");
    const DType dtype = sum_dtype(input.q.dtype());
    const Device device = input.q.value().device();
    const int64_t B = input.q.size(0), T = input.q.size(1), H = input.q.size(2), r = params_.rows;
    const Variable q = scaled(as_dtype(input.q, dtype)), k = scaled(as_dtype(input.k, dtype));
    const Tensor tokens = sampled_tokens(draws(context, B, device), context.key_mask, B, T);
    const Variable rows = sampled_rows(q, k, tokens);
    const auto read = [&](const Variable& queries, const Tensor& query_mask, const Variable& keys,
                          const Tensor& key_mask, const Variable& values) {
      BlockAttentionContext at;
      at.cross = true;
      at.query_mask = query_mask;
      at.key_mask = key_mask;
      return gaussian_attention(queries, keys, values, at);
    };
    // [B,r,H,.] as matrices of heads, and back.
    const auto matrices = [&](const Variable& x) {
      return reshape(transpose(x, 1, 2), {B * H, r, x.size(3)});
    };
    const Preconditioned kernel = precondition(row_kernel(matrices(rows)), params_.gamma);
    const Variable inverse = iterated_inverse(kernel.matrix, params_.steps, params_.norm);
    const Variable written = matrices(read(rows, {}, k, context.key_mask, input.v));
    const Variable values =
        multiply(matmul(inverse, multiply(written, kernel.roots)), kernel.roots);
    const Variable y = read(q, context.key_mask, rows, {},
                            transpose(reshape(values, {B, H, r, values.size(2)}), 1, 2));
    return {as_dtype(y, input.q.dtype()), {}};
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    const auto heads = static_cast<double>(shape.batch * options().heads);
    const auto T = static_cast<double>(shape.queries), r = static_cast<double>(params_.rows);
    const auto K = static_cast<double>(options().head_width());
    // Rows with tokens, twice, whose products have two channels more; rows with rows; products of
    // the inverse with the values; the iterations.
    const double tokens = 2 * T * r * (2 * K + 2);
    const double rows = 2 * r * r * K;
    return {.mixing = heads * (tokens + rows + 4 * static_cast<double>(params_.steps) * r * r * r)};
  }

 private:
  // Vectors whose kernel for heads of K channels has the scale of kernel_width.
  Variable scaled(const Variable& x) const {
    if (!params_.kernel_width) return x;
    const auto K = static_cast<double>(options().head_width());
    return scale(x, std::pow(K / static_cast<double>(*params_.kernel_width), 0.25));
  }

  // Uniform draws that choose the rows: f64 [B or 1,r] on `device`.
  Tensor draws(const MixerContext& context, int64_t B, Device device) const {
    const bool shared = params_.draws == "shared";
    const int64_t count = shared ? 1 : B;
    const auto make = [&] {
      return uniform_draws(draw_key(context).at("rows"), shared ? Tensor() : context.place.examples,
                           count, params_.rows, device);
    };
    // Draws that are given or noted pass through the host; others are made on the device.
    if (context.record == nullptr) return make();
    return drawn(context, "rows", {count, params_.rows}, [&] { return make().to(Device{}); })
        .to(device);
  }

  SkyformerParams params_;
};

template <typename Number>
std::vector<Number> definition(const SkyformerParams& params, const ReferenceSequence<Number>& s) {
  std::vector<int64_t> valid;
  for (int64_t j = 0; j < s.S; ++j) {
    if (s.key_valid[static_cast<size_t>(j)] != 0) valid.push_back(j);
  }
  std::vector<Number> y(static_cast<size_t>(s.T * s.H * s.V), 0);
  if (valid.empty()) return y;
  const Tensor& draws = s.draws.at("rows");
  const std::vector<double> uniform = draws.template to_vector<double>();
  const auto r = static_cast<size_t>(params.rows), V = static_cast<size_t>(s.V);
  const int64_t width = params.kernel_width.value_or(s.K);
  const size_t first = params.draws == "shared" ? 0 : static_cast<size_t>(s.row) * r;
  for (int64_t h = 0; h < s.H; ++h) {
    std::vector<const Number*> rows;
    for (size_t a = 0; a < r; ++a) {
      const double place = uniform[first + a] * static_cast<double>(valid.size());
      const int64_t token = valid[static_cast<size_t>(place)];
      rows.push_back(a < r / 2 ? s.query(token, h) : s.key(token, h));
    }
    SquareMatrix<Number> matrix(r * r);
    std::vector<Number> roots(r, 0);
    std::vector<std::vector<Number>> written(r, std::vector<Number>(V, 0));
    for (size_t a = 0; a < r; ++a) {
      for (size_t b = 0; b < r; ++b) {
        const Number own = a == b ? static_cast<Number>(params.gamma) : Number{0};
        matrix[a * r + b] = gaussian_kernel(rows[a], rows[b], s.K, width) + own;
        roots[a] += matrix[a * r + b];
      }
      roots[a] = 1 / std::sqrt(roots[a]);
      for (const int64_t j : valid) {
        const Number weight = gaussian_kernel(rows[a], s.key(j, h), s.K, width);
        for (size_t c = 0; c < V; ++c) written[a][c] += weight * s.value(j, h)[c];
      }
    }
    for (size_t i = 0; i < r * r; ++i) matrix[i] *= roots[i / r] * roots[i % r];
    const SquareMatrix<Number> inverse =
        iterated_inverse_definition(matrix, r, params.steps, largest_column_sum(matrix, r));
    std::vector<std::vector<Number>> values(r, std::vector<Number>(V, 0));
    for (size_t i = 0; i < r * r; ++i) {
      const Number weight = roots[i / r] * inverse[i] * roots[i % r];
      for (size_t c = 0; c < V; ++c) values[i / r][c] += weight * written[i % r][c];
    }
    for (const int64_t i : valid) {
      for (size_t a = 0; a < r; ++a) {
        const Number weight = gaussian_kernel(s.query(i, h), rows[a], s.K, width);
        for (size_t c = 0; c < V; ++c) {
          y[static_cast<size_t>((i * s.H + h) * s.V) + c] += weight * values[a][c];
        }
      }
    }
  }
  return y;
}

}  // namespace

void SkyformerParams::describe(ConfigDescription<SkyformerParams>& d) {
  describe_preset(d, kPresets);
  d.field("rows", &SkyformerParams::rows,
          "sampled rows r, half of them queries and half keys, with replacement")
      .range(2, 4096);
  d.field("gamma", &SkyformerParams::gamma,
          "added to the diagonal of the rows' kernel, which is singular where a row was sampled "
          "twice")
      .above(0);
  d.field("steps", &SkyformerParams::steps, "iterations that approximate the inverse").range(1, 64);
  d.choice(
      "draws", &SkyformerParams::draws, {"per_example", "shared"},
      "rows are drawn for each example, or the whole batch shares the draws (the authors' code)");
  d.choice(
      "norm", &SkyformerParams::norm,
      {{"matrix", InverseNorm::matrix}, {"batch", InverseNorm::batch}},
      "divisor of the first iterate: the largest column sum of each matrix, or of all matrices "
      "of a batch, as in the authors' code");
  d.field("kernel_width", &SkyformerParams::kernel_width,
          "channels whose number scales distances; null: those of a head (the authors' code: 32)")
      .range(1, 65536);
}

MixerTraits SkyformerParams::traits(MixerTraits traits) const {
  if (norm == InverseNorm::batch) {
    traits.couples_heads = true;
    for (const char* check : {"reference", "f32", "bf16", "rows", "repeat"}) {
      traits.exempt[check] = "norm: batch couples the rows of a batch";
    }
  }
  return traits;
}

void SkyformerParams::validate(const ConfigNode& at) const {
  if (rows % 2 != 0) {
    throw located_error(at.location_of("rows"),
                        "half of the rows are queries and half keys: rows must be even, found ",
                        rows);
  }
}

Mechanism skyformer_mechanism() {
  Mechanism facts;
  facts.name = "skyformer";
  facts.title = "Skyformer: kernelized attention by the Nystroem method on sampled rows";
  facts.equation =
      "kappa(a, b) = exp(-|a - b|^2 / (2 sqrt(K))), X = r rows of [Q; K], drawn\n"
      "M = kappa(X, X) + gamma I, P = D^(-1/2) M D^(-1/2), D = diag(M 1), Z ~ P^-1 by iterations\n"
      "Y = kappa(Q, X) D^(-1/2) Z D^(-1/2) kappa(X, K) V";
  facts.complexity = "time B H (4 T r K + 4 steps r^3), memory B H (T K + steps r^2)";
  facts.sources = "Chen et al. 2021, Skyformer; LeaPformer (a baseline)";
  facts.traits.noncausal = true;
  facts.traits.growth = std::string("T r");
  facts.traits.exempt["packing"] =
      "a row has one set of sampled rows: packed documents are refused";
  facts.presets = kPresets;
  // Wider heads than those of small models, which run the first variant.
  facts.check_head_width = 10;
  facts.variants = {"{rows: 6, steps: 3, draws: shared, gamma: 0.5}", "{rows: 4, kernel_width: 32}",
                    "{rows: 4, norm: batch, steps: 2}"};
  facts.cost_cases = {"{}"};
  return define_mechanism<SkyformerParams, SkyformerMixer>(
      std::move(facts), [](const SkyformerParams& params, const auto& sequence) {
        return definition(params, sequence);
      });
}

}  // namespace linnet
