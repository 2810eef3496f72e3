// A table in a file of HDF5 or safetensors whose rows come in any order and are not kept in memory.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/atomic_file.h"
#include "core/tensor.h"

namespace linnet {

// Whether a file of that name is safetensors; all others are HDF5.
bool is_safetensors_name(std::string_view path);

struct Column {
  std::string name;
  DType dtype = DType::f32;
};

// Columns of `rows` elements, each a dataset of its own; whole or not at all (AtomicFile). Memory
// is that of what write() is given. Equal contents give equal bytes. Errors are those of the disk.
class ColumnFile {
 public:
  // `metadata`: attributes of the file, or safetensors' metadata. Throws Error for no rows.
  ColumnFile(const std::string& path, const std::vector<Column>& columns, int64_t rows,
             const std::map<std::string, std::string>& metadata);
  // Rows [first, first + values.elements()) of a column, of its dtype, on the CPU. Rows that are
  // never written are zero.
  void write(size_t column, int64_t first, const Tensor& values);
  void commit() { file_.commit(); }

 private:
  std::vector<Column> columns_;
  std::vector<uint64_t> offsets_;  // of the first row of each
  int64_t rows_;
  AtomicFile file_;
};

}  // namespace linnet
