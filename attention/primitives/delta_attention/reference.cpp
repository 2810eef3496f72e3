// The definition of the delta rule in double.
#include <algorithm>
#include <cmath>

#include "attention/primitives/delta_attention/cpu.h"

namespace linnet::delta {

void delta_attention_reference(const DeltaInputs<double>& in, const std::vector<Span>& spans,
                               double* y, double* last) {
  const int64_t T = in.k.T, H = in.k.H, K = in.k.K, V = in.v.K;
  for (const Span& span : spans) {
    for (int64_t h = 0; h < H; ++h) {
      const int64_t row = (span.row * H + h) * K * V;
      std::vector<double> S(static_cast<size_t>(K * V), 0.0);
      if (span.carries_in && in.state != nullptr) std::copy_n(in.state + row, K * V, S.data());
      for (int64_t t = span.begin; t < span.end; ++t) {
        const int64_t token = (span.row * T + t) * H + h;
        std::fill_n(y + token * V, V, 0.0);
        if (!is_valid(in.key_mask, span.row, t, T)) continue;
        const double a = in.log_decay == nullptr ? 1 : std::exp(in.log_decay[token]);
        const double *q = in.q.at(span.row, t, h), *k = in.k.at(span.row, t, h);
        const double* v = in.v.at(span.row, t, h);
        for (int64_t c = 0; c < V; ++c) {
          double expected = 0;
          for (int64_t r = 0; r < K; ++r) expected += a * S[r * V + c] * k[r];
          for (int64_t r = 0; r < K; ++r) {
            S[r * V + c] = a * S[r * V + c] + in.beta[token] * k[r] * (v[c] - expected);
            y[token * V + c] += in.query_scale * S[r * V + c] * q[r];
          }
        }
      }
      if (span.carries_out) std::copy(S.begin(), S.end(), last + row);
    }
  }
}

}  // namespace linnet::delta
