// Names and sizes of element types; bf16 rounding over all bit patterns.
#include "core/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace linnet {
namespace {

TEST(DTypes, NamesGoBothWaysAndUnknownOnesAreRefused) {
  for (const DType dtype :
       {DType::f32, DType::f64, DType::bf16, DType::i32, DType::i64, DType::u8, DType::boolean}) {
    EXPECT_EQ(dtype_from_name(name_of(dtype)), dtype);
    EXPECT_GT(size_of(dtype), 0u);
  }
  EXPECT_EQ(size_of(DType::bf16), 2u);
  EXPECT_TRUE(is_floating(DType::bf16));
  EXPECT_FALSE(is_floating(DType::i64));
  EXPECT_THROW(dtype_from_name("fp32"), UsageError);
}

TEST(Bf16, EveryBitPatternSurvivesTheWayThroughFloat) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    bf16 value;
    value.bits = static_cast<uint16_t>(bits);
    const float wide = value;
    ASSERT_EQ(std::bit_cast<uint32_t>(wide), bits << 16);
    const bf16 back(wide);
    if (std::isnan(wide)) {
      ASSERT_TRUE(std::isnan(static_cast<float>(back))) << bits;
      ASSERT_EQ(back.bits & 0x8000u, bits & 0x8000u) << "sign of a NaN";
    } else {
      ASSERT_EQ(back.bits, bits);
    }
  }
}

TEST(Bf16, RoundsToTheNearestTiesToEven) {
  for (uint32_t bits = 0; bits < 0x7f80u; ++bits) {  // every finite positive value and its upper
    const uint32_t low = bits << 16;
    const uint16_t even = static_cast<uint16_t>((bits & 1u) != 0 ? bits + 1 : bits);
    ASSERT_EQ(bf16(std::bit_cast<float>(low + 0x7fffu)).bits, bits);
    ASSERT_EQ(bf16(std::bit_cast<float>(low + 0x8000u)).bits, even);
    ASSERT_EQ(bf16(std::bit_cast<float>(low + 0x8001u)).bits, bits + 1);
    ASSERT_EQ(bf16(std::bit_cast<float>(0x80000000u + low + 0x8000u)).bits, 0x8000u + even);
  }
}

TEST(Bf16, KeepsNanInfinityAndOverflow) {
  // A NaN whose payload lies only in the discarded bits must not become infinity.
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16(std::bit_cast<float>(0xffffffffu)))));
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(static_cast<float>(bf16(infinity)), infinity);
  EXPECT_EQ(static_cast<float>(bf16(-std::numeric_limits<float>::max())), -infinity);
  EXPECT_EQ(bf16(-0.0f).bits, 0x8000u);
}

}  // namespace
}  // namespace linnet
