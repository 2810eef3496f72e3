// safetensors: named tensors in one file, or in several that an index lists (Hugging Face's format:
// 8 bytes of length, a JSON header of that length, the elements).
#pragma once

#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/mapped_file.h"
#include "core/tensor.h"

namespace linnet {

// A tensor as a file holds it. `bytes` are of the file: row-major, little-endian, not aligned.
struct StoredTensor {
  std::string_view dtype;  // F32 F64 F16 BF16 I64 I32 U8
  Shape shape;
  std::string_view bytes;
  // A copy on the host, of the stored dtype; F16 becomes f32, which holds each of its values.
  Tensor read() const;
};

struct SafetensorsContents {
  std::map<std::string, StoredTensor> tensors;
  std::map<std::string, std::string> metadata;
};

// What the bytes of one file hold. They may be damaged or hostile: time and memory are bounded by
// the length of the header, at most 100 MB. Throws Error that begins with `label` (its path) unless
// the header is JSON of exactly the format, names differ, every size agrees with dtype and shape,
// and the tensors cover the rest of the file without a gap or an overlap. `bytes` must outlive the
// result.
SafetensorsContents parse_safetensors(std::string_view bytes, const std::string& label);

// The tensors of a file, or of a folder's model.safetensors or model.safetensors.index.json with
// the files that it lists; memory-mapped. Throws Error as parse_safetensors, where there is no such
// file, and where index and files do not list the same tensors.
class SafetensorsFiles {
 public:
  explicit SafetensorsFiles(const std::string& path);
  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  // The file, or the index.
  const std::string& path() const { return path_; }
  // A copy of a tensor, after which its part of the file no longer counts as the process's memory.
  // Throws Error when there is none of that name, or another program cut the file.
  Tensor read(const std::string& name) const;
  // XXH3-128 of the file, or of index and files in the order of their names.
  std::string hash() const;

 private:
  std::string path_;
  std::deque<MappedFile> files_;  // the index, if any, first
  std::map<std::string, StoredTensor> tensors_;
  std::map<std::string, const MappedFile*> file_of_;
};

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
};

// The beginning of a file, length and header, behind which these tensors follow in this order
// without gaps: a multiple of 8 bytes. Throws as write_safetensors().
std::string safetensors_head(const std::vector<SafetensorsEntry>& tensors,
                             const std::map<std::string, std::string>& metadata);

// Writes a file whole or not at all (AtomicFile). Tensors lie in order of element size, largest
// first, so that each is aligned, and of name; equal contents give equal bytes. Any device. Throws
// Error for dtype boolean, which the reader has not, and for a header over 100 MB.
void write_safetensors(const std::string& path, const std::map<std::string, Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace linnet
