// A safetensors file: everything that a reader can ask of it.
#include "core/safetensors.h"

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/memory_files.h"

namespace linnet::fuzz {

void read_input(std::string_view input) {
  MemoryFiles files;
  const SafetensorsContents contents = parse_safetensors(input, "input.safetensors");
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, stored] : contents.tensors) {
    const Tensor tensor = stored.read();
    expect(tensor.shape() == stored.shape, "a tensor has the shape that was said");
    tensors.emplace(name, tensor);
  }
  write_safetensors("copy.safetensors", tensors, contents.metadata);
  const SafetensorsContents copy = parse_safetensors(files["copy.safetensors"], "copy.safetensors");
  expect(copy.metadata == contents.metadata && copy.tensors.size() == tensors.size(),
         "a file that was written reads back");
}

}  // namespace linnet::fuzz
