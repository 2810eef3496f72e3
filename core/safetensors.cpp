#include "core/safetensors.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/atomic_file.h"
#include "core/hash.h"
#include "core/json.h"

namespace linnet {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // as the format's reference implementation
constexpr const char* kMetadata = "__metadata__";

struct StoredType {
  std::string_view name;
  size_t bytes;
  DType dtype;  // of the tensor that is read
};
constexpr StoredType kTypes[] = {{"F32", 4, DType::f32}, {"F64", 8, DType::f64},
                                 {"F16", 2, DType::f32}, {"BF16", 2, DType::bf16},
                                 {"I64", 8, DType::i64}, {"I32", 4, DType::i32},
                                 {"U8", 1, DType::u8}};

const StoredType* find_type(std::string_view name) {
  const auto* found = std::find_if(std::begin(kTypes), std::end(kTypes),
                                   [&](const StoredType& type) { return type.name == name; });
  return found == std::end(kTypes) ? nullptr : found;
}

const StoredType& type_of(DType dtype) {
  for (const StoredType& type : kTypes) {
    if (type.dtype == dtype && type.bytes == size_of(dtype)) return type;
  }
  throw Error(concat("safetensors: tensors of ", linnet::name_of(dtype), " are not written"));
}

float from_half(uint16_t bits) {
  const auto sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 31u, fraction = bits & 1023u;
  if (exponent == 0) {
    const float value = std::ldexp(static_cast<float>(fraction), -24);
    return sign != 0 ? -value : value;
  }
  const uint32_t wide = exponent == 31 ? 255u : exponent + 112u;
  return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
}

// Builds the contents from the events of the JSON parser, so that nothing else than this format
// takes memory.
class Header {
 public:
  Header(std::string_view data, const std::string& label) : data_(data), label_(label) {}
  SafetensorsContents contents;

  bool null() { return unexpected("null"); }
  bool boolean(bool) { return unexpected("a boolean"); }
  bool number_integer(int64_t value) { return unexpected(concat("the number ", value)); }
  bool number_float(double, const std::string& text) {
    return unexpected(concat("the number ", text));
  }
  bool binary(nlohmann::json::binary_t&) { return unexpected("binary data"); }
  bool number_unsigned(uint64_t value) {
    if (list_ == nullptr) return unexpected(concat("the number ", value));
    if (list_->size() == Shape::kMaxRank) {
      fail("has more than ", Shape::kMaxRank,
           " numbers in a list; linnet reads tensors of at most ", Shape::kMaxRank, " dimensions");
    }
    list_->push_back(value);
    return true;
  }
  bool string(std::string& text) {
    if (place_ == Place::metadata) {
      const bool fresh = contents.metadata.emplace(key_, std::move(text)).second;
      if (!fresh) repeated(concat(kMetadata, ".", key_));
      return true;
    }
    if (place_ != Place::tensor || key_ != "dtype") return unexpected("text");
    if (dtype_) repeated(concat(name_, ".dtype"));
    dtype_ = std::move(text);
    return true;
  }
  bool key(std::string& key) {
    if (place_ == Place::top) {
      name_ = std::move(key);
      return true;
    }
    key_ = std::move(key);
    if (place_ == Place::tensor && key_ != "dtype" && key_ != "shape" && key_ != "data_offsets") {
      fail("has the unknown key '", key_, "'; expected dtype, shape and data_offsets");
    }
    return true;
  }
  bool start_object(size_t) {
    if (place_ == Place::outside) {
      place_ = Place::top;
    } else if (place_ == Place::top && name_ == kMetadata) {
      if (has_metadata_) repeated(kMetadata);
      has_metadata_ = true;
      place_ = Place::metadata;
    } else if (place_ == Place::top) {
      place_ = Place::tensor;
      dtype_.reset();
      shape_.reset();
      offsets_.reset();
    } else {
      return unexpected("an object");
    }
    return true;
  }
  bool end_object() {
    if (place_ == Place::tensor) add_tensor();
    place_ = place_ == Place::top ? Place::outside : Place::top;
    return true;
  }
  bool start_array(size_t) {
    if (place_ != Place::tensor || list_ != nullptr || key_ == "dtype") return unexpected("a list");
    std::optional<std::vector<uint64_t>>& list = key_ == "shape" ? shape_ : offsets_;
    if (list) repeated(concat(name_, ".", key_));
    list_ = &list.emplace();
    return true;
  }
  bool end_array() {
    list_ = nullptr;
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) {
    throw Error({ErrorCode::malformed, "", label_},
                concat(label_, ": the header is not valid JSON at its byte ", position));
  }

