// LARA: linear randomized attention with landmarks as proposals (Zheng et al. 2022).
#pragma once

#include "attention/mechanism.h"

namespace linnet {

// What a landmark counts for besides the tokens that its proposal finds: CAB's product of its mean
// with the query; nothing, with the density of all proposals below (the balance heuristic); or
// that, corrected by how near a query is to its mean (the authors' code, mis-opt).
enum class LandmarkWeighting : uint8_t { cab, balance, optimal };

struct LaraParams {
  std::string preset = "none";
  int64_t landmarks = 64;
  LandmarkWeighting weighting = LandmarkWeighting::cab;
  bool exact = false;    // K^-1/4 on queries and keys, as the theory has it
  bool learned = false;  // means of a learned map of queries and keys
  bool noise = true;

  static void describe(ConfigDescription<LaraParams>& d);
};

Mechanism lara_mechanism();

}  // namespace linnet
