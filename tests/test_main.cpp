// The main function of every test executable: GoogleTest with uninitialised tensors filled with
// NaN.
#include <gtest/gtest.h>

#include "core/tensor.h"
#include "tests/data_path.h"

std::string linnet::test::source_dir() {
  return LINNET_SOURCE_DIR;
}

// Read by the sanitizers where they are linked. A test asks for more memory than there is: the
// allocation must fail as it does elsewhere.
extern "C" const char* __asan_default_options() {  // NOLINT(bugprone-reserved-identifier)
  return "allocator_may_return_null=1";
}
extern "C" const char* __tsan_default_options() {  // NOLINT(bugprone-reserved-identifier)
  return "allocator_may_return_null=1";
}

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  linnet::set_fill_uninitialized(true);
  return RUN_ALL_TESTS();
}
