// The operations of arithmetic, for the CPU and for kernels.
#pragma once

#include <cstdint>

namespace linnet {

enum class Arithmetic : uint8_t { add, subtract, multiply, divide };

constexpr const char* name_of(Arithmetic operation) {
  constexpr const char* kNames[] = {"add", "subtract", "multiply", "divide"};
  return kNames[static_cast<int>(operation)];
}

template <typename T>
constexpr T combine_elements(Arithmetic operation, T a, T b) {
  switch (operation) {
    case Arithmetic::add:
      return a + b;
    case Arithmetic::subtract:
      return a - b;
    case Arithmetic::multiply:
      return a * b;
    default:
      return a / b;
  }
}

// Calls body with the function object of an operation, so that loops contain no choice.
template <typename Body>
void dispatch_arithmetic(Arithmetic operation, const Body& body) {
  switch (operation) {
    case Arithmetic::add:
      return body([](auto a, auto b) { return a + b; });
    case Arithmetic::subtract:
      return body([](auto a, auto b) { return a - b; });
    case Arithmetic::multiply:
      return body([](auto a, auto b) { return a * b; });
    default:
      return body([](auto a, auto b) { return a / b; });
  }
}

}  // namespace linnet
