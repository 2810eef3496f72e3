// HDF5 files as memory images: HDF5 itself never touches the disk, so a full disk or a kill cannot
// leave half a file behind (the bytes go through core/files.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"

namespace linnet {

// Builds an HDF5 file in memory. Names are paths such as "grads/params/q.weight"; missing groups
// are created on the way. Equal contents written in equal order give equal bytes. Every function
// throws Error naming the object when HDF5 refuses, and when the name is taken already. bf16 is
// stored as u16 and bool as u8, marked by the attribute "linnet_dtype".
class Hdf5Writer {
 public:
  Hdf5Writer();
  ~Hdf5Writer();
  Hdf5Writer(const Hdf5Writer&) = delete;
  Hdf5Writer& operator=(const Hdf5Writer&) = delete;
  // A dataset with the tensor's dtype and shape; any device, any rank.
  void write(const std::string& name, const Tensor& tensor);
  // A scalar UTF-8 string dataset; text with a NUL is refused (write a u8 tensor instead).
  void write_text(const std::string& name, std::string_view text);
  // Attributes of an existing object; "/" is the file itself. At most 60,000 bytes of text.
  void set_attribute(const std::string& object, const std::string& name, int64_t value);
  void set_attribute(const std::string& object, const std::string& name, double value);
  void set_attribute(const std::string& object, const std::string& name, std::string_view text);
  // The finished file. The writer accepts nothing afterwards.
  std::string finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Reads an HDF5 file from memory. `label` (usually the path it came from) begins every error.
// Files may be damaged or hostile: the bytes are read without the HDF5 library, every address and
// size is checked, time and memory are bounded by the size of the image (core/README.md). What it
// holds is found when it is opened, a damaged structure included. Only contents of the image are
// read: links, virtual and external datasets are refused. Files of other programs in HDF5's default
// format are fine: any byte order, compressed, variable-length texts, numpy booleans.
class Hdf5Reader {
 public:
  Hdf5Reader(std::string_view image, std::string label);
  ~Hdf5Reader();
  Hdf5Reader(const Hdf5Reader&) = delete;
  Hdf5Reader& operator=(const Hdf5Reader&) = delete;

  // Whether a group or dataset has that name.
  bool contains(const std::string& name) const;
  bool is_group(const std::string& name) const;
  // Names of the members of a group ("/" is the root), sorted; without the path of the group.
  std::vector<std::string> list(const std::string& group = "/") const;
  // Paths of all datasets below a group, relative to it, sorted.
  std::vector<std::string> list_datasets(const std::string& group = "/") const;

  // dtype and shape of a dataset of f32 f64 bf16 i32 i64 u8 or bool; throws Error for other types.
  DType dtype(const std::string& name) const;
  Shape shape(const std::string& name) const;
  // A dataset as a CPU tensor of the stored dtype.
  Tensor read(const std::string& name) const;
  // The same; throws Error that names both when dtype or shape differ from the expected ones.
  Tensor read(const std::string& name, DType expected_dtype, const Shape& expected_shape) const;
  // A scalar string dataset.
  std::string read_text(const std::string& name) const;

  bool has_attribute(const std::string& object, const std::string& name) const;
  // Names of all attributes of an object, sorted.
  std::vector<std::string> attributes(const std::string& object) const;
  // Scalar attributes (or of one element); throws Error when absent or of another kind. Integers
  // and booleans are accepted as numbers.
  int64_t int_attribute(const std::string& object, const std::string& name) const;
  double number_attribute(const std::string& object, const std::string& name) const;
  std::string text_attribute(const std::string& object, const std::string& name) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// An HDF5 image with one dataset per name, and its inverse ("a/b" when groups are nested).
std::string tensors_to_hdf5(const std::map<std::string, Tensor>& tensors);
std::map<std::string, Tensor> tensors_from_hdf5(std::string_view image, const std::string& label);

// Version of the HDF5 library in use, such as "1.10.8".
std::string hdf5_version();

}  // namespace linnet
