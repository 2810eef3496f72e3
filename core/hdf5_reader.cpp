// Hdf5Reader: an HDF5 file opened from an image in memory.
#include <hdf5.h>

#include <algorithm>
#include <cstring>

#include "core/hdf5.h"
#include "core/hdf5_handle.h"

namespace linnet {

using hdf5::Handle;
using hdf5::Lock;

namespace {

// Deflate expands at most about 1032 times: a dataset that claims more is damaged or hostile.
constexpr uint64_t kMaxExpansion = 1100;

// Trailing NULs are padding.
std::string without_padding(std::string text) {
  text.resize(std::min(text.find('\0'), text.size()));
  return text;
}

bool is_numpy_boolean(hid_t type) {
  if (H5Tget_class(type) != H5T_ENUM || H5Tget_size(type) != 1) return false;
  return H5Tget_nmembers(type) == 2;
}

}  // namespace

struct Hdf5Reader::Impl {
  std::string label;
  uint64_t image_bytes = 0;
  Handle file;

  template <typename... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw Error({ErrorCode::malformed, "", label}, concat(label, ": ", parts...));
  }

  // Whether the path leads to an object inside the file; throws when it leads through a link that
  // leaves it.
  bool contains(const std::string& name) const {
    size_t end = 0;
    while (end < name.size()) {
      const size_t begin = name.find_first_not_of('/', end);
      if (begin == std::string::npos) break;
      end = std::min(name.find('/', begin), name.size());
      const std::string prefix = name.substr(0, end);
      if (H5Lexists(file.get(), prefix.c_str(), H5P_DEFAULT) <= 0) return false;
      H5L_info_t link;
      if (H5Lget_info(file.get(), prefix.c_str(), &link, H5P_DEFAULT) < 0)
        fail("HDF5 cannot look at '", prefix, "'");
      if (link.type != H5L_TYPE_HARD)
        fail("'", prefix, "' is a link to elsewhere; only objects stored in the file are read");
    }
    return true;
  }

  Handle open(const std::string& name) const {
    require(contains(name), Cause{ErrorCode::not_found, name, label}, label, ": there is no '",
            name, "'");
    return Handle(H5Oopen(file.get(), name.c_str(), H5P_DEFAULT), label, ": HDF5 cannot open '",
                  name, "'");
  }

  Handle open_dataset(const std::string& name) const {
    Handle dataset = open(name);
    if (H5Iget_type(dataset.get()) != H5I_DATASET) fail("'", name, "' is not a dataset");
    return dataset;
  }

  std::string read_text_of(hid_t type, hid_t space, const std::string& name, auto&& read) const {
    if (H5Tget_class(type) != H5T_STRING) fail("'", name, "' is not text");
    if (H5Sget_simple_extent_npoints(space) != 1) fail("'", name, "' is not a single text");
    if (H5Tis_variable_str(type) > 0) {
      char* text = nullptr;
      const Handle memory(H5Tcopy(type), label, ": HDF5 cannot read '", name, "'");
      if (read(memory.get(), &text) < 0) fail("HDF5 cannot read '", name, "'");
      const std::string result = text != nullptr ? text : "";
      H5Dvlen_reclaim(memory.get(), space, H5P_DEFAULT, &text);
      return result;
    }
    const size_t bytes = H5Tget_size(type);
    if (bytes == 0 || bytes > image_bytes) fail("the text '", name, "' has an impossible length");
    std::string text(bytes, '\0');
    if (read(type, text.data()) < 0) fail("HDF5 cannot read '", name, "'");
    return without_padding(text);
  }

  std::string attribute_text(hid_t object, const std::string& name) const {
    const Handle attribute(H5Aopen(object, name.c_str(), H5P_DEFAULT), label,
                           ": HDF5 cannot open the attribute '", name, "'");
    const Handle type(H5Aget_type(attribute.get()), label, ": damaged attribute '", name, "'");
    const Handle space(H5Aget_space(attribute.get()), label, ": damaged attribute '", name, "'");
    return read_text_of(type.get(), space.get(), name, [&](hid_t memory, void* to) {
      return H5Aread(attribute.get(), memory, to);
    });
  }

