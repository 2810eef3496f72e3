// Synthesizer: attention whose logits do not compare tokens (Tay et al. 2020).
#pragma once

#include <optional>

#include "attention/mechanism.h"

namespace linnet {

struct SynthesizerParams {
  std::string preset = "none";
  std::string kind = "factorized";
  int64_t rank = 8;
  bool shared = false;
  bool trainable = true;
  int64_t max_length = 0;         // 0: the training context
  std::optional<double> dropout;  // null: the model's attention_dropout

  static void describe(ConfigDescription<SynthesizerParams>& d);
  // The parts whose logits are added.
  bool dense() const { return kind.starts_with("dense"); }
  bool random() const { return kind.ends_with("random"); }
  bool factorized() const { return kind.ends_with("factorized"); }
  // Throws UsageError when there is none.
  int64_t length(const MixerOptions& options) const;
};

Mechanism synthesizer_mechanism();

}  // namespace linnet
