// Hdf5Reader: an HDF5 file read from an image in memory.
#include <algorithm>
#include <bit>
#include <cstring>

#include "core/hdf5.h"
#include "core/hdf5_contents.h"
#include "core/hdf5_handle.h"

namespace linnet {

using hdf5::Array;
using hdf5::Object;
using Kind = hdf5::Type::Kind;

namespace {

// Trailing NULs are padding.
std::string without_padding(std::string_view text) {
  return std::string(text.substr(0, text.find('\0')));
}

// The next member name of a path, which is removed from it; "" at the end.
std::string_view next_name(std::string_view& path) {
  path.remove_prefix(std::min(path.find_first_not_of('/'), path.size()));
  const std::string_view name = path.substr(0, path.find('/'));
  path.remove_prefix(name.size());
  return name;
}

void swap_bytes(char* elements, uint64_t bytes, uint64_t element_bytes) {
  for (uint64_t i = 0; i < bytes; i += element_bytes) {
    std::reverse(elements + i, elements + i + element_bytes);
  }
}

template <typename T>
T number_of(std::string value, bool big_endian) {
  if (big_endian) std::reverse(value.begin(), value.end());
  T number{};
  std::memcpy(&number, value.data(), sizeof(T));
  return number;
}

}  // namespace

static_assert(std::endian::native == std::endian::little);

struct Hdf5Reader::Impl {
  std::string label;
  std::string image;  // what the objects point into
  Object root;

  template <typename... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    hdf5::damaged(label, parts...);
  }

  // Null when there is none; throws when the path leads through a link.
  const Object* find(std::string_view path) const {
    const Object* object = &root;
    std::string_view rest = path;
    for (std::string_view name = next_name(rest); !name.empty(); name = next_name(rest)) {
      const auto member = object->members.find(std::string(name));
      if (member == object->members.end()) return nullptr;
      object = member->second.get();
      if (object->kind == Object::Kind::link) {
        fail("'", path.substr(0, path.size() - rest.size()),
             "' is a link to elsewhere; only objects stored in the file are read");
      }
    }
    return object;
  }

  const Object& open(const std::string& name) const {
    const Object* object = find(name);
    require(object != nullptr, Cause{ErrorCode::not_found, name, label}, label, ": there is no '",
            name, "'");
    return *object;
  }

  const Object& open_group(const std::string& name) const {
    const Object& object = open(name);
    if (object.kind != Object::Kind::group) fail("'", name, "' is not a group");
    return object;
  }

  const Object& open_dataset(const std::string& name) const {
    const Object& object = open(name);
    if (object.kind != Object::Kind::dataset) fail("'", name, "' is not a dataset");
    return object;
  }

  const Array& attribute(const std::string& object, const std::string& name) const {
    const Object& owner = open(object);
    const auto found = owner.attributes.find(name);
    if (found == owner.attributes.end()) fail("'", object, "' has no attribute '", name, "'");
    return found->second;
  }

  std::string text(const Array& array, const std::string& name) const {
    const bool variable = array.type.kind == Kind::variable_text;
    if (array.type.kind != Kind::text && !variable) fail("'", name, "' is not text");
    if (!array.has_shape || array.elements() != 1) fail("'", name, "' is not a single text");
    check_storage(array, name);
    if (!array.chunk.empty()) fail("the text '", name, "' is stored in chunks; this is refused");
    return without_padding(variable ? array.text : array.stored.substr(0, array.type.bytes));
  }

