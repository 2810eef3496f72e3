// LARA: linear randomized attention with landmarks as proposals (Zheng et al. 2022).
#pragma once

#include "attention/mechanism.h"

namespace linnet {

// Weight of a landmark beside the tokens that its proposal finds. cab: CAB's product of its mean
// with the query, divided by the proposal's own density. biased: the same product, divided by the
// density of all proposals (the authors' code, mis-biased). balance: divided by that density alone
// (the balance heuristic). optimal: the balance heuristic, corrected by the distance of a query
// from the landmark's mean (the authors' code, mis-opt).
enum class LandmarkWeighting : uint8_t { cab, biased, balance, optimal };

// Padded tokens. ignored: left out of everything. row_of_zeros: zeros that landmarks are cut from
// and averaged over, and among which queries are compared (the authors' code). counted: their keys'
// weights enter the sums over tokens besides (CAB's code).
enum class LaraPadding : uint8_t { ignored, row_of_zeros, counted };

struct LaraParams {
  std::string preset = "none";
  int64_t landmarks = 64;
  LandmarkWeighting weighting = LandmarkWeighting::cab;
  bool exact = false;    // K^-1/4 on queries and keys, as in the theory
  bool learned = false;  // means of a learned map of queries and keys
  bool noise = true;
  LaraPadding padding = LaraPadding::ignored;

  static void describe(ConfigDescription<LaraParams>& d);
  MixerTraits traits(MixerTraits traits) const;
};

Mechanism lara_mechanism();

}  // namespace linnet
