// A TSV file of ListOps.
#include "data/listops.h"

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/memory_files.h"

namespace linnet::fuzz {

void read_input(std::string_view input) {
  MemoryFiles files;
  files["read.tsv"] = input;
  const ClassificationSplit split = read_listops_tsv("read.tsv", true);
  expect(read_listops_tsv("read.tsv", false).labels == split.labels,
         "labels do not depend on brackets");
  write_listops_tsv("written.tsv", split);
  const ClassificationSplit back = read_listops_tsv("written.tsv", true);
  expect(
      back.tokens == split.tokens && back.offsets == split.offsets && back.labels == split.labels,
      "a file that was written reads back");
}

}  // namespace linnet::fuzz
