// Rows of packed documents against the same documents in rows of their own, for mechanisms whose
// packed rows leave no state.
#pragma once

#include <gtest/gtest.h>

#include "attention/conformance/subject.h"
#include "attention/registry.h"
#include "core/yaml.h"

namespace linnet::test {

// The causal form on a device in that precision; the documents' own rows in double on the CPU.
inline void expect_packed_documents_are_separate(const char* mechanism, const char* parameters,
                                                 DType dtype, Device device, double allowed) {
  using namespace conformance;
  const MixerOptions options = check_options(Form::causal, 8);
  const ConfigNode node = parse_yaml(parameters, "test");
  const Subject packed(find_mechanism(mechanism), node, options, dtype, 1, device);
  const Subject alone(find_mechanism(mechanism), node, options, DType::f64);
  const std::vector<std::vector<int64_t>> rows{{23, 1, 5, 12}, {4, 30, 7}};
  const int64_t total = 41;
  Batch batch = random_batch(Form::causal, 2, total, 0, options.width, 3);
  batch.segments = Tensor::empty({2, total}, DType::i32);
  batch.mask = full_mask(2, total);
  pad_row(batch.mask, 0, 9, 12);
  pad_row(batch.mask, 1, 39, total);
  int64_t at = 0;
  for (const std::vector<int64_t>& lengths : rows) {
    for (size_t d = 0; d < lengths.size(); ++d) {
      for (int64_t t = 0; t < lengths[d]; ++t, ++at) {
        batch.segments.data<int32_t>()[at] = static_cast<int32_t>(d);
        batch.positions.data<int32_t>()[at] = static_cast<int32_t>(t);
      }
    }
  }
  const Result found = packed.run(batch);
  for (int64_t b = 0; b < 2; ++b) {
    int64_t begin = 0;
    for (const int64_t n : rows[static_cast<size_t>(b)]) {
      Batch document = slice_row(tokens_of(batch, begin, begin + n), b);
      document.segments = Tensor();
      const Tensor expected = alone.run(document).y;
      const Tensor got = linnet::tokens_of(found.y.rows(b, b + 1), begin, begin + n);
      EXPECT_LE(largest_difference(got.to(DType::f64), expected), allowed)
          << mechanism << " " << parameters << ": row " << b << ", document from " << begin;
      begin += n;
    }
  }
  // The state after such a row is refused.
  const Batch next = next_batch(tokens_of(batch, 0, 3), Form::causal, 2, 3, 9);
  EXPECT_THROW(packed.run(next, found.state), UsageError);
}

}  // namespace linnet::test
