#include "data/byte_source.h"

#include <zlib.h>

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "core/files.h"
#include "data/archive_handle.h"

namespace linnet {
namespace {

constexpr size_t kBlockBytes = size_t{1} << 17;

class PlainSource final : public ByteSource {
 public:
  explicit PlainSource(const std::string& path) : file_(path, OpenMode::read) {}
  size_t read(std::span<char> into) override {
    const size_t count = file_.read(into);
    taken_ += count;
    return count;
  }
  uint64_t taken_bytes() const override { return taken_; }

 private:
  File file_;
  uint64_t taken_ = 0;
};

// zlib compares the checksum and the length at the end of each of a file's parts, which libarchive
// does not.
class GzipSource final : public ByteSource {
 public:
  explicit GzipSource(const std::string& path) : file_(path), path_(path), block_(kBlockBytes) {
    constexpr int kGzipOfAnyWindow = 16 + MAX_WBITS;
    require(inflateInit2(&stream_, kGzipOfAnyWindow) == Z_OK, "out of memory for reading ", path);
  }
  ~GzipSource() override { inflateEnd(&stream_); }
  GzipSource(const GzipSource&) = delete;
  GzipSource& operator=(const GzipSource&) = delete;

  size_t read(std::span<char> into) override {
    size_t done = 0;
    while (done < into.size() && !at_end_) {
      if (stream_.avail_in == 0) refill();
      if (between_parts_) {
        if ((at_end_ = stream_.avail_in == 0)) break;
        require(inflateReset(&stream_) == Z_OK, "cannot go on reading ", path_);
        between_parts_ = false;
      }
      const size_t wanted = std::min(into.size() - done, kBlockBytes);
      stream_.next_out = reinterpret_cast<Bytef*>(into.data() + done);
      stream_.avail_out = static_cast<uInt>(wanted);
      const int result = inflate(&stream_, Z_NO_FLUSH);
      done += wanted - stream_.avail_out;
      between_parts_ = result == Z_STREAM_END;
      const bool starved = result == Z_BUF_ERROR && stream_.avail_in == 0;
      require(!starved, Cause{ErrorCode::malformed, "", path_}, path_,
              ": this gzip file is truncated; get it again");
      require(result == Z_OK || between_parts_, Cause{ErrorCode::malformed, "", path_}, path_,
              ": this gzip file is damaged (",
              stream_.msg == nullptr ? "its parts do not fit together" : stream_.msg,
              "); get it again");
    }
    return done;
  }
  uint64_t taken_bytes() const override { return file_.taken_bytes(); }

 private:
  void refill() {
    stream_.avail_in = static_cast<uInt>(file_.read(block_));
    stream_.next_in = reinterpret_cast<Bytef*>(block_.data());
  }

  PlainSource file_;
  std::string path_;
  std::vector<char> block_;
  z_stream stream_{};
  bool between_parts_ = false, at_end_ = false;
};

class XzSource final : public ByteSource {
 public:
  explicit XzSource(const std::string& path)
      : file_(path),
        handle_(path, ArchiveFormat::xz,
                {[this](std::span<char> into) { return file_.read(into); }}),
        empty_(handle_.next() == nullptr) {}
  size_t read(std::span<char> into) override { return empty_ ? 0 : handle_.read(into); }
  uint64_t taken_bytes() const override { return file_.taken_bytes(); }

 private:
  PlainSource file_;
  ArchiveHandle handle_;
  bool empty_;
};

}  // namespace

Compression compression_of(std::string_view start) {
  using namespace std::string_view_literals;
  if (start.starts_with("\x1f\x8b"sv)) return Compression::gzip;
  if (start.starts_with("\xfd"
                        "7zXZ\0"sv))
    return Compression::xz;
  return Compression::none;
}

std::unique_ptr<ByteSource> open_bytes(const std::string& path) {
  std::string start(6, '\0');
  start.resize(File(path, OpenMode::read).read(start));
  switch (compression_of(start)) {
    case Compression::gzip:
      return std::make_unique<GzipSource>(path);
    case Compression::xz:
      return std::make_unique<XzSource>(path);
    case Compression::none:
      break;
  }
  return std::make_unique<PlainSource>(path);
}

std::string read_decompressed(const std::string& path, uint64_t limit_bytes) {
  const auto source = open_bytes(path);
  std::string bytes;
  std::vector<char> block(kBlockBytes);
  while (const size_t count = source->read(block)) {
    require(bytes.size() + count <= limit_bytes, Cause{ErrorCode::out_of_range, "", path},
            "cannot read ", path, ": it holds more than the limit of ", limit_bytes, " bytes");
    bytes.append(block.data(), count);
  }
  return bytes;
}

}  // namespace linnet
