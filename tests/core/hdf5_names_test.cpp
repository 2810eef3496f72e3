// Names in a damaged HDF5 file that no path can reach.
#include <gtest/gtest.h>

#include "core/hdf5.h"
#include "tests/error_helpers.h"

namespace linnet {
namespace {

TEST(Hdf5Names, OfMembersAreNoPaths) {
  const std::string image = tensors_to_hdf5({{"inputs", Tensor::from<float>({1}, {1})}});
  const size_t at = image.find("inputs");
  ASSERT_NE(at, std::string::npos);
  EXPECT_EQ(Hdf5Reader(image, "a.h5").list(), std::vector<std::string>{"inputs"});
  for (const std::string& name :
       {std::string("in/uts"), std::string("/nputs"), std::string(1, '\0')}) {
    std::string damaged = image;
    damaged.replace(at, name.size(), name);
    EXPECT_EQ(test::causes_of([&] { Hdf5Reader(damaged, "a.h5"); }), "malformed at a.h5");
  }
}

}  // namespace
}  // namespace linnet
