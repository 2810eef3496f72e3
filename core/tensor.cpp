#include "core/tensor.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <ostream>

#include "core/cuda/backend.h"
#include "core/cuda/elementwise.h"
#include "core/threads.h"

namespace linnet {
namespace {

std::atomic<bool> fill_uninitialized{[] {
  const char* text = std::getenv("LINNET_FILL_NAN");
  return text != nullptr && text[0] == '1';
}()};

// Elements below which a second thread costs more than it saves.
constexpr int64_t kGrain = 65536;

// Calls body with a value of the C++ type of any dtype.
template <typename Body>
decltype(auto) dispatch_any(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::i32:
      return body(int32_t{});
    case DType::i64:
      return body(int64_t{});
    case DType::u8:
      return body(uint8_t{});
    case DType::boolean:
      return body(bool{});
    default:
      return dispatch_floating(dtype, body);
  }
}

template <typename To, typename From>
To convert(From value) {
  if constexpr (std::is_same_v<To, bool>) {
    return value != From{};
  } else {
    return static_cast<To>(value);
  }
}

template <typename T>
constexpr bool kCountable = std::is_integral_v<T> && !std::is_same_v<T, bool>;

// `value` as a T; integers refuse what they cannot hold.
template <typename T>
T typed_value(double value) {
  if constexpr (kCountable<T>) {
    // 2^digits is exact in double, the largest integer itself may not be.
    const double above = std::ldexp(1.0, std::numeric_limits<T>::digits);
    require(value > static_cast<double>(std::numeric_limits<T>::min()) - 1 && value < above,
            "Tensor::fill: ", value, " does not fit ", name_of(DTypeOf<T>::value));
  }
  return convert<T>(std::is_same_v<T, bf16> ? static_cast<float>(value) : value);
}

// The bytes that set_fill_uninitialized writes.
template <typename T>
T uninitialized_value() {
  if constexpr (kCountable<T>) return std::numeric_limits<T>::max();
  return convert<T>(std::numeric_limits<float>::quiet_NaN());
}

template <typename T>
void fill_with(const Tensor& t, T value) {
  T* to = t.data<T>();
  parallel_for(t.elements(), kGrain,
               [=](int64_t begin, int64_t end) { std::fill(to + begin, to + end, value); });
}

}  // namespace

void set_fill_uninitialized(bool on) {
  fill_uninitialized = on;
}

Shape::Shape(std::span<const int64_t> sizes) : rank_(sizes.size()) {
  require(rank_ <= kMaxRank, "a shape of ", rank_, " dimensions: a tensor has at most ", kMaxRank);
  std::copy(sizes.begin(), sizes.end(), sizes_.begin());
  for (const int64_t size : sizes) {
    require(size >= 0, "a shape has the negative size ", size);
    const bool fits = !__builtin_mul_overflow(elements_, size, &elements_) &&
                      elements_ <= std::numeric_limits<int64_t>::max() / 16;
    require(fits, "shape ", *this, " has more elements than memory can hold");
  }
}

Shape Shape::with(int64_t dimension, int64_t size) const {
  (*this)[dimension];  // throws where there is none
  std::array<int64_t, kMaxRank> sizes = sizes_;
  sizes[static_cast<size_t>(dimension < 0 ? dimension + static_cast<int64_t>(rank_) : dimension)] =
      size;
  return Shape(std::span<const int64_t>(sizes.data(), rank_));
}

void Shape::refuse_dimension(int64_t dimension) const {
  throw Error(concat("dimension ", dimension, " of a tensor of shape ", *this));
}

std::string Shape::to_string() const {
  std::string text = "[";
  for (size_t i = 0; i < rank_; ++i) text += (i ? ", " : "") + std::to_string(sizes_[i]);
  return text + "]";
}

std::ostream& operator<<(std::ostream& out, const Shape& shape) {
  return out << shape.to_string();
}

struct Tensor::Storage {
  Storage(size_t bytes, Device device)
      : device(device),
        bytes(bytes),
        used(bytes),
        memory(device_interface(device).allocate(bytes)) {}
  explicit Storage(void* borrowed) : device(), bytes(0), used(0), memory(borrowed), owned(false) {}
  ~Storage() {
    if (owned) device_interface(device).release(memory, bytes);
  }
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  Device device;
  size_t bytes;
  std::atomic<size_t> used;  // what is behind these may be given away
  void* memory;
  bool owned = true;
};

