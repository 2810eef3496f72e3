// EVA: attention to a window of tokens and to summaries of chunks, in one softmax (Zheng et al.
// 2023, Efficient Attention via Control Variates).
#pragma once

#include <optional>

#include "attention/mechanism.h"

namespace linnet {

struct EvaParams {
  std::string preset = "none";
  int64_t window = 128;
  int64_t chunk = 8;
  bool overlap = false;       // a window has keys of its neighbours as well
  int64_t chunk_overlap = 0;  // tokens on either side of a chunk that it summarises as well
  bool norm = true;           // after the maps of the chunks' means
  bool noise = true;
  bool distance_bias = false;  // in the window, by T5 buckets
  bool compat = false;         // padding as in the released code
  std::optional<double> scale;
  std::optional<double> dropout;

  static void describe(ConfigDescription<EvaParams>& d);
  void validate(const ConfigNode& at) const;
  MixerTraits traits(MixerTraits traits) const;
  // Keys before and after a block of queries.
  int64_t before(Form form) const;
  int64_t behind(Form form) const;
  // The bucket of a key at that distance (key - query), and the number of buckets.
  int64_t bucket(Form form, int64_t distance) const;
  int64_t buckets(Form form) const;
};

Mechanism eva_mechanism();

}  // namespace linnet
