#include "attention/lavo/limiting_cases.h"

#include <cmath>

#include "attention/lavo/lavo.h"
#include "attention/lavo/lavo_reference.h"

namespace linnet {

std::vector<LimitingCase> lavo_limiting_cases() {
  const auto zero = [](std::vector<double>& values) { std::fill(values.begin(), values.end(), 0); };
  const auto half_of_window = [](const LavoParams& params) {
    return [params](const ReferenceSequence<double>& s) {
      std::vector<double> y = lavo_window_reference(params, s);
      for (double& value : y) value *= 0.5;
      return y;
    };
  };
  LavoParams wide;
  wide.rank = 8;
  wide.window = 64;
  wide.epe = "off";
  LavoParams narrow;
  narrow.rank = 8;
  narrow.window = 5;
  LavoParams single = wide;
  single.window = 1;
  single.nc_window = "two_sided";
  const auto zero_queries_complete_basis = [zero](const std::string& name,
                                                  std::vector<double>& values) {
    if (name == "q.weight" || name == "q.bias") zero(values);
    if (name != "basis") return;
    for (size_t i = 0; i < values.size(); ++i) values[i] = i % 64 % 9 == 0 ? 1 : 0;
  };
  const auto reads_mean_of_values = [](const LavoParams& params) {
    return [params](const ReferenceSequence<double>& s) {
      std::vector<double> mean(static_cast<size_t>(s.H * s.V), 0);
      for (int64_t j = 0; j < s.S; ++j) {
        for (size_t c = 0; c < mean.size(); ++c) {
          mean[c] += s.value(j, 0)[c] / static_cast<double>(s.S);
        }
      }
      const bool cross = s.form == Form::cross;
      std::vector<double> y =
          cross ? std::vector<double>(mean.size() * s.T) : lavo_window_reference(params, s);
      for (size_t i = 0; i < y.size(); ++i) {
        const double global = mean[i % mean.size()] / 8;
        y[i] = cross ? global : 0.5 * (y[i] + global);
      }
      return y;
    };
  };
  return {{"a window that reaches everything, without positions, gives half of causal softmax",
           "{rank: 8, window: 64, epe: off}",
           {Form::causal},
           {},
           [](const ReferenceSequence<double>& s) {
             std::vector<double> y = softmax_attention_reference(
                 s, 1 / std::sqrt(8.0), [](int64_t, int64_t) { return true; },
                 [](int64_t, int64_t, int64_t) { return 0.0; });
             for (double& value : y) value *= 0.5;
             return y;
           }},
          {"a basis of zeros leaves half of the window",
           "{rank: 8, window: 5}",
           {Form::causal, Form::noncausal},
           [zero](const std::string& name, std::vector<double>& values) {
             if (name == "basis") zero(values);
           },
           half_of_window(narrow)},
          {"zero queries and a complete basis read the mean of the codes, divided by K",
           "{rank: 8, window: 64, epe: off, code_input: v}",
           {Form::noncausal, Form::cross},
           zero_queries_complete_basis,
           reads_mean_of_values(wide)},
          {"attention inside blocks of one token compresses the values themselves",
           "{rank: 8, window: 1, epe: off, nc_window: two_sided, pre_agg: separate}",
           {Form::noncausal},
           zero_queries_complete_basis,
           reads_mean_of_values(single)}};
}

}  // namespace linnet