  // Every byte of the data belongs to exactly one tensor.
  void require_covered() const {
    std::vector<const std::pair<const std::string, StoredTensor>*> order;
    order.reserve(contents.tensors.size());
    for (const auto& each : contents.tensors) order.push_back(&each);
    const auto place = [](const auto* each) {
      return std::pair(each->second.bytes.data(), each->second.bytes.size());
    };
    std::sort(order.begin(), order.end(),
              [&](const auto* a, const auto* b) { return place(a) < place(b); });
    const char* end = data_.data();
    for (const auto* each : order) {
      const std::string_view bytes = each->second.bytes;
      require(bytes.data() == end, Cause{ErrorCode::malformed, each->first, label_}, label_,
              ": the tensor '", each->first, "' begins at byte ", bytes.data() - data_.data(),
              " of the data, and the one before it ends at ", end - data_.data());
      end += bytes.size();
    }
    const auto covered = static_cast<size_t>(end - data_.data());
    require(covered == data_.size(), Cause{ErrorCode::malformed, "", label_}, label_,
            ": the tensors end at byte ", covered, " of ", data_.size(), " of data");
  }

 private:
  enum class Place { outside, top, tensor, metadata };

  template <typename... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    const std::string where =
        place_ == Place::outside || place_ == Place::top ? "the header" : concat("'", name_, "'");
    throw Error({ErrorCode::malformed, name_, label_}, concat(label_, ": ", where, " ", parts...));
  }
  [[noreturn]] void repeated(const std::string& name) const {
    throw Error({ErrorCode::repeated, name, label_},
                concat(label_, ": the header has '", name, "' twice"));
  }
  [[noreturn]] bool unexpected(const std::string& what) const {
    fail("has ", what, " where the format has none");
  }

  void add_tensor() {
    if (!dtype_ || !shape_ || !offsets_) fail("needs dtype, shape and data_offsets");
    const StoredType* type = find_type(*dtype_);
    if (type == nullptr) {
      fail("has the dtype ", *dtype_, "; F32, F64, F16, BF16, I64, I32 and U8 are read");
    }
    if (offsets_->size() != 2) fail("needs two data_offsets, and has ", offsets_->size());
    const uint64_t begin = offsets_->front(), end = offsets_->back();
    if (begin > end || end > data_.size()) {
      fail("has data_offsets ", begin, " and ", end, " in ", data_.size(), " bytes of data");
    }
    StoredTensor tensor{type->name, checked_shape(), data_.substr(begin, end - begin)};
    const auto elements = static_cast<uint64_t>(tensor.shape.elements());
    if (elements * type->bytes != end - begin) {
      fail("is ", type->name, " ", tensor.shape, ", which is ", elements * type->bytes,
           " bytes, and its data_offsets are ", end - begin, " apart");
    }
    if (!contents.tensors.emplace(name_, tensor).second) repeated(name_);
  }

  Shape checked_shape() const {
    std::vector<int64_t> sizes;
    uint64_t elements = 1;  // below 2^59, so that 16 bytes an element cannot overflow
    for (const uint64_t size : *shape_) {
      constexpr uint64_t kMaxElements = std::numeric_limits<int64_t>::max() / 16;
      if (size > kMaxElements || (size > 0 && elements > kMaxElements / size)) {
        fail("has a shape of more elements than memory can hold");
      }
      elements *= size;
      sizes.push_back(static_cast<int64_t>(size));
    }
    return Shape(std::move(sizes));
  }

  std::string_view data_;
  const std::string& label_;
  Place place_ = Place::outside;
  bool has_metadata_ = false;
  std::string name_, key_;
  std::optional<std::string> dtype_;
  std::optional<std::vector<uint64_t>> shape_, offsets_;
  std::vector<uint64_t>* list_ = nullptr;  // the one of these that is being read
};

}  // namespace

Tensor StoredTensor::read() const {
  const StoredType& type = *find_type(dtype);
  const Tensor tensor = Tensor::empty(shape, type.dtype);
  if (type.bytes == size_of(type.dtype)) {
    if (!bytes.empty()) std::memcpy(tensor.raw(), bytes.data(), bytes.size());
    return tensor;
  }
  auto* to = tensor.data<float>();
  for (size_t i = 0; i < bytes.size(); i += sizeof(uint16_t)) {
    uint16_t half = 0;
    std::memcpy(&half, bytes.data() + i, sizeof(half));
    *to++ = from_half(half);
  }
  return tensor;
}

SafetensorsContents parse_safetensors(std::string_view bytes, const std::string& label) {
  const Cause cause{ErrorCode::malformed, "", label};
  require(bytes.size() >= kLengthBytes, cause, label, ": ", bytes.size(),
          " bytes are no safetensors file");
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  require(length <= kMaxHeaderBytes, cause, label, ": a header of ", length,
          " bytes exceeds the format's ", kMaxHeaderBytes);
  require(length <= bytes.size() - kLengthBytes, cause, label, ": a header of ", length,
          " bytes does not fit into a file of ", bytes.size());
  const std::string_view header = bytes.substr(kLengthBytes, length);
  require(header.starts_with('{'), cause, label, ": the header does not begin with '{'");
  Header reader(bytes.substr(kLengthBytes + length), label);
  nlohmann::json::sax_parse(header.begin(), header.end(), &reader);
  reader.require_covered();
  return std::move(reader.contents);
}

