// Which linnet this is.
#pragma once

#include <string>

namespace linnet {

// "0.1.0", from CMakeLists.txt.
std::string linnet_version();
// The commit that was compiled, with "-dirty" when files differed from it; "unknown" outside git.
std::string git_hash();
// "g++ 12.2.0, Release" and the like.
std::string compiler_description();

}  // namespace linnet
