// Reformer: softmax attention inside chunks of tokens sorted by hashes (Kitaev et al. 2020).
#pragma once

#include <optional>

#include "attention/mechanism.h"
#include "attention/reformer/buckets.h"

namespace linnet {

struct ReformerParams {
  std::string preset = "none";
  int64_t hashes = 2;
  int64_t chunk = 64;
  std::optional<int64_t> buckets;  // null: from the length
  bool dedup = false;
  int64_t redraw_steps = 1;
  double dropout = 0;

  static void describe(ConfigDescription<ReformerParams>& d);
  void validate(const ConfigNode& at) const;
  // Options of a mixer for sequences of that length; 0: of any.
  BucketRule bucket_rule(int64_t longest) const;
};

Mechanism reformer_mechanism();

}  // namespace linnet
