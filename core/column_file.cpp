#include "core/column_file.h"

#include <hdf5.h>

#include "core/hdf5_handle.h"
#include "core/safetensors.h"

namespace linnet {
namespace {

using hdf5::Handle;

void set_text(hid_t file, const std::string& name, const std::string& text) {
  const Handle type(H5Tcopy(H5T_C_S1), "HDF5 has no string type");
  require(
      H5Tset_size(type.get(), text.size() + 1) >= 0 && H5Tset_cset(type.get(), H5T_CSET_UTF8) >= 0,
      "HDF5 refuses a string of ", text.size(), " bytes");
  const Handle space(H5Screate(H5S_SCALAR), "HDF5 refuses a scalar");
  const Handle attribute(
      H5Acreate2(file, name.c_str(), type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT),
      "HDF5 cannot create the attribute '", name, "'");
  require(H5Awrite(attribute.get(), type.get(), text.c_str()) >= 0,
          "HDF5 cannot write the attribute '", name, "'");
}

// Creates the file at `path`, with datasets that have their place in it and no contents yet, and
// returns these places. Only this little goes past core/files.h, because the library writes either
// a file of its own or one that is in memory as a whole.
std::vector<uint64_t> begin_hdf5(const std::string& path, const std::vector<Column>& columns,
                                 int64_t rows, const std::map<std::string, std::string>& metadata) {
  const hdf5::Lock lock;
  Handle file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT),
              "HDF5 cannot write ", path);
  for (const auto& [name, text] : metadata) set_text(file.get(), name, text);
  const Handle placed(H5Pcreate(H5P_DATASET_CREATE), "HDF5 property lists fail");
  require(H5Pset_alloc_time(placed.get(), H5D_ALLOC_TIME_EARLY) >= 0 &&
              H5Pset_fill_time(placed.get(), H5D_FILL_TIME_NEVER) >= 0 &&
              H5Pset_obj_track_times(placed.get(), false) >= 0,
          "HDF5 property lists fail");
  const auto size = static_cast<hsize_t>(rows);
  const Handle space(H5Screate_simple(1, &size, nullptr), "HDF5 refuses ", rows, " rows");
  std::vector<uint64_t> offsets;
  for (const Column& column : columns) {
    const Handle dataset(H5Dcreate2(file.get(), column.name.c_str(), hdf5::file_type(column.dtype),
                                    space.get(), H5P_DEFAULT, placed.get(), H5P_DEFAULT),
                         "HDF5 cannot create the dataset '", column.name, "'");
    offsets.push_back(H5Dget_offset(dataset.get()));
    require(offsets.back() != HADDR_UNDEF, "HDF5 gives '", column.name, "' no place");
  }
  require(file.reset(), "HDF5 cannot write ", path, " (is the disk full?)");
  return offsets;
}

std::vector<uint64_t> begin_safetensors(AtomicFile& file, const std::vector<Column>& columns,
                                        int64_t rows,
                                        const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsEntry> entries;
  for (const Column& column : columns) entries.push_back({column.name, column.dtype, {rows}});
  const std::string head = safetensors_head(entries, metadata);
  file.write(head);
  std::vector<uint64_t> offsets;
  uint64_t at = head.size();
  for (const Column& column : columns) {
    offsets.push_back(at);
    at += size_of(column.dtype) * static_cast<uint64_t>(rows);
  }
  return offsets;
}

}  // namespace

bool is_safetensors_name(std::string_view path) {
  return path.ends_with(".safetensors");
}

ColumnFile::ColumnFile(const std::string& path, const std::vector<Column>& columns, int64_t rows,
                       const std::map<std::string, std::string>& metadata)
    : columns_(columns), rows_(rows), file_(path) {
  require(rows > 0, "a table needs rows: ", path);
  offsets_ = is_safetensors_name(path) ? begin_safetensors(file_, columns, rows, metadata)
                                       : begin_hdf5(file_.temporary(), columns, rows, metadata);
}

void ColumnFile::write(size_t column, int64_t first, const Tensor& values) {
  const Column& to = columns_.at(column);
  require(values.dtype() == to.dtype && first >= 0 && values.elements() <= rows_ - first,
          "column '", to.name, "' of ", rows_, " rows of ", name_of(to.dtype), ": it cannot hold ",
          values.elements(), " of ", name_of(values.dtype()), " from row ", first);
  if (values.elements() == 0) return;
  file_.write_at(offsets_[column] + size_of(to.dtype) * static_cast<uint64_t>(first),
                 {static_cast<const char*>(values.raw()), values.bytes()});
}

}  // namespace linnet