SafetensorsFiles::SafetensorsFiles(const std::string& path) : path_(path) {
  const std::string index = join_path(path, "model.safetensors.index.json");
  const bool folder = is_directory(path);
  if (folder) path_ = join_path(path, "model.safetensors");
  const auto add = [&](const std::string& file) {
    files_.emplace_back(file);
    return parse_safetensors(files_.back().bytes(), file).tensors;
  };
  if (!folder || exists(path_) || !exists(index)) {
    require(exists(path_), Cause{ErrorCode::not_found, "", path_}, "there is no ", path_,
            folder ? ", nor an index of several files beside it" : "");
    tensors_ = add(path_);
    for (const auto& [name, tensor] : tensors_) file_of_[name] = &files_.back();
    return;
  }
  path_ = index;
  const Cause cause{ErrorCode::malformed, "", index};
  files_.emplace_back(index);
  const JsonValue json = parse_json(files_.back().bytes(), index);
  const JsonValue* list = json.is_object() ? json.find("weight_map") : nullptr;
  require(list != nullptr && list->is_object(), cause, index, " has no weight_map");
  std::map<std::string, std::vector<std::string>> names_in;
  for (const auto& [name, file] : list->members()) {
    require(file.is_text() && file_name(file.text()) == file.text() && file.text() != "." &&
                file.text() != "..",
            cause, index, ": '", name, "' is in no file of this folder");
    names_in[file.text()].push_back(name);
  }
  for (const auto& [file, names] : names_in) {
    const std::string where = join_path(path, file);
    std::map<std::string, StoredTensor> there = add(where);
    for (const std::string& name : names) {
      auto found = there.extract(name);
      require(!found.empty(), Cause{ErrorCode::malformed, name, where}, where, " has no '", name,
              "', which ", index, " lists there");
      tensors_.insert(std::move(found));
      file_of_[name] = &files_.back();
    }
    require(there.empty(), Cause{ErrorCode::malformed, "", where}, where, " has '",
            there.empty() ? "" : there.begin()->first, "', which ", index, " does not list there");
  }
}

Tensor SafetensorsFiles::read(const std::string& name) const {
  const auto found = tensors_.find(name);
  require(found != tensors_.end(), Cause{ErrorCode::unknown_name, name, path_}, path_,
          " has no tensor '", name, "'");
  const MappedFile& file = *file_of_.at(name);
  file.require_whole();
  Tensor tensor = found->second.read();
  file.release(found->second.bytes);
  return tensor;
}

std::string SafetensorsFiles::hash() const {
  constexpr size_t kPart = size_t{16} << 20;
  Hash128 hash;
  for (const MappedFile& file : files_) {
    file.require_whole();
    for (std::string_view left = file.bytes(); !left.empty();) {
      const std::string_view part = left.substr(0, kPart);
      hash.add(part);
      file.release(part);
      left.remove_prefix(part.size());
    }
  }
  return hash.hex();
}

std::string safetensors_head(const std::vector<SafetensorsEntry>& tensors,
                             const std::map<std::string, std::string>& metadata) {
  JsonValue header = JsonValue::object();
  if (!metadata.empty()) {
    JsonValue texts = JsonValue::object();
    for (const auto& [key, text] : metadata) texts.append(key, text);
    header.append(kMetadata, std::move(texts));
  }
  uint64_t end = 0;
  for (const SafetensorsEntry& each : tensors) {
    require(each.name != kMetadata, "safetensors: no tensor can be named '", each.name, "'");
    JsonValue shape = JsonValue::array(), offsets = JsonValue::array();
    for (const int64_t size : each.shape.sizes()) shape.push(size);
    offsets.push(end);
    end += static_cast<uint64_t>(each.shape.elements()) * size_of(each.dtype);
    offsets.push(end);
    header.append(each.name, JsonValue::object()
                                 .set("dtype", type_of(each.dtype).name)
                                 .set("shape", std::move(shape))
                                 .set("data_offsets", std::move(offsets)));
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the elements are aligned
  const uint64_t length = text.size();
  require(length <= kMaxHeaderBytes, "safetensors: the names of ", tensors.size(),
          " tensors exceed the format's header of ", kMaxHeaderBytes, " bytes");
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text;
}

void write_safetensors(const std::string& path, const std::map<std::string, Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<const std::pair<const std::string, Tensor>*> order;
  for (const auto& each : tensors) order.push_back(&each);
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return size_of(a->second.dtype()) > size_of(b->second.dtype());
  });
  std::vector<SafetensorsEntry> entries;
  for (const auto* each : order) {
    entries.push_back({each->first, each->second.dtype(), each->second.shape()});
  }
  AtomicFile file(path);
  file.write(safetensors_head(entries, metadata));
  for (const auto* each : order) {
    const Tensor host = each->second.to(Device());
    if (host.bytes() > 0) file.write({static_cast<const char*>(host.raw()), host.bytes()});
    file.sync();
  }
  file.commit();
}

}  // namespace linnet
