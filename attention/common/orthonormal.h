// Orthonormal rows: drawn, or made from given ones.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/random.h"

namespace linnet {

// Replaces `rank` rows of `width` elements by the Q^T of the QR decomposition of their transpose
// whose R has a positive diagonal: row l is its remainder orthogonal to the rows before it, scaled
// to length 1, so that the result is a continuous function of the rows. Throws Error, naming
// `what`, for rows that are not finite or depend linearly on those before them.
void orthonormalise_rows(double* rows, int64_t rank, int64_t width, std::string_view what);

// An orthonormal basis: `rank` orthonormal rows of `width` elements, from a Gaussian matrix (Saxe
// et al. 2014).
std::vector<double> orthonormal_rows(int64_t rank, int64_t width, const RandomKey& key);

}  // namespace linnet
