// Datasets in chunks: unpacking the chunks of an HDF5 file and putting them together.
#include <zlib.h>

#include <algorithm>
#include <cstring>

#include "core/hdf5_contents.h"

namespace linnet::hdf5 {
namespace {

// The `bytes` bytes that deflate packed; "" when it packed another number of them or is damaged.
std::string inflated(std::string_view packed, uint64_t bytes) {
  std::string plain(bytes, '\0');
  uLongf size = bytes;
  const int status = uncompress(reinterpret_cast<Bytef*>(plain.data()), &size,
                                reinterpret_cast<const Bytef*>(packed.data()), packed.size());
  return status == Z_OK && size == bytes ? plain : "";
}

// Shuffled elements: all first bytes, all second bytes, ...
std::string unshuffled(std::string_view mixed, uint64_t element_bytes) {
  std::string plain(mixed);
  const uint64_t count = mixed.size() / element_bytes;
  for (uint64_t byte = 0; byte < element_bytes; ++byte) {
    for (uint64_t i = 0; i < count; ++i) {
      plain[i * element_bytes + byte] = mixed[byte * count + i];
    }
  }
  return plain;
}

// Copies the part of a chunk that lies inside the dataset, row by row of the last dimension.
void place(const Array& array, const Chunk& chunk, std::string_view plain, char* to) {
  const size_t rank = array.sizes.size(), last = rank - 1;
  const uint64_t element = array.type.bytes;
  std::vector<uint64_t> inside(rank), index(rank, 0);
  for (size_t d = 0; d < rank; ++d) {
    inside[d] = std::min(array.chunk[d], array.sizes[d] - chunk.at[d]);
  }
  while (true) {
    uint64_t source = 0, target = 0;
    for (size_t d = 0; d < rank; ++d) {
      source = source * array.chunk[d] + index[d];
      target = target * array.sizes[d] + chunk.at[d] + index[d];
    }
    std::memcpy(to + target * element, plain.data() + source * element, inside[last] * element);
    size_t d = last;
    while (d > 0 && ++index[d - 1] == inside[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}

}  // namespace

void join_chunks(const Array& array, const std::string& label, const std::string& name, char* to) {
  const auto fail = [&](const auto&... parts) { damaged(label, "'", name, "' ", parts...); };
  uint64_t count = 1, bytes = array.type.bytes;
  for (size_t d = 0; d < array.sizes.size(); ++d) {
    count = product(count, (array.sizes[d] + array.chunk[d] - 1) / array.chunk[d]);
    bytes = product(bytes, array.chunk[d]);
  }
  if (count != array.chunks.size())
    fail("should have ", count, " chunks but the file holds ", array.chunks.size());
  std::vector<bool> seen(count);
  for (const Chunk& chunk : array.chunks) {
    uint64_t number = 0;
    for (size_t d = 0; d < array.sizes.size(); ++d) {
      if (chunk.at[d] >= array.sizes[d] || chunk.at[d] % array.chunk[d] != 0)
        fail("has a chunk outside its shape");
      number = number * ((array.sizes[d] + array.chunk[d] - 1) / array.chunk[d]) +
               chunk.at[d] / array.chunk[d];
    }
    if (seen[number]) fail("has a chunk twice");
    seen[number] = true;
    if (bytes > product(kMaxExpansion, chunk.stored.size()))
      fail("has chunks of ", bytes, " bytes but the file holds ", chunk.stored.size(), " of one");
    std::string unpacked;
    std::string_view plain = chunk.stored;
    for (size_t i = array.filters.size(); i-- > 0;) {
      if (i < 32 && (chunk.skipped_filters >> i & 1) != 0) continue;
      unpacked = array.filters[i] == Filter::deflate ? inflated(plain, bytes)
                                                     : unshuffled(plain, array.type.bytes);
      plain = unpacked;
    }
    if (plain.size() != bytes) fail("has a chunk that does not unpack; the file is damaged");
    place(array, chunk, plain, to);
  }
}

}  // namespace linnet::hdf5
