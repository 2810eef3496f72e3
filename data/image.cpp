#include "data/image.h"

#include <jpeglib.h>
#include <png.h>

#include <csetjmp>
#include <cstdio>
#include <cstring>

#include "core/error.h"

namespace linnet {
namespace {

// libpng and libjpeg report errors by longjmp. Each function here that calls setjmp has plain
// locals alone and calls the library alone; what has a destructor lives in its caller.
constexpr size_t kMaxMessageBytes = 200;
static_assert(JMSG_LENGTH_MAX <= kMaxMessageBytes);
// A scan goes over the whole image: thousands of empty ones would take minutes.
constexpr int kMaxScans = 100;

template <typename... Parts>
[[noreturn]] void refuse(ErrorCode code, const std::string& name, const Parts&... parts) {
  throw Error(Cause{code, "", name}, concat(name, ": ", parts...));
}

[[noreturn]] void refuse_damaged(const std::string& name, const char* kind, const char* reason) {
  refuse(ErrorCode::malformed, name, "this ", kind, " image is damaged or truncated (", reason,
         ")");
}

void require_size(const std::string& name, int64_t width, int64_t height) {
  if (width < 1 || height < 1 || width > kMaxImageSide || height > kMaxImageSide)
    refuse(ErrorCode::out_of_range, name, "this image has ", width, " x ", height, " pixels; 1 to ",
           kMaxImageSide, " a side can be read");
}

// --- PNG ---

struct PngInput {
  const char* next;
  size_t left;
  char message[kMaxMessageBytes];
};

[[noreturn]] void fail_png(png_structp png, png_const_charp message) {
  auto* input = static_cast<PngInput*>(png_get_error_ptr(png));
  std::snprintf(input->message, sizeof(input->message), "%s", message);
  png_longjmp(png, 1);
}

void ignore_png_warning(png_structp, png_const_charp) {}

void read_png_bytes(png_structp png, png_bytep into, size_t count) {
  auto* input = static_cast<PngInput*>(png_get_io_ptr(png));
  if (count > input->left) png_error(png, "the bytes end too early");
  std::memcpy(into, input->next, count);
  input->next += count;
  input->left -= count;
}

class Png {
 public:
  explicit Png(PngInput& input)
      : png(png_create_read_struct(PNG_LIBPNG_VER_STRING, &input, fail_png, ignore_png_warning)) {
    require(png != nullptr, "out of memory for an image");
    info = png_create_info_struct(png);
  }
  ~Png() { png_destroy_read_struct(&png, &info, nullptr); }
  Png(const Png&) = delete;
  Png& operator=(const Png&) = delete;
  png_structp png;
  png_infop info = nullptr;
};

// Everything before the pixels; false when the input has a message.
bool read_png_header(png_structp png, png_infop info, PngInput* input) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  if (info == nullptr) png_error(png, "out of memory");
  png_set_read_fn(png, input, read_png_bytes);
  // Texts and profiles are packed, too.
  constexpr png_alloc_size_t kMaxChunkBytes = 1 << 20;
  png_set_chunk_malloc_max(png, kMaxChunkBytes);
  // The size is refused later, with its numbers.
  png_set_user_limits(png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
  png_read_info(png, info);
  return true;
}

bool set_png_output(png_structp png, png_infop info) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  if (png_get_color_type(png, info) == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png);
  if (png_get_color_type(png, info) == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(png);
  png_set_scale_16(png);
  png_set_strip_alpha(png);
  png_set_interlace_handling(png);
  png_read_update_info(png, info);
  return true;
}

bool read_png_rows(png_structp png, png_bytepp rows) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  png_read_image(png, rows);
  png_read_end(png, nullptr);
  return true;
}

Image decode_png(std::string_view bytes, const std::string& name) {
  PngInput input{bytes.data(), bytes.size(), {}};
  const Png reader(input);
  const auto check = [&](bool read) {
    if (!read) refuse_damaged(name, "PNG", input.message);
  };
  check(read_png_header(reader.png, reader.info, &input));
  Image image;
  image.width = png_get_image_width(reader.png, reader.info);
  image.height = png_get_image_height(reader.png, reader.info);
  require_size(name, image.width, image.height);
  check(set_png_output(reader.png, reader.info));
  image.channels = png_get_channels(reader.png, reader.info);
  const size_t row_bytes = static_cast<size_t>(image.width) * static_cast<size_t>(image.channels);
  require((image.channels == 1 || image.channels == 3) &&
              png_get_rowbytes(reader.png, reader.info) == row_bytes,
          Cause{ErrorCode::malformed, "", name}, name, ": a PNG image of an unknown kind");
  image.values.resize(static_cast<size_t>(image.height) * row_bytes);
  std::vector<png_bytep> rows;
  for (size_t row = 0; row < static_cast<size_t>(image.height); ++row)
    rows.push_back(image.values.data() + row * row_bytes);
  check(read_png_rows(reader.png, rows.data()));
  return image;
}

// --- JPEG ---

struct JpegErrors {
  jpeg_error_mgr manager;  // the first member: libjpeg knows its address alone
  jmp_buf jump;
  char message[kMaxMessageBytes];
};

[[noreturn]] void fail_jpeg(j_common_ptr common) {
  auto* errors = reinterpret_cast<JpegErrors*>(common->err);
  common->err->format_message(common, errors->message);
  std::longjmp(errors->jump, 1);
}

// libjpeg fills what is missing with grey, and warns.
void fail_jpeg_warning(j_common_ptr common, int level) {
  if (level < 0) fail_jpeg(common);
}

void ignore_jpeg_output(j_common_ptr) {}

void watch_jpeg_scans(j_common_ptr common) {
  if (reinterpret_cast<j_decompress_ptr>(common)->input_scan_number <= kMaxScans) return;
  auto* errors = reinterpret_cast<JpegErrors*>(common->err);
  std::snprintf(errors->message, sizeof(errors->message), "it has more than %d scans", kMaxScans);
  std::longjmp(errors->jump, 1);
}

class Jpeg {
 public:
  Jpeg() {
    info.err = jpeg_std_error(&errors.manager);
    errors.manager.error_exit = fail_jpeg;
    errors.manager.emit_message = fail_jpeg_warning;
    errors.manager.output_message = ignore_jpeg_output;
    progress.progress_monitor = watch_jpeg_scans;
  }
  ~Jpeg() { jpeg_destroy_decompress(&info); }
  Jpeg(const Jpeg&) = delete;
  Jpeg& operator=(const Jpeg&) = delete;
  jpeg_decompress_struct info{};
  JpegErrors errors{};
  jpeg_progress_mgr progress{};
};

// Each false when there is a message.
bool read_jpeg_header(Jpeg* jpeg, const unsigned char* bytes, size_t count) {
  if (setjmp(jpeg->errors.jump) != 0) return false;
  jpeg_create_decompress(&jpeg->info);
  jpeg->info.progress = &jpeg->progress;
  jpeg_mem_src(&jpeg->info, bytes, count);
  jpeg_read_header(&jpeg->info, TRUE);
  return true;
}

bool read_jpeg_rows(Jpeg* jpeg, unsigned char* values, size_t row_bytes) {
  if (setjmp(jpeg->errors.jump) != 0) return false;
  jpeg_start_decompress(&jpeg->info);
  while (jpeg->info.output_scanline < jpeg->info.output_height) {
    JSAMPROW row = values + jpeg->info.output_scanline * row_bytes;
    jpeg_read_scanlines(&jpeg->info, &row, 1);
  }
  jpeg_finish_decompress(&jpeg->info);
  return true;
}

Image decode_jpeg(std::string_view bytes, const std::string& name) {
  Jpeg jpeg;
  const auto check = [&](bool read) {
    if (!read) refuse_damaged(name, "JPEG", jpeg.errors.message);
  };
  check(
      read_jpeg_header(&jpeg, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()));
  Image image;
  image.width = jpeg.info.image_width;
  image.height = jpeg.info.image_height;
  require_size(name, image.width, image.height);
  const bool grey = jpeg.info.jpeg_color_space == JCS_GRAYSCALE;
  if (!grey && jpeg.info.jpeg_color_space != JCS_YCbCr && jpeg.info.jpeg_color_space != JCS_RGB)
    refuse(ErrorCode::malformed, name,
           "this JPEG image has neither grey values nor three colours; convert it");
  jpeg.info.out_color_space = grey ? JCS_GRAYSCALE : JCS_RGB;
  image.channels = grey ? 1 : 3;
  const size_t row_bytes = static_cast<size_t>(image.width) * static_cast<size_t>(image.channels);
  image.values.resize(static_cast<size_t>(image.height) * row_bytes);
  check(read_jpeg_rows(&jpeg, image.values.data(), row_bytes));
  return image;
}

}  // namespace

Image decode_image(std::string_view bytes, const std::string& name) {
  using namespace std::string_view_literals;
  if (bytes.starts_with("\x89PNG\r\n\x1a\n"sv)) return decode_png(bytes, name);
  if (bytes.starts_with("\xff\xd8\xff"sv)) return decode_jpeg(bytes, name);
  refuse(ErrorCode::malformed, name,
         bytes.empty() ? "the file is empty; a PNG or JPEG image was expected"
                       : "this is neither a PNG nor a JPEG image");
}

uint8_t grey_value(int red, int green, int blue) {
  // 255.5 / 255 = 511 / 510; the weights in units of 1e-4.
  return static_cast<uint8_t>(511 * (2989 * red + 5870 * green + 1140 * blue) / 5'100'000);
}

std::vector<uint8_t> grey_values(const Image& image) {
  if (image.channels == 1) return image.values;
  std::vector<uint8_t> grey;
  grey.reserve(image.values.size() / 3);
  for (size_t i = 0; i + 2 < image.values.size(); i += 3)
    grey.push_back(grey_value(image.values[i], image.values[i + 1], image.values[i + 2]));
  return grey;
}

}  // namespace linnet