Tensor Tensor::empty(const Shape& shape, DType dtype, Device device) {
  Tensor result;
  result.storage_ =
      std::make_shared<Storage>(static_cast<size_t>(shape.elements()) * size_of(dtype), device);
  result.shape_ = shape;
  result.dtype_ = dtype;
  if (fill_uninitialized) {
    if constexpr (kCuda) {
      if (on_cuda(result)) {
        cuda::fill_with_nan(result);
        return result;
      }
    }
    dispatch_any(dtype, [&](auto zero) {
      using T = decltype(zero);
      fill_with(result, uninitialized_value<T>());
    });
  }
  return result;
}

Tensor Tensor::with_room(const Shape& shape, int64_t room, DType dtype, Device device) {
  const Tensor all = empty({shape.elements() + room}, dtype, device);
  all.storage_->used = static_cast<size_t>(shape.elements()) * size_of(dtype);
  return all.slice(0, shape);
}

Tensor Tensor::zeros(const Shape& shape, DType dtype, Device device) {
  Tensor result;
  result.storage_ =
      std::make_shared<Storage>(static_cast<size_t>(shape.elements()) * size_of(dtype), device);
  result.shape_ = shape;
  result.dtype_ = dtype;
  result.set_zero();
  return result;
}

Tensor Tensor::borrowed(void* memory, const Shape& shape, DType dtype) {
  Tensor result;
  result.storage_ = std::make_shared<Storage>(memory);
  result.shape_ = shape;
  result.dtype_ = dtype;
  return result;
}

Tensor Tensor::full(const Shape& shape, double value, DType dtype, Device device) {
  Tensor result = empty(shape, dtype, device);
  result.fill(value);
  return result;
}

template <typename T>
Tensor Tensor::from(std::span<const T> values, const Shape& shape, Device device) {
  require(static_cast<int64_t>(values.size()) == shape.elements(), "Tensor::from: ", values.size(),
          " values for shape ", shape);
  Tensor result = empty(shape, DTypeOf<T>::value, device);
  device_interface(device).copy_from_host(result.raw(), values.data(), result.bytes());
  return result;
}

Device Tensor::device() const {
  require(defined(), "Tensor::device: the tensor is undefined");
  return storage_->device;
}

void* Tensor::raw() const {
  require(defined(), "Tensor::raw: the tensor is undefined");
  return static_cast<char*>(storage_->memory) + static_cast<size_t>(offset_) * size_of(dtype_);
}

template <typename T>
T* Tensor::data() const {
  if (dtype_ != DTypeOf<T>::value) {  // the arguments of an error are built only when it is thrown
    throw Error(concat("Tensor::data: expected ", name_of(DTypeOf<T>::value),
                       ", the tensor of shape ", shape_, " is ", name_of(dtype_)));
  }
  if (device().kind != DeviceKind::cpu) {
    throw Error(concat("Tensor::data: the tensor of shape ", shape_, " is on ", name_of(device()),
                       "; this code works in host memory only"));
  }
  return static_cast<T*>(raw());
}

Tensor Tensor::reshape(const Shape& shape) const {
  require(defined(), "Tensor::reshape: the tensor is undefined");
  require(shape.elements() == elements(), "Tensor::reshape: ", shape_, " to ", shape,
          " changes the number of elements");
  Tensor result = *this;
  result.shape_ = shape;
  return result;
}

Tensor Tensor::slice(int64_t offset, const Shape& shape) const {
  require(defined(), "Tensor::slice: the tensor is undefined");
  require(offset >= 0 && offset <= elements() - shape.elements(), "Tensor::slice: ", shape,
          " at element ", offset, " of ", shape_);
  Tensor result = *this;
  result.offset_ += offset;
  result.shape_ = shape;
  return result;
}

