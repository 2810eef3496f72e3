#include "core/dtype.h"

#include <array>
#include <utility>

#include "core/error.h"

namespace linnet {
namespace {

constexpr std::array<std::pair<DType, std::string_view>, 7> kNames{{{DType::f32, "f32"},
                                                                    {DType::f64, "f64"},
                                                                    {DType::bf16, "bf16"},
                                                                    {DType::i32, "i32"},
                                                                    {DType::i64, "i64"},
                                                                    {DType::u8, "u8"},
                                                                    {DType::boolean, "bool"}}};

}  // namespace

size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::bf16:
      return 2;
    case DType::u8:
    case DType::boolean:
      return 1;
  }
  throw Error("size_of: not a dtype");
}

std::string_view name_of(DType dtype) {
  for (const auto& [value, name] : kNames) {
    if (value == dtype) return name;
  }
  throw Error("name_of: not a dtype");
}

DType dtype_from_name(std::string_view name) {
  for (const auto& [value, known] : kNames) {
    if (known == name) return value;
  }
  throw UsageError(
      {ErrorCode::unknown_name, "dtype"},
      concat("unknown dtype '", name, "'; expected f32, f64, bf16, i32, i64, u8 or bool"));
}

}  // namespace linnet
