// Private to core/hdf5*.cpp: HDF5 identifiers that close themselves, types, and the library lock.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

#include "core/dtype.h"
#include "core/error.h"

namespace linnet::hdf5 {

// HDF5's hid_t, without its header.
using Id = int64_t;

// Held during every call into HDF5, which is not safe for concurrent use. Turns off HDF5's own
// error printing in the calling thread.
class Lock {
 public:
  Lock();

 private:
  std::lock_guard<std::recursive_mutex> guard_;
};

// Owns one identifier of any kind. An invalid identifier throws Error with the given parts.
class Handle {
 public:
  Handle() = default;
  template <typename... Parts>
  explicit Handle(Id id, const Parts&... failure) : id_(id) {
    require(id >= 0, failure...);
  }
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, -1)) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(id_, other.id_);
    return *this;
  }
  ~Handle() { reset(); }
  // Closes it now; false when HDF5 reports a failure.
  bool reset();
  Id get() const { return id_; }

 private:
  Id id_ = -1;
};

// A name for a file in memory. HDF5 takes two open images of one name for the same file, so no name
// is used twice.
std::string fresh_image_name();

// HDF5's type of a dtype in memory and, little-endian, in files.
Id memory_type(DType dtype);
Id file_type(DType dtype);

inline constexpr const char* kDtypeAttribute = "linnet_dtype";

}  // namespace linnet::hdf5
