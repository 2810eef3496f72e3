// For tools/torture: files that Python's own library cannot write.
//   torture_files cases FOLDER      cases of `linnet attention run`, FOLDER/*.h5
//   torture_files seal CHECKPOINT   hashes that fit files of a checkpoint that were changed
#include <hdf5.h>

#include <cstdio>

#include "core/files.h"
#include "core/hdf5.h"
#include "core/random.h"
#include "recipes/engine/checkpoint_files.h"

namespace linnet {
namespace {

constexpr int64_t kLength = 12, kWidth = 16, kHeads = 2;

Tensor draw(const Shape& shape, const std::string& name) {
  const Tensor result = Tensor::empty(shape, DType::f32);
  const RandomKey key = RandomKey{5, 0, 0}.at(name);
  for (int64_t i = 0; i < result.elements(); ++i) {
    result.data<float>()[i] = static_cast<float>(0.5 * key.normal(static_cast<uint64_t>(i)));
  }
  return result;
}

// Queries, keys, values and a cotangent, without projections.
void write_core(Hdf5Writer& writer) {
  for (const char* name : {"inputs/q", "inputs/k", "inputs/v"}) {
    writer.write(name, draw({1, kLength, kHeads, kWidth / kHeads}, name));
  }
  writer.write("cotangent", draw({1, kLength, kHeads, kWidth / kHeads}, "cotangent"));
  writer.set_attribute("/", "core", int64_t{1});
}

void set_texts(Hdf5Writer& writer, const std::string& mechanism) {
  writer.set_attribute("/", "mechanism", mechanism);
  writer.set_attribute("/", "form", "causal");
  writer.set_attribute("/", "config", concat("{width: ", kWidth, ", heads: ", kHeads, "}"));
}

// The same text attributes as Python's h5py writes them: of variable length, on HDF5's heap.
void write_like_h5py(const std::string& path, const std::string& mechanism) {
  Hdf5Writer writer;
  write_core(writer);
  write_file(path, writer.finish());
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  const hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR);
  H5Tset_size(type, H5T_VARIABLE);
  const std::string config = concat("{width: ", kWidth, ", heads: ", kHeads, "}");
  for (const auto& [name, text] : std::map<std::string, std::string>{
           {"mechanism", mechanism}, {"form", "causal"}, {"config", config}}) {
    const hid_t attribute = H5Acreate2(file, name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT);
    const char* pointer = text.c_str();
    require(H5Awrite(attribute, type, &pointer) >= 0, "cannot write the attribute ", name);
    H5Aclose(attribute);
  }
  H5Sclose(space);
  H5Tclose(type);
  require(H5Fclose(file) >= 0, "cannot write ", path);
}

void make_cases(const std::string& folder) {
  create_directories(folder);
  for (const char* mechanism : {"linear", "softmax", "local"}) {
    Hdf5Writer writer;
    write_core(writer);
    set_texts(writer, mechanism);
    write_file(join_path(folder, concat(mechanism, ".h5")), writer.finish());
    write_like_h5py(join_path(folder, concat(mechanism, "_h5py.h5")), mechanism);
  }
}

// As if the damage had been done before the checkpoint was saved.
void seal(const std::string& checkpoint) {
  const std::string path = join_path(checkpoint, "manifest.json");
  const JsonValue manifest = parse_json(read_file(path), path);
  std::map<std::string, std::string> files;
  for (const JsonValue& file : manifest.at("files").elements()) {
    const std::string name = file.at("name").text();
    files[name] = read_file(join_path(checkpoint, name));
  }
  write_checkpoint_files(checkpoint, manifest.at("step").integer(), files, manifest.at("metadata"));
}

}  // namespace
}  // namespace linnet

int main(int argc, char** argv) {
  const std::string command = argc == 3 ? argv[1] : "";
  try {
    if (command == "cases") {
      linnet::make_cases(argv[2]);
    } else if (command == "seal") {
      linnet::seal(argv[2]);
    } else {
      std::fputs("usage: torture_files cases FOLDER | seal CHECKPOINT\n", stderr);
      return 2;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "torture_files: %s\n", error.what());
    return 1;
  }
  return 0;
}
