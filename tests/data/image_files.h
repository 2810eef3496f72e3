// PNG and JPEG files for tests, in memory.
#pragma once

#include <cstdio>  // jpeglib.h needs it

#include <jpeglib.h>
#include <png.h>

#include <cstdlib>
#include <string>

#include "core/error.h"
#include "data/image.h"

namespace linnet::test {

inline std::string to_png(const Image& image) {
  png_image header{};
  header.version = PNG_IMAGE_VERSION;
  header.width = static_cast<png_uint_32>(image.width);
  header.height = static_cast<png_uint_32>(image.height);
  header.format = image.channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  png_alloc_size_t bytes = PNG_IMAGE_PNG_SIZE_MAX(header);
  std::string file(bytes, '\0');
  require(png_image_write_to_memory(&header, file.data(), &bytes, 0, image.values.data(), 0,
                                    nullptr) != 0,
          "cannot write a PNG: ", header.message);
  file.resize(bytes);
  return file;
}

inline std::string to_jpeg(const Image& image, int quality = 95, bool progressive = false) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};  // ends the process: the images of tests are in order
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* bytes = nullptr;
  unsigned long count = 0;
  jpeg_mem_dest(&info, &bytes, &count);
  info.image_width = static_cast<JDIMENSION>(image.width);
  info.image_height = static_cast<JDIMENSION>(image.height);
  info.input_components = image.channels;
  info.in_color_space = image.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, quality, TRUE);
  if (progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    auto* row = const_cast<JSAMPROW>(image.values.data()) +
                info.next_scanline * static_cast<size_t>(image.width * image.channels);
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  std::string file(reinterpret_cast<char*>(bytes), count);
  jpeg_destroy_compress(&info);
  std::free(bytes);
  return file;
}

}  // namespace linnet::test
