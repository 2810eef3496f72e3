// The arithmetic of emulated tensor cores, on the operands of a whole warp.
#include "core/cuda/emulation/tensor_cores.h"

#include <bit>
#include <cmath>

namespace linnet::emulation {
namespace {

struct Operands {
  uint32_t a[4], b[2];
  float d[4];
};
struct Products {
  float d[4];
};
struct Row {
  uint16_t values[8];
};
struct Dealt {
  uint16_t values[4][2];  // of each matrix
};

float element(uint32_t pair, int which) {
  return std::bit_cast<float>(which == 0 ? pair << 16 : pair & 0xFFFF0000u);
}

// Tensor cores truncate their sums instead of rounding them, as measured by Fasi et al. 2021,
// Numerical behavior of NVIDIA tensor cores: errors of many sums add up.
float truncated(double sum) {
  const auto nearest = static_cast<float>(sum);
  return std::abs(static_cast<double>(nearest)) > std::abs(sum) ? std::nextafter(nearest, 0.0f)
                                                                : nearest;
}

void multiply(const void* in, void* out) {
  const auto* lanes = static_cast<const Operands*>(in);
  auto* results = static_cast<Products*>(out);
  float a[16][16], b[16][8];
  double d[16][8];
  for (int l = 0; l < 32; ++l) {
    const int group = l / 4, pair = l % 4 * 2;
    for (int i = 0; i < 2; ++i) {
      for (int word = 0; word < 4; ++word) {
        a[group + word % 2 * 8][pair + word / 2 * 8 + i] = element(lanes[l].a[word], i);
      }
      for (int half = 0; half < 2; ++half) {
        b[pair + half * 8 + i][group] = element(lanes[l].b[half], i);
        d[group + half * 8][pair + i] = lanes[l].d[half * 2 + i];
      }
    }
  }
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) {
      for (int column = 0; column < 8; ++column) {
        d[row][column] += static_cast<double>(a[row][k]) * static_cast<double>(b[k][column]);
      }
    }
  }
  for (int l = 0; l < 32; ++l) {
    for (int i = 0; i < 4; ++i)
      results[l].d[i] = truncated(d[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2]);
  }
}

template <bool transposed>
void deal(const void* in, void* out) {
  const auto* rows = static_cast<const Row*>(in);
  auto* results = static_cast<Dealt*>(out);
  for (int l = 0; l < 32; ++l) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      for (int i = 0; i < 2; ++i) {
        const int row = l / 4, column = l % 4 * 2 + i;
        results[l].values[matrix][i] = transposed ? rows[matrix * 8 + column].values[row]
                                                  : rows[matrix * 8 + row].values[column];
      }
    }
  }
}

}  // namespace

void mma_16x8x16(Site site, const uint32_t (&a)[4], const uint32_t (&b)[2], float (&d)[4]) {
  const Operands mine{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}, {d[0], d[1], d[2], d[3]}};
  exchange_lanes(site, &mine, sizeof mine, &d, sizeof(Products), multiply);
}

void deal_matrices(Site site, const uint32_t (&row)[4], bool transposed, uint32_t (&out)[4]) {
  exchange_lanes(site, &row, sizeof row, &out, sizeof(Dealt),
                 transposed ? deal<true> : deal<false>);
}

}  // namespace linnet::emulation
