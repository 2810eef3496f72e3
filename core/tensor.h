// Tensor: a contiguous, row-major array on a device; a value handle on shared storage.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/dtype.h"
#include "core/error.h"

namespace linnet {

// The sizes of a tensor, outermost first, at most kMaxRank of them. An empty shape is a scalar (one
// element). Held in place: a step of generation copies hundreds of shapes.
class Shape {
 public:
  static constexpr size_t kMaxRank = 8;
  Shape() = default;
  Shape(std::initializer_list<int64_t> sizes) : Shape(std::span(sizes.begin(), sizes.size())) {}
  // Throws Error when there are too many sizes, one is negative, or the element count overflows.
  explicit Shape(std::span<const int64_t> sizes);
  size_t rank() const { return rank_; }
  // Size of a dimension; negative indices count from the last. Throws Error when out of range.
  int64_t operator[](int64_t dimension) const {
    const auto rank = static_cast<int64_t>(rank_);
    const int64_t index = dimension < 0 ? dimension + rank : dimension;
    if (index < 0 || index >= rank) refuse_dimension(dimension);
    return sizes_[static_cast<size_t>(index)];
  }
  int64_t elements() const { return elements_; }
  // Of this object, which must outlive what is returned.
  std::span<const int64_t> sizes() const { return {sizes_.data(), rank_}; }
  std::vector<int64_t> to_vector() const { return {sizes_.begin(), sizes_.begin() + rank_}; }
  // The same with another size of one dimension, which is counted as in [].
  Shape with(int64_t dimension, int64_t size) const;
  bool operator==(const Shape& other) const {
    return rank_ == other.rank_ && sizes_ == other.sizes_;
  }
  // "[2, 3]".
  std::string to_string() const;

 private:
  [[noreturn]] void refuse_dimension(int64_t dimension) const;
  std::array<int64_t, kMaxRank> sizes_{};  // zeros behind the last
  size_t rank_ = 0;
  int64_t elements_ = 1;
};
std::ostream& operator<<(std::ostream& out, const Shape& shape);

// Copies share storage: Tensor b = a; makes b another handle on the same elements. A
// default-constructed tensor is undefined: it has no elements and may only be assigned or tested.
class Tensor {
 public:
  Tensor() = default;
  // Contents are undefined (NaN when set_fill_uninitialized is on).
  static Tensor empty(const Shape& shape, DType dtype = DType::f32, Device device = {});
  // The same with memory for `room` more elements behind it, which continued() gives away.
  static Tensor with_room(const Shape& shape, int64_t room, DType dtype = DType::f32,
                          Device device = {});
  static Tensor zeros(const Shape& shape, DType dtype = DType::f32, Device device = {});
  static Tensor full(const Shape& shape, double value, DType dtype = DType::f32,
                     Device device = {});
  // Copies host values; their count must equal shape.elements().
  template <typename T>
  static Tensor from(std::span<const T> values, const Shape& shape, Device device = {});
  template <typename T>
  static Tensor from(const std::vector<T>& values, const Shape& shape, Device device = {}) {
    return from(std::span<const T>(values), shape, device);
  }

  // A handle on memory that someone else owns and that outlives every handle.
  static Tensor borrowed(void* memory, const Shape& shape, DType dtype);

  bool defined() const { return storage_ != nullptr; }
  const Shape& shape() const { return shape_; }
  int64_t size(int64_t dimension) const { return shape_[dimension]; }
  int64_t elements() const { return shape_.elements(); }
  size_t bytes() const { return static_cast<size_t>(elements()) * size_of(dtype_); }
  DType dtype() const { return dtype_; }
  Device device() const;

  // The elements of a tensor in host memory. Throws Error when T is not the dtype, or the tensor is
  // undefined or on another device.
  template <typename T>
  T* data() const;
  // Where the elements are, on whatever device.
  void* raw() const;

  // The same elements under another shape; element counts must agree.
  Tensor reshape(const Shape& shape) const;
  // Rows [begin, end) of the first dimension, sharing storage.
  Tensor rows(int64_t begin, int64_t end) const;
  // `shape.elements()` elements starting at element `offset`, sharing storage.
  Tensor slice(int64_t offset, const Shape& shape) const;
  // `shape.elements()` elements in the same memory from element `skipped` of this tensor on, those
  // behind its end undefined: they are given away once, so that two tensors that continue one never
  // share what they write. Undefined where they were given away before or there is no room.
  Tensor continued(int64_t skipped, const Shape& shape) const;
  // A new tensor with its own copy of the elements.
  Tensor clone() const;
  // Converts elements; the same handle when nothing changes.
  Tensor to(DType dtype) const;
  Tensor to(Device device) const;
  // Overwrites this tensor's elements; shapes must agree, dtypes are converted.
  void copy_from(const Tensor& source) const;
  void set_zero() const;
  void fill(double value) const;
  // All elements on the host, converted to T.
  template <typename T>
  std::vector<T> to_vector() const;
  // The single element of a one-element tensor.
  double item() const;
  // Whether two handles share storage memory.
  bool shares_storage(const Tensor& other) const { return storage_ == other.storage_; }
  // Whether this is the only handle on its storage: writing in place cannot be seen elsewhere.
  bool unique() const { return storage_.use_count() == 1; }

 private:
  struct Storage;
  std::shared_ptr<Storage> storage_;
  int64_t offset_ = 0;
  Shape shape_;
  DType dtype_ = DType::f32;
};

// When on, Tensor::empty fills floating tensors with NaN and others with their largest value, so
// that an unwritten output cannot pass a test. Off by default; also set by LINNET_FILL_NAN=1.
void set_fill_uninitialized(bool on);

// Calls body with a value of the C++ type of a floating dtype: dispatch_floating(t.dtype(),
// [&](auto zero) { using T = decltype(zero); ... }). Throws Error for other dtypes.
template <typename Body>
decltype(auto) dispatch_floating(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::f32:
      return body(float{});
    case DType::f64:
      return body(double{});
    case DType::bf16:
      return body(bf16{});
    default:
      throw Error(concat("expected a floating dtype, got ", name_of(dtype)));
  }
}

}  // namespace linnet
