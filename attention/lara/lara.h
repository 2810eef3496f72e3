// LARA: linear randomized attention with landmarks as proposals (Zheng et al. 2022).
#pragma once

#include "attention/mechanism.h"

namespace linnet {

// Weight of a landmark beside the tokens that its proposal finds. cab: CAB's product of its mean
// with the query. balance: divided by the density of all proposals (the balance heuristic).
// optimal: the balance heuristic, corrected by the distance of a query from the landmark's mean
// (the authors' code, mis-opt).
enum class LandmarkWeighting : uint8_t { cab, balance, optimal };

struct LaraParams {
  std::string preset = "none";
  int64_t landmarks = 64;
  LandmarkWeighting weighting = LandmarkWeighting::cab;
  bool exact = false;    // K^-1/4 on queries and keys, as in the theory
  bool learned = false;  // means of a learned map of queries and keys
  bool noise = true;

  static void describe(ConfigDescription<LaraParams>& d);
};

Mechanism lara_mechanism();

}  // namespace linnet
