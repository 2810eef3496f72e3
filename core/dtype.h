// Element types of tensors, and bf16 storage with fp32 arithmetic.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace linnet {

enum class DType : uint8_t { f32, f64, bf16, i32, i64, u8, boolean };

// Bytes of one element.
size_t size_of(DType dtype);
// "f32", "bf16", ...
std::string_view name_of(DType dtype);
// The inverse of name_of; throws UsageError that lists the valid names.
DType dtype_from_name(std::string_view name);
// Whether gradients can flow through tensors of this type.
constexpr bool is_floating(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f64 || dtype == DType::bf16;
}

// 16-bit brain float: storage only, every operation converts to float.
struct bf16 {
  uint16_t bits = 0;
  bf16() = default;
  // Rounds to nearest, ties to even; NaN stays NaN.
  bf16(float value) {  // NOLINT(google-explicit-constructor): a storage type converts silently
    const uint32_t u = std::bit_cast<uint32_t>(value);
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    bits = static_cast<uint16_t>(nan ? (u >> 16) | 0x40u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<bf16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::u8;
};
template <>
struct DTypeOf<bool> {
  static constexpr DType value = DType::boolean;
};

// The type in which kernels compute on elements of T.
template <typename T>
struct ComputeOf {
  using type = T;
};
template <>
struct ComputeOf<bf16> {
  using type = float;
};
template <typename T>
using Compute = typename ComputeOf<T>::type;

}  // namespace linnet