  DType dtype(const Object& dataset, const std::string& name) const {
    const hdf5::Type& type = dataset.array.type;
    const bool integer = type.kind == Kind::integer;
    const auto mark = dataset.attributes.find(hdf5::kDtypeAttribute);
    if (mark != dataset.attributes.end()) {
      const std::string marked = text(mark->second, hdf5::kDtypeAttribute);
      if (integer && type.bytes == 2 && marked == name_of(DType::bf16)) return DType::bf16;
      if (integer && type.bytes == 1 && marked == name_of(DType::boolean)) return DType::boolean;
      fail("'", name, "' is marked as '", marked, "' but its stored type is another");
    }
    if (type.kind == Kind::boolean) return DType::boolean;
    if (type.kind == Kind::real) return type.bytes == 4 ? DType::f32 : DType::f64;
    if (integer && type.is_signed && type.bytes == 4) return DType::i32;
    if (integer && type.is_signed && type.bytes == 8) return DType::i64;
    if (integer && !type.is_signed && type.bytes == 1) return DType::u8;
    fail("'", name, "' has a type that linnet does not read; it reads f32 f64 i32 i64 u8 and bool");
  }

  Shape shape(const Array& array, const std::string& name) const {
    if (!array.has_shape) fail("'", name, "' has no shape");
    uint64_t elements = 1;  // those of a shape without its zeros, which Shape must be able to hold
    for (const uint64_t size : array.sizes) elements = hdf5::product(elements, std::max(size, 1ul));
    if (elements > INT64_MAX / 16) fail("the shape of '", name, "' is impossible");
    if (array.sizes.size() > Shape::kMaxRank) {
      fail("'", name, "' has ", array.sizes.size(), " dimensions; linnet reads at most ",
           Shape::kMaxRank);
    }
    return Shape(std::vector<int64_t>(array.sizes.begin(), array.sizes.end()));
  }

  // Refuses datasets whose contents are not in the image, and sizes that the image cannot hold.
  void check_storage(const Array& array, const std::string& name) const {
    if (!array.unreadable.empty()) fail("the contents of '", name, "' ", array.unreadable);
    const uint64_t bytes = hdf5::product(array.elements(), array.type.bytes);
    const uint64_t stored = array.stored_bytes();
    const uint64_t expansion = array.chunk.empty() ? 1 : hdf5::kMaxExpansion;
    if (bytes > hdf5::product(expansion, stored))
      fail("'", name, "' should have ", bytes, " bytes but the file holds only ", stored);
  }

  template <typename T>
  T number(const std::string& object, const std::string& name, bool accept_real) const {
    const Array& array = attribute(object, name);
    const hdf5::Type& type = array.type;
    if (!array.has_shape || array.elements() != 1)
      fail("the attribute '", name, "' is not a single value");
    if (type.kind == Kind::boolean) return static_cast<T>(static_cast<uint8_t>(array.stored[0]));
    if (type.kind == Kind::real && accept_real) {
      const std::string value(array.stored);
      return static_cast<T>(type.bytes == 4 ? number_of<float>(value, type.big_endian)
                                            : number_of<double>(value, type.big_endian));
    }
    if (type.kind != Kind::integer)
      fail("the attribute '", name, "' is not ", accept_real ? "a number" : "an integer");
    // Widened to 64 bits, with its sign.
    std::string value(array.stored);
    if (type.big_endian) std::reverse(value.begin(), value.end());
    const bool negative = type.is_signed && static_cast<int8_t>(value.back()) < 0;
    value.resize(sizeof(uint64_t), negative ? '\xff' : '\0');
    const auto wide = number_of<int64_t>(value, false);
    if (wide < 0 && !negative) fail("the attribute '", name, "' exceeds 64-bit signed integers");
    return static_cast<T>(wide);
  }
};

Hdf5Reader::Hdf5Reader(std::string_view image, std::string label) {
  impl_ = std::make_unique<Impl>();
  impl_->label = std::move(label);
  impl_->image = image;
  impl_->root = hdf5::parse_contents(impl_->image, impl_->label);
}

Hdf5Reader::~Hdf5Reader() = default;

bool Hdf5Reader::contains(const std::string& name) const {
  return impl_->find(name) != nullptr;
}

bool Hdf5Reader::is_group(const std::string& name) const {
  const Object* object = impl_->find(name);
  return object != nullptr && object->kind == Object::Kind::group;
}