  DType dtype(hid_t dataset, const std::string& name) const {
    const Handle type(H5Dget_type(dataset), label, ": the type of '", name, "' is damaged");
    const H5T_class_t kind = H5Tget_class(type.get());
    const size_t bytes = H5Tget_size(type.get());
    const bool is_signed = kind == H5T_INTEGER && H5Tget_sign(type.get()) == H5T_SGN_2;
    if (H5Aexists(dataset, hdf5::kDtypeAttribute) > 0) {
      const DType marked = dtype_from_name(attribute_text(dataset, hdf5::kDtypeAttribute));
      const bool fits = (marked == DType::bf16 && kind == H5T_INTEGER && bytes == 2) ||
                        (marked == DType::boolean && kind == H5T_INTEGER && bytes == 1);
      if (!fits)
        fail("'", name, "' is marked as ", name_of(marked), " but its stored type is another");
      return marked;
    }
    if (is_numpy_boolean(type.get())) return DType::boolean;
    if (kind == H5T_FLOAT && bytes == 4) return DType::f32;
    if (kind == H5T_FLOAT && bytes == 8) return DType::f64;
    if (is_signed && bytes == 4) return DType::i32;
    if (is_signed && bytes == 8) return DType::i64;
    if (kind == H5T_INTEGER && !is_signed && bytes == 1) return DType::u8;
    fail("'", name, "' has a type that linnet does not read; it reads f32 f64 i32 i64 u8 and bool");
  }

  Shape shape(hid_t dataset, const std::string& name) const {
    const Handle space(H5Dget_space(dataset), label, ": the shape of '", name, "' is damaged");
    const int rank = H5Sget_simple_extent_ndims(space.get());
    if (rank < 0 || H5Sget_simple_extent_type(space.get()) == H5S_NULL)
      fail("'", name, "' has no shape");
    std::vector<hsize_t> sizes(static_cast<size_t>(rank));
    if (rank > 0 && H5Sget_simple_extent_dims(space.get(), sizes.data(), nullptr) != rank)
      fail("the shape of '", name, "' is damaged");
    for (const hsize_t size : sizes) {
      if (size > uint64_t{INT64_MAX}) fail("the shape of '", name, "' is damaged");
    }
    return Shape(std::vector<int64_t>(sizes.begin(), sizes.end()));
  }

  // Refuses datasets whose contents are not in the image, and sizes that the image cannot hold.
  void check_storage(hid_t dataset, const std::string& name, uint64_t bytes) const {
    const Handle creation(H5Dget_create_plist(dataset), label, ": '", name, "' is damaged");
    const H5D_layout_t layout = H5Pget_layout(creation.get());
    const bool inside = layout == H5D_COMPACT || layout == H5D_CHUNKED ||
                        (layout == H5D_CONTIGUOUS && H5Pget_external_count(creation.get()) == 0);
    if (!inside) fail("the contents of '", name, "' are stored outside the file; this is refused");
    const uint64_t stored = H5Dget_storage_size(dataset);
    const uint64_t max_bytes = layout == H5D_CHUNKED ? kMaxExpansion * stored : stored;
    if (bytes > max_bytes || stored > image_bytes)
      fail("'", name, "' should have ", bytes, " bytes but the file holds only ", stored);
  }

  // The attribute's value converted by HDF5 to `memory`, after a look at its class.
  template <typename T>
  T number(const std::string& object, const std::string& name, hid_t memory,
           bool accept_float) const {
    const Handle owner = open(object);
    if (H5Aexists(owner.get(), name.c_str()) <= 0)
      fail("'", object, "' has no attribute '", name, "'");
    const Handle attribute(H5Aopen(owner.get(), name.c_str(), H5P_DEFAULT), label,
                           ": HDF5 cannot open the attribute '", name, "'");
    const Handle type(H5Aget_type(attribute.get()), label, ": damaged attribute '", name, "'");
    const Handle space(H5Aget_space(attribute.get()), label, ": damaged attribute '", name, "'");
    const H5T_class_t kind = H5Tget_class(type.get());
    if (H5Sget_simple_extent_npoints(space.get()) != 1)
      fail("the attribute '", name, "' is not a single value");
    if (is_numpy_boolean(type.get())) {
      uint8_t value = 0;
      if (H5Aread(attribute.get(), type.get(), &value) < 0)
        fail("HDF5 cannot read the attribute '", name, "'");
      return static_cast<T>(value);
    }
    if (kind != H5T_INTEGER && !(accept_float && kind == H5T_FLOAT))
      fail("the attribute '", name, "' is not ", accept_float ? "a number" : "an integer");
    if (kind == H5T_INTEGER && H5Tget_size(type.get()) == 8 &&
        H5Tget_sign(type.get()) == H5T_SGN_NONE) {
      uint64_t value = 0;
      if (H5Aread(attribute.get(), H5T_NATIVE_UINT64, &value) < 0 || value > uint64_t{INT64_MAX})
        fail("the attribute '", name, "' exceeds 64-bit signed integers");
      return static_cast<T>(value);
    }
    T value{};
    if (H5Aread(attribute.get(), memory, &value) < 0)
      fail("HDF5 cannot read the attribute '", name, "'");
    return value;
  }
};

