// The bytes of a file, decompressed on the way where it is a gzip or xz file.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace linnet {

enum class Compression { none, gzip, xz };

// What a file that begins with these bytes is compressed with.
Compression compression_of(std::string_view start);

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Fills `into`; returns fewer bytes only at the end, where the checksums of the compressed file
  // were compared. Throws Error naming the file when it is damaged or truncated.
  virtual size_t read(std::span<char> into) = 0;
  // Bytes of the file, as it lies on the disk, that were taken so far.
  virtual uint64_t taken_bytes() const = 0;
};

// The bytes of a regular file; the contents, not the name, say whether it is compressed.
std::unique_ptr<ByteSource> open_bytes(const std::string& path);

// All of them; throws Error also when there are more than `limit_bytes`.
std::string read_decompressed(const std::string& path, uint64_t limit_bytes);

}  // namespace linnet
