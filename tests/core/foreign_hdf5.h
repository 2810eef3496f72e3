// For tests: HDF5 images as other programs write them, made by the HDF5 library itself.
// A source includes <hdf5.h> before it: headers do not pull in heavy ones.
#pragma once

#include <string>
#include <vector>

#include "core/hdf5_handle.h"

namespace linnet::test {

// Variable-length UTF-8, as h5py stores texts.
inline hdf5::Handle variable_text_type() {
  hdf5::Handle type(H5Tcopy(H5T_C_S1), "no type");
  H5Tset_size(type.get(), H5T_VARIABLE);
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  return type;
}

inline hdf5::Handle space_of(const std::vector<hsize_t>& sizes) {
  return hdf5::Handle(sizes.empty()
                          ? H5Screate(H5S_SCALAR)
                          : H5Screate_simple(static_cast<int>(sizes.size()), sizes.data(), nullptr),
                      "no space");
}

class ForeignHdf5 {
 public:
  explicit ForeignHdf5(bool newest_format = false) {
    const hdf5::Handle access(H5Pcreate(H5P_FILE_ACCESS), "no list");
    H5Pset_fapl_core(access.get(), 1 << 16, 0);
    if (newest_format) H5Pset_libver_bounds(access.get(), H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
    file_ = hdf5::Handle(
        H5Fcreate(hdf5::fresh_image_name().c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get()),
        "no file");
    parents_ = hdf5::Handle(H5Pcreate(H5P_LINK_CREATE), "no list");
    H5Pset_create_intermediate_group(parents_.get(), 1);
  }

  hid_t file() const { return file_.get(); }

  // Chunks and filters by `creation`, made with H5Pcreate(H5P_DATASET_CREATE).
  void dataset(const std::string& name, const std::vector<hsize_t>& sizes, hid_t stored_type,
               hid_t memory_type, const void* values, hid_t creation = H5P_DEFAULT) const {
    const hdf5::Handle space = space_of(sizes);
    const hdf5::Handle dataset(H5Dcreate2(file(), name.c_str(), stored_type, space.get(),
                                          parents_.get(), creation, H5P_DEFAULT),
                               "no dataset ", name);
    require(values == nullptr ||
                H5Dwrite(dataset.get(), memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0,
            "not written: ", name);
  }
  void attribute(const std::string& object, const std::string& name, hid_t stored_type,
                 hid_t memory_type, const void* value,
                 const std::vector<hsize_t>& sizes = {}) const {
    const hdf5::Handle space = space_of(sizes);
    const hdf5::Handle owner(H5Oopen(file(), object.c_str(), H5P_DEFAULT), "no object ", object);
    const hdf5::Handle attribute(
        H5Acreate2(owner.get(), name.c_str(), stored_type, space.get(), H5P_DEFAULT, H5P_DEFAULT),
        "no attribute ", name);
    require(H5Awrite(attribute.get(), memory_type, value) >= 0, "not written: ", name);
  }
  void text_attribute(const std::string& object, const std::string& name,
                      const std::string& text) const {
    const char* value = text.c_str();
    const hdf5::Handle type = variable_text_type();
    attribute(object, name, type.get(), type.get(), &value);
  }

  std::string image() const {
    H5Fflush(file(), H5F_SCOPE_GLOBAL);
    std::string image(static_cast<size_t>(H5Fget_file_image(file(), nullptr, 0)), '\0');
    H5Fget_file_image(file(), image.data(), image.size());
    return image;
  }

 private:
  hdf5::Lock lock_;
  hdf5::Handle file_, parents_;
};

}  // namespace linnet::test
