// Types and shapes of HDF5 files: the messages of object headers that describe elements.
#include <algorithm>
#include <array>

#include "core/hdf5_contents.h"

namespace linnet::hdf5 {

uint64_t product(uint64_t a, uint64_t b) {
  uint64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? UINT64_MAX : result;
}

uint64_t Array::elements() const {
  if (!has_shape || std::count(sizes.begin(), sizes.end(), 0u) > 0) return 0;
  uint64_t count = 1;
  for (const uint64_t size : sizes) count = product(count, size);
  return count;
}

uint64_t Array::stored_bytes() const {
  uint64_t bytes = stored.size();
  for (const Chunk& one : chunks) bytes += one.stored.size();
  return bytes;
}

uint64_t Cursor::number(size_t bytes) {
  uint64_t value = 0;
  const std::string_view from = take(bytes);
  for (size_t i = bytes; i-- > 0;) value = value << 8 | static_cast<uint8_t>(from[i]);
  return value;
}

std::string_view Cursor::take(uint64_t bytes) {
  if (bytes > rest_.size()) {
    damaged(*label_, "is damaged: a structure of it ends ", bytes - rest_.size(), " bytes early");
  }
  const std::string_view taken = rest_.substr(0, bytes);
  rest_.remove_prefix(bytes);
  return taken;
}

Type parse_type(Cursor message) {
  using Kind = Type::Kind;
  const uint64_t kind = message.number(1) & 15, bits = message.number(3);
  Type type;
  type.bytes = message.number(4);
  switch (kind) {
    case 0: {  // whole numbers
      const uint64_t offset = message.number(2), precision = message.number(2);
      const bool plain = type.bytes == 1 || type.bytes == 2 || type.bytes == 4 || type.bytes == 8;
      if (plain && offset == 0 && precision == 8 * type.bytes) type.kind = Kind::integer;
      type.big_endian = (bits & 1) != 0;
      type.is_signed = (bits & 8) != 0;
      break;
    }
    case 1: {  // IEEE 754: sign, offset, precision, exponent at and wide, mantissa at and wide,
               // bias
      const std::array<uint64_t, 8> found = {
          bits & ~uint64_t{1}, message.number(2), message.number(2), message.number(1),
          message.number(1),   message.number(1), message.number(1), message.number(4)};
      constexpr std::array<uint64_t, 8> f32 = {0x1f20, 0, 32, 23, 8, 0, 23, 127};
      constexpr std::array<uint64_t, 8> f64 = {0x3f20, 0, 64, 52, 11, 0, 52, 1023};
      if (found == (type.bytes == 4 ? f32 : f64) && (type.bytes == 4 || type.bytes == 8))
        type.kind = Kind::real;
      type.big_endian = (bits & 1) != 0;
      break;
    }
    case 3:
      type.kind = Kind::text;
      break;
    case 8:  // numpy's booleans are an enumeration of two bytes
      if (type.bytes == 1 && (bits & 0xffff) == 2 && (message.number(1) & 15) == 0)
        type.kind = Kind::boolean;
      break;
    case 9:
      if (type.bytes == 16 && (bits & 15) == 1) type.kind = Kind::variable_text;
      break;
    default:
      break;
  }
  return type;
}

void parse_space(Cursor message, Array& array, const std::string& label) {
  const uint64_t version = message.number(1), rank = message.number(1);
  message.take(1);
  const bool known = version == 1 || version == 2;
  if (!known || rank > kMaxRank) damaged(label, "is damaged: a shape of ", rank, " dimensions");
  const uint64_t kind = version == 1 ? 0 : message.number(1);
  if (version == 1) message.take(5);
  array.has_shape = kind != 2;
  for (uint64_t i = 0; i < rank; ++i) {
    array.sizes.push_back(message.number(8));
    if (array.sizes.back() > uint64_t{INT64_MAX}) damaged(label, "is damaged: an impossible shape");
  }
}

}  // namespace linnet::hdf5