Tensor Tensor::continued(int64_t skipped, const Shape& shape) const {
  require(defined() && skipped >= 0 && skipped <= elements(), "Tensor::continued: ", skipped,
          " elements of ", shape_);
  const auto bytes_before = [&](int64_t element) {
    return static_cast<size_t>(offset_ + element) * size_of(dtype_);
  };
  const size_t end = bytes_before(skipped + shape.elements());
  size_t used = bytes_before(elements());
  if (end < used || end > storage_->bytes) return {};
  if (!storage_->used.compare_exchange_strong(used, end)) return {};
  Tensor result = *this;
  result.offset_ += skipped;
  result.shape_ = shape;
  return result;
}

Tensor Tensor::rows(int64_t begin, int64_t end) const {
  require(shape_.rank() > 0 && begin >= 0 && begin <= end && end <= shape_[0], "Tensor::rows: [",
          begin, ", ", end, ") of ", shape_);
  const int64_t row = shape_[0] == 0 ? 0 : elements() / shape_[0];
  return slice(begin * row, shape_.with(0, end - begin));
}

Tensor Tensor::clone() const {
  Tensor result = empty(shape_, dtype_, device());
  device_interface(device()).copy(result.raw(), raw(), bytes());
  return result;
}

Tensor Tensor::to(DType dtype) const {
  require(defined(), "Tensor::to: the tensor is undefined");
  if (dtype == dtype_) return *this;
  Tensor result = empty(shape_, dtype, device());
  result.copy_from(*this);
  return result;
}

Tensor Tensor::to(Device target) const {
  if (target == device()) return *this;
  Tensor result = empty(shape_, dtype_, target);
  result.copy_from(*this);
  return result;
}

void Tensor::copy_from(const Tensor& source) const {
  require(source.shape() == shape_, "Tensor::copy_from: shape ", source.shape(), " into ", shape_);
  if (source.dtype() == dtype_) {
    if (source.device() == device()) {
      device_interface(device()).copy(raw(), source.raw(), bytes());
    } else if (source.device().kind == DeviceKind::cpu) {
      device_interface(device()).copy_from_host(raw(), source.raw(), bytes());
    } else if (device().kind == DeviceKind::cpu) {
      device_interface(source.device()).copy_to_host(raw(), source.raw(), bytes());
    } else {
      copy_from(source.to(Device{}));  // between two GPUs, by way of the host
    }
    return;
  }
  if (source.device() != device()) {  // converted where it is, then moved
    copy_from(source.to(dtype_));
    return;
  }
  if constexpr (kCuda) {
    if (on_cuda(*this)) return cuda::convert(source, *this);
  }
  dispatch_any(dtype_, [&](auto to_zero) {
    using To = decltype(to_zero);
    dispatch_any(source.dtype(), [&](auto from_zero) {
      using From = decltype(from_zero);
      To* to = data<To>();
      const From* from = source.data<From>();
      parallel_for(elements(), kGrain, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) to[i] = convert<To>(from[i]);
      });
    });
  });
}

void Tensor::set_zero() const {
  device_interface(device()).set_zero(raw(), bytes());
}

void Tensor::fill(double value) const {
  dispatch_any(dtype_, [&](auto zero) {
    using T = decltype(zero);
    const T element = typed_value<T>(value);
    if constexpr (kCuda) {
      if (on_cuda(*this)) return cuda::fill(*this, &element);
    }
    fill_with(*this, element);
  });
}

template <typename T>
std::vector<T> Tensor::to_vector() const {
  require(defined(), "Tensor::to_vector: the tensor is undefined");
  const Tensor host = to(Device{}).to(DTypeOf<T>::value);
  const T* from = host.data<T>();
  return std::vector<T>(from, from + host.elements());
}

double Tensor::item() const {
  require(elements() == 1, "Tensor::item: the tensor has shape ", shape_);
  return to_vector<double>()[0];
}

#define LINNET_INSTANTIATE(T)                                                \
  template Tensor Tensor::from<T>(std::span<const T>, const Shape&, Device); \
  template T* Tensor::data<T>() const;                                       \
  template std::vector<T> Tensor::to_vector<T>() const;
LINNET_INSTANTIATE(float)
LINNET_INSTANTIATE(double)
LINNET_INSTANTIATE(bf16)
LINNET_INSTANTIATE(int32_t)
LINNET_INSTANTIATE(int64_t)
LINNET_INSTANTIATE(uint8_t)
#undef LINNET_INSTANTIATE
template bool* Tensor::data<bool>() const;

}  // namespace linnet