Hdf5Reader::Hdf5Reader(std::string_view image, std::string label) {
  const Lock lock;
  impl_ = std::make_unique<Impl>();
  impl_->label = std::move(label);
  impl_->image_bytes = image.size();
  const Handle access(H5Pcreate(H5P_FILE_ACCESS), "HDF5 property lists fail");
  require(H5Pset_fapl_core(access.get(), size_t{1} << 16, 0) >= 0, "HDF5 has no core driver");
  // HDF5 copies the image; its parameter lacks a const.
  if (image.empty() ||
      H5Pset_file_image(access.get(), const_cast<char*>(image.data()), image.size()) < 0)
    impl_->fail("is empty or does not fit into memory (", image.size(), " bytes)");
  impl_->file =
      Handle(H5Fopen(hdf5::fresh_image_name().c_str(), H5F_ACC_RDONLY, access.get()), impl_->label,
             ": is not an HDF5 file, or is truncated or damaged (", image.size(), " bytes)");
}

Hdf5Reader::~Hdf5Reader() {
  const Lock lock;
  impl_.reset();
}

bool Hdf5Reader::contains(const std::string& name) const {
  const Lock lock;
  return impl_->contains(name);
}

bool Hdf5Reader::is_group(const std::string& name) const {
  const Lock lock;
  return impl_->contains(name) && H5Iget_type(impl_->open(name).get()) == H5I_GROUP;
}

