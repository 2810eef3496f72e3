// Start-up of HDF5, its lock and the correspondence of types.
#include "core/hdf5_handle.h"

#include <hdf5.h>

#include <atomic>
#include <cstdlib>
#include <type_traits>

namespace linnet::hdf5 {
namespace {

static_assert(std::is_same_v<Id, hid_t>, "linnet needs HDF5 1.10 or later: 64-bit identifiers");

std::recursive_mutex& library_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

// Before any thread exists: HDF5 >= 1.10 locks files, which fails on NFS and Lustre. linnet opens
// images only, but plugins may open files through the same library.
[[maybe_unused]] const int locking_off = ::setenv("HDF5_USE_FILE_LOCKING", "FALSE", 0);

}  // namespace

Lock::Lock() : guard_(library_mutex()) {
  static const bool started = H5open() >= 0;
  require(started, "the HDF5 library does not start");
  // The setting is per thread in thread-safe builds of HDF5.
  thread_local const bool silent = H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr) >= 0;
  require(silent, "HDF5's error printing cannot be turned off");
}

bool Handle::reset() {
  const Id id = std::exchange(id_, -1);
  return id < 0 || H5Idec_ref(id) >= 0;
}

std::string fresh_image_name() {
  static std::atomic<uint64_t> count{0};
  return concat("linnet-image-", count++);
}

Id memory_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return H5T_NATIVE_FLOAT;
    case DType::f64:
      return H5T_NATIVE_DOUBLE;
    case DType::bf16:
      return H5T_NATIVE_UINT16;
    case DType::i32:
      return H5T_NATIVE_INT32;
    case DType::i64:
      return H5T_NATIVE_INT64;
    case DType::u8:
    case DType::boolean:
      return H5T_NATIVE_UINT8;
  }
  throw Error("memory_type: not a dtype");
}

Id file_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return H5T_IEEE_F32LE;
    case DType::f64:
      return H5T_IEEE_F64LE;
    case DType::bf16:
      return H5T_STD_U16LE;
    case DType::i32:
      return H5T_STD_I32LE;
    case DType::i64:
      return H5T_STD_I64LE;
    case DType::u8:
    case DType::boolean:
      return H5T_STD_U8LE;
  }
  throw Error("file_type: not a dtype");
}

}  // namespace linnet::hdf5