std::vector<std::string> Hdf5Reader::list(const std::string& group) const {
  std::vector<std::string> names;
  for (const auto& member : impl_->open_group(group).members) names.push_back(member.first);
  return names;
}

std::vector<std::string> Hdf5Reader::list_datasets(const std::string& group) const {
  std::vector<std::string> found;
  const auto visit = [&](auto&& self, const std::string& path,
                         const std::string& relative) -> void {
    for (const std::string& name : list(path)) {
      const std::string child = concat(path, path.back() == '/' ? "" : "/", name);
      const std::string child_relative = relative.empty() ? name : concat(relative, "/", name);
      if (is_group(child))
        self(self, child, child_relative);
      else
        found.push_back(child_relative);
    }
  };
  visit(visit, group.empty() ? "/" : group, "");
  std::sort(found.begin(), found.end());
  return found;
}

DType Hdf5Reader::dtype(const std::string& name) const {
  return impl_->dtype(impl_->open_dataset(name), name);
}

Shape Hdf5Reader::shape(const std::string& name) const {
  return impl_->shape(impl_->open_dataset(name).array, name);
}

Tensor Hdf5Reader::read(const std::string& name) const {
  const Object& dataset = impl_->open_dataset(name);
  const Array& array = dataset.array;
  const DType dtype = impl_->dtype(dataset, name);
  const Shape shape = impl_->shape(array, name);
  impl_->check_storage(array, name);
  const Tensor tensor = Tensor::empty(shape, dtype);
  const size_t bytes = tensor.bytes();
  if (bytes == 0) return tensor;
  auto* const to = static_cast<char*>(tensor.raw());
  if (array.chunk.empty())
    std::memcpy(to, array.stored.data(), bytes);
  else
    hdf5::join_chunks(array, impl_->label, name, to);
  if (array.type.big_endian) swap_bytes(to, bytes, array.type.bytes);
  if (dtype == DType::boolean &&
      std::any_of(to, to + bytes, [](char value) { return value != 0 && value != 1; }))
    impl_->fail("'", name, "' holds booleans other than 0 and 1");
  return tensor;
}

Tensor Hdf5Reader::read(const std::string& name, DType expected_dtype,
                        const Shape& expected_shape) const {
  const DType found_dtype = dtype(name);
  const Shape found_shape = shape(name);
  if (found_dtype != expected_dtype || !(found_shape == expected_shape))
    impl_->fail("'", name, "' should be ", name_of(expected_dtype), " ", expected_shape, " but is ",
                name_of(found_dtype), " ", found_shape);
  return read(name);
}

std::string Hdf5Reader::read_text(const std::string& name) const {
  return impl_->text(impl_->open_dataset(name).array, name);
}

bool Hdf5Reader::has_attribute(const std::string& object, const std::string& name) const {
  return impl_->open(object).attributes.contains(name);
}

std::vector<std::string> Hdf5Reader::attributes(const std::string& object) const {
  std::vector<std::string> names;
  for (const auto& attribute : impl_->open(object).attributes) names.push_back(attribute.first);
  return names;
}

int64_t Hdf5Reader::int_attribute(const std::string& object, const std::string& name) const {
  return impl_->number<int64_t>(object, name, false);
}

double Hdf5Reader::number_attribute(const std::string& object, const std::string& name) const {
  return impl_->number<double>(object, name, true);
}

std::string Hdf5Reader::text_attribute(const std::string& object, const std::string& name) const {
  return impl_->text(impl_->attribute(object, name), name);
}

std::map<std::string, Tensor> tensors_from_hdf5(std::string_view image, const std::string& label) {
  const Hdf5Reader reader(image, label);
  std::map<std::string, Tensor> tensors;
  for (const std::string& name : reader.list_datasets()) tensors[name] = reader.read(name);
  return tensors;
}

}  // namespace linnet
