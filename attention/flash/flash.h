// FLASH: a gated attention unit that is quadratic inside groups of tokens and linear across them
// (Hua et al. 2022).
#pragma once

#include "attention/flash/gated_unit.h"

namespace linnet {

struct FlashParams : GatedUnitOptions {
  int64_t group = 256;
  bool mean = false;
  std::string parts = "both";
  int64_t conv = 0;  // taps; 0: no convolution
  std::string conv_init = "uniform";

  static void describe(ConfigDescription<FlashParams>& d);
  void validate(const ConfigNode& at) const;
  MixerTraits traits(MixerTraits traits) const;
  bool has_local() const { return parts != "global"; }
  bool has_global() const { return parts != "local"; }
  // The affine copies in use: query and key of the local part, then those of the global part.
  std::vector<std::string> copies() const;
  size_t global_copies() const { return has_local() ? 2 : 0; }
};

Mechanism flash_mechanism();

// The unit under the name of a mechanism, and its literal definition.
std::unique_ptr<TokenMixer> make_flash_unit(const char* mechanism, const FlashParams& params,
                                            const MixerOptions& options, const MixerScope& scope);
template <typename Number>
std::vector<Number> flash_definition(const FlashParams& params, const ReferenceSequence<Number>& s);

}  // namespace linnet
