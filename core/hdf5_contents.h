// Private to core/hdf5*.cpp: the contents of an HDF5 file, found in its bytes. The HDF5 library
// does not read: it crashes, hangs or takes gigabytes on damaged files.
//
// Read are the structures that HDF5 and h5py write unless they are asked for newer ones: superblock
// 0 or 1, object headers 1, groups with symbol tables, data in one piece, in the header or in
// chunks (deflate, shuffle), fixed and variable-length texts. Every address and count is checked
// against the image. All structures together claim at most its bytes, so that its size bounds time
// and memory.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace linnet::hdf5 {

struct Type {
  enum class Kind { integer, real, text, variable_text, boolean, other };
  Kind kind = Kind::other;
  uint64_t bytes = 0;  // of an element in the file
  bool is_signed = false, big_endian = false;
};

struct Chunk {
  std::vector<uint64_t> at;  // its first element
  std::string_view stored;
  uint64_t skipped_filters = 0;  // bit i: the i-th was not applied
};

// Deflate expands at most about 1032 times: a dataset that claims more is damaged or hostile.
inline constexpr uint64_t kMaxExpansion = 1100;
// Dimensions that HDF5 allows.
inline constexpr uint64_t kMaxRank = 32;

enum class Filter { deflate, shuffle };

// An attribute or a dataset.
struct Array {
  Type type;
  bool has_shape = true;
  std::vector<uint64_t> sizes;
  std::string_view stored;  // the elements, unless they are in chunks
  std::string_view text;    // the value of a single variable-length text
  // Datasets alone.
  std::string unreadable;       // why the elements cannot be read; "" if they can
  std::vector<uint64_t> chunk;  // sizes of a chunk; empty: not in chunks
  std::vector<Chunk> chunks;
  std::vector<Filter> filters;  // in the order of writing

  // At most UINT64_MAX.
  uint64_t elements() const;
  uint64_t stored_bytes() const;
};

struct Object {
  enum class Kind { group, dataset, link, other };
  Kind kind = Kind::other;
  std::map<std::string, Array> attributes;
  std::map<std::string, std::unique_ptr<Object>> members;  // of a group
  Array array;                                             // of a dataset
};

// Little-endian numbers and pieces from the front of some bytes; throws Error at their end.
class Cursor {
 public:
  Cursor(std::string_view rest, const std::string& label) : rest_(rest), label_(&label) {}
  uint64_t number(size_t bytes);
  std::string_view take(uint64_t bytes);
  uint64_t left() const { return rest_.size(); }

 private:
  std::string_view rest_;
  const std::string* label_;
};

// Throws Error: the file called `label` is damaged.
template <typename... Parts>
[[noreturn]] void damaged(const std::string& label, const Parts&... parts) {
  throw Error({ErrorCode::malformed, "", label}, concat(label, ": ", parts...));
}

// At most UINT64_MAX.
uint64_t product(uint64_t a, uint64_t b);

// The root group with all below it; views point into the image. Throws Error beginning with the
// label.
Object parse_contents(std::string_view image, const std::string& label);

// The parsers of the messages of an object header.
Type parse_type(Cursor message);
void parse_space(Cursor message, Array& array, const std::string& label);

// Writes the elements of a dataset in chunks to `to`, array.elements() * array.type.bytes bytes.
// Throws Error naming `name`.
void join_chunks(const Array& array, const std::string& label, const std::string& name, char* to);

}  // namespace linnet::hdf5
