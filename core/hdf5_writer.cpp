// Hdf5Writer: an HDF5 file built by the core driver, without a backing store.
#include "core/hdf5.h"

#include <hdf5.h>

#include "core/hdf5_handle.h"

namespace linnet {

using hdf5::Handle;
using hdf5::Lock;

namespace {

// Attributes live in object headers, which hold at most 64 KiB.
constexpr size_t kMaxAttribute = 60'000;
// The image grows in steps of this many bytes.
constexpr size_t kGrowth = size_t{1} << 20;

Handle text_type(std::string_view text) {
  Handle type(H5Tcopy(H5T_C_S1), "HDF5 has no string type");
  // HDF5 has no strings of length 0: an empty one is stored as a single NUL of padding.
  const bool ok = H5Tset_size(type.get(), text.empty() ? 1 : text.size()) >= 0 &&
                  H5Tset_strpad(type.get(), H5T_STR_NULLPAD) >= 0 &&
                  H5Tset_cset(type.get(), H5T_CSET_UTF8) >= 0;
  require(ok, "HDF5 refuses a string of ", text.size(), " bytes");
  return type;
}

void check_text(const std::string& name, std::string_view text) {
  require(text.find('\0') == std::string_view::npos, "HDF5 text '", name,
          "' contains a NUL byte; store it as a u8 tensor");
}

}  // namespace

struct Hdf5Writer::Impl {
  Handle file;
  Handle make_parents;   // link creation: missing groups are made
  Handle without_times;  // dataset creation: no time stamps, for equal bytes

  hid_t open_file() const {
    require(file.get() >= 0, "an HDF5 file was written to after finish()");
    return file.get();
  }
  Handle create(const std::string& name, hid_t type, hid_t space) const {
    return Handle(H5Dcreate2(open_file(), name.c_str(), type, space, make_parents.get(),
                             without_times.get(), H5P_DEFAULT),
                  "HDF5 cannot create the dataset '", name, "' (is the name taken or not a path?)");
  }
  void set_attribute(const std::string& object, const std::string& name, hid_t file_type,
                     hid_t memory_type, const void* value) const {
    const Handle owner(H5Oopen(open_file(), object.c_str(), H5P_DEFAULT), "HDF5 has no object '",
                       object, "' to carry the attribute '", name, "'");
    const Handle space(H5Screate(H5S_SCALAR), "HDF5 refuses a scalar");
    const Handle attribute(
        H5Acreate2(owner.get(), name.c_str(), file_type, space.get(), H5P_DEFAULT, H5P_DEFAULT),
        "HDF5 cannot create the attribute '", name, "' of '", object, "' (is it there already?)");
    require(H5Awrite(attribute.get(), memory_type, value) >= 0, "HDF5 cannot write the attribute '",
            name, "' of '", object, "'");
  }
};

Hdf5Writer::Hdf5Writer() {
  const Lock lock;
  impl_ = std::make_unique<Impl>();
  const Handle access(H5Pcreate(H5P_FILE_ACCESS), "HDF5 property lists fail");
  require(H5Pset_fapl_core(access.get(), kGrowth, 0) >= 0, "HDF5 has no core driver");
  impl_->file =
      Handle(H5Fcreate(hdf5::fresh_image_name().c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get()),
             "HDF5 cannot start a file in memory");
  impl_->make_parents = Handle(H5Pcreate(H5P_LINK_CREATE), "HDF5 property lists fail");
  impl_->without_times = Handle(H5Pcreate(H5P_DATASET_CREATE), "HDF5 property lists fail");
  require(H5Pset_create_intermediate_group(impl_->make_parents.get(), 1) >= 0 &&
              H5Pset_obj_track_times(impl_->without_times.get(), false) >= 0,
          "HDF5 property lists fail");
}

Hdf5Writer::~Hdf5Writer() {
  const Lock lock;
  impl_.reset();
}

void Hdf5Writer::write(const std::string& name, const Tensor& tensor) {
  require(tensor.defined(), "the tensor for the HDF5 dataset '", name, "' is undefined");
  const Tensor host = tensor.to(Device{});
  const Lock lock;
  std::vector<hsize_t> sizes(host.shape().sizes().begin(), host.shape().sizes().end());
  const Handle space(sizes.empty()
                         ? H5Screate(H5S_SCALAR)
                         : H5Screate_simple(static_cast<int>(sizes.size()), sizes.data(), nullptr),
                     "HDF5 refuses the shape ", host.shape(), " of '", name, "'");
  const Handle dataset = impl_->create(name, hdf5::file_type(host.dtype()), space.get());
  if (host.elements() > 0) {
    require(H5Dwrite(dataset.get(), hdf5::memory_type(host.dtype()), H5S_ALL, H5S_ALL, H5P_DEFAULT,
                     host.raw()) >= 0,
            "HDF5 cannot write the dataset '", name, "' of ", host.bytes(),
            " bytes (out of memory?)");
  }
  if (host.dtype() == DType::bf16 || host.dtype() == DType::boolean)
    set_attribute(name, hdf5::kDtypeAttribute, name_of(host.dtype()));
}

void Hdf5Writer::write_text(const std::string& name, std::string_view text) {
  check_text(name, text);
  const Lock lock;
  const Handle type = text_type(text);
  const Handle space(H5Screate(H5S_SCALAR), "HDF5 refuses a scalar");
  const Handle dataset = impl_->create(name, type.get(), space.get());
  const std::string copy(text);
  require(H5Dwrite(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, copy.c_str()) >= 0,
          "HDF5 cannot write the text '", name, "'");
}

void Hdf5Writer::set_attribute(const std::string& object, const std::string& name, int64_t value) {
  const Lock lock;
  impl_->set_attribute(object, name, H5T_STD_I64LE, H5T_NATIVE_INT64, &value);
}

void Hdf5Writer::set_attribute(const std::string& object, const std::string& name, double value) {
  const Lock lock;
  impl_->set_attribute(object, name, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, &value);
}

void Hdf5Writer::set_attribute(const std::string& object, const std::string& name,
                               std::string_view text) {
  check_text(name, text);
  require(text.size() <= kMaxAttribute, "the HDF5 attribute '", name, "' has ", text.size(),
          " bytes; at most ", kMaxAttribute, " fit, use write_text");
  const Lock lock;
  const Handle type = text_type(text);
  const std::string copy(text);
  impl_->set_attribute(object, name, type.get(), type.get(), copy.c_str());
}

std::string Hdf5Writer::finish() {
  const Lock lock;
  const hid_t file = impl_->open_file();
  require(H5Fflush(file, H5F_SCOPE_GLOBAL) >= 0, "HDF5 cannot complete a file in memory");
  const ssize_t bytes = H5Fget_file_image(file, nullptr, 0);
  require(bytes > 0, "HDF5 cannot tell the size of a file in memory");
  std::string image(static_cast<size_t>(bytes), '\0');
  require(H5Fget_file_image(file, image.data(), image.size()) == bytes,
          "HDF5 cannot copy a file of ", bytes, " bytes out of memory");
  require(impl_->file.reset(), "HDF5 cannot close a file in memory");
  return image;
}

std::string tensors_to_hdf5(const std::map<std::string, Tensor>& tensors) {
  Hdf5Writer writer;
  for (const auto& [name, tensor] : tensors) writer.write(name, tensor);
  return writer.finish();
}

std::string hdf5_version() {
  const Lock lock;
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  require(H5get_libversion(&major, &minor, &release) >= 0, "HDF5 does not tell its version");
  return concat(major, '.', minor, '.', release);
}

}  // namespace linnet
