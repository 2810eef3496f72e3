// An HDF5 image: everything that a reader can ask of it.
#include "core/hdf5.h"

#include "tests/fuzz/fuzz.h"

namespace linnet::fuzz {
namespace {

template <typename Body>
void refusing(const Body& body) {
  try {
    body();
  } catch (const Error&) {
  }
}

void read_attributes(const Hdf5Reader& reader, const std::string& object) {
  for (const std::string& name : reader.attributes(object)) {
    expect(reader.has_attribute(object, name), "an attribute that is listed is there");
    refusing([&] { reader.int_attribute(object, name); });
    refusing([&] { reader.number_attribute(object, name); });
    refusing([&] { reader.text_attribute(object, name); });
  }
}

}  // namespace

void read_input(std::string_view input) {
  const Hdf5Reader reader(input, "input.h5");
  read_attributes(reader, "/");
  std::map<std::string, Tensor> tensors;
  for (const std::string& name : reader.list_datasets()) {
    expect(reader.contains(name) && !reader.is_group(name), "a dataset that is listed is there");
    read_attributes(reader, name);
    refusing([&] { reader.read_text(name); });
    refusing([&] {
      const Tensor tensor = reader.read(name);
      expect(tensor.shape() == reader.shape(name) && tensor.dtype() == reader.dtype(name),
             "a tensor is what was said of it");
      tensors.emplace(name, tensor);
    });
  }
  const std::string image = tensors_to_hdf5(tensors);
  expect(tensors_from_hdf5(image, "copy.h5").size() == tensors.size(),
         "a file that was written reads back");
}

}  // namespace linnet::fuzz