std::vector<std::string> Hdf5Reader::list(const std::string& group) const {
  const Lock lock;
  const Handle handle = impl_->open(group);
  H5G_info_t info;
  if (H5Iget_type(handle.get()) != H5I_GROUP || H5Gget_info(handle.get(), &info) < 0)
    impl_->fail("'", group, "' is not a group");
  std::vector<std::string> names;
  for (hsize_t i = 0; i < info.nlinks; ++i) {
    const auto get = [&](char* to, size_t bytes) {
      return H5Lget_name_by_idx(handle.get(), ".", H5_INDEX_NAME, H5_ITER_INC, i, to, bytes,
                                H5P_DEFAULT);
    };
    const ssize_t length = get(nullptr, 0);
    if (length < 0) impl_->fail("HDF5 cannot list '", group, "'");
    std::string name(static_cast<size_t>(length) + 1, '\0');
    if (get(name.data(), name.size()) != length) impl_->fail("HDF5 cannot list '", group, "'");
    name.pop_back();
    names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> Hdf5Reader::list_datasets(const std::string& group) const {
  // A damaged file can contain a cycle of groups.
  constexpr size_t kMaxDepth = 64;
  std::vector<std::string> found;
  const auto visit = [&](auto&& self, const std::string& path, const std::string& relative,
                         size_t depth) -> void {
    if (depth > kMaxDepth) impl_->fail("groups are nested deeper than ", kMaxDepth);
    for (const std::string& name : list(path)) {
      const std::string child = concat(path, path.back() == '/' ? "" : "/", name);
      const std::string child_relative = relative.empty() ? name : concat(relative, "/", name);
      if (is_group(child))
        self(self, child, child_relative, depth + 1);
      else
        found.push_back(child_relative);
    }
  };
  visit(visit, group.empty() ? "/" : group, "", 0);
  std::sort(found.begin(), found.end());
  return found;
}

DType Hdf5Reader::dtype(const std::string& name) const {
  const Lock lock;
  return impl_->dtype(impl_->open_dataset(name).get(), name);
}

Shape Hdf5Reader::shape(const std::string& name) const {
  const Lock lock;
  return impl_->shape(impl_->open_dataset(name).get(), name);
}

Tensor Hdf5Reader::read(const std::string& name) const {
  const Lock lock;
  const Handle dataset = impl_->open_dataset(name);
  const DType dtype = impl_->dtype(dataset.get(), name);
  const Shape shape = impl_->shape(dataset.get(), name);
  const uint64_t bytes = static_cast<uint64_t>(shape.elements()) * size_of(dtype);
  impl_->check_storage(dataset.get(), name, bytes);
  const Tensor tensor = Tensor::empty(shape, dtype);
  if (bytes == 0) return tensor;
  // Numpy's booleans are an enumeration, which converts only to itself.
  const Handle stored(H5Dget_type(dataset.get()), impl_->label, ": '", name, "' is damaged");
  const hid_t memory = is_numpy_boolean(stored.get()) ? stored.get() : hdf5::memory_type(dtype);
  if (H5Dread(dataset.get(), memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, tensor.raw()) < 0)
    impl_->fail("HDF5 cannot read '", name, "'; the file is damaged or uses an unknown filter");
  if (dtype == DType::boolean) {
    const auto* values = static_cast<const uint8_t*>(tensor.raw());
    if (std::any_of(values, values + bytes, [](uint8_t value) { return value > 1; }))
      impl_->fail("'", name, "' holds booleans other than 0 and 1");
  }
  return tensor;
}

Tensor Hdf5Reader::read(const std::string& name, DType expected_dtype,
                        const Shape& expected_shape) const {
  const Lock lock;
  const DType found_dtype = dtype(name);
  const Shape found_shape = shape(name);
  if (found_dtype != expected_dtype || !(found_shape == expected_shape))
    impl_->fail("'", name, "' should be ", name_of(expected_dtype), " ", expected_shape, " but is ",
                name_of(found_dtype), " ", found_shape);
  return read(name);
}

std::string Hdf5Reader::read_text(const std::string& name) const {
  const Lock lock;
  const Handle dataset = impl_->open_dataset(name);
  const Handle type(H5Dget_type(dataset.get()), impl_->label, ": '", name, "' is damaged");
  const Handle space(H5Dget_space(dataset.get()), impl_->label, ": '", name, "' is damaged");
  impl_->check_storage(dataset.get(), name, 0);
  return impl_->read_text_of(type.get(), space.get(), name, [&](hid_t memory, void* to) {
    return H5Dread(dataset.get(), memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, to);
  });
}

bool Hdf5Reader::has_attribute(const std::string& object, const std::string& name) const {
  const Lock lock;
  return H5Aexists(impl_->open(object).get(), name.c_str()) > 0;
}

std::vector<std::string> Hdf5Reader::attributes(const std::string& object) const {
  const Lock lock;
  const Handle handle = impl_->open(object);
  std::vector<std::string> names;
  const auto add = [](hid_t, const char* name, const H5A_info_t*, void* to) -> herr_t {
    static_cast<std::vector<std::string>*>(to)->emplace_back(name);
    return 0;
  };
  hsize_t index = 0;
  if (H5Aiterate2(handle.get(), H5_INDEX_NAME, H5_ITER_INC, &index, add, &names) < 0)
    impl_->fail("HDF5 cannot list the attributes of '", object, "'");
  std::sort(names.begin(), names.end());
  return names;
}

int64_t Hdf5Reader::int_attribute(const std::string& object, const std::string& name) const {
  const Lock lock;
  return impl_->number<int64_t>(object, name, H5T_NATIVE_INT64, false);
}

double Hdf5Reader::number_attribute(const std::string& object, const std::string& name) const {
  const Lock lock;
  return impl_->number<double>(object, name, H5T_NATIVE_DOUBLE, true);
}

std::string Hdf5Reader::text_attribute(const std::string& object, const std::string& name) const {
  const Lock lock;
  const Handle owner = impl_->open(object);
  if (H5Aexists(owner.get(), name.c_str()) <= 0)
    impl_->fail("'", object, "' has no attribute '", name, "'");
  return impl_->attribute_text(owner.get(), name);
}

std::map<std::string, Tensor> tensors_from_hdf5(std::string_view image, const std::string& label) {
  const Hdf5Reader reader(image, label);
  std::map<std::string, Tensor> tensors;
  for (const std::string& name : reader.list_datasets()) tensors[name] = reader.read(name);
  return tensors;
}

}  // namespace linnet
