// Version strings, from a header that the build writes.
#include "core/version.h"

#include "core/git_hash.h"

namespace linnet {

std::string linnet_version() {
  return LINNET_VERSION;
}

std::string git_hash() {
  return LINNET_GIT_HASH;
}

std::string compiler_description() {
#ifdef __clang__
  const std::string name = "clang++ " __clang_version__;
#else
  const std::string name = "g++ " __VERSION__;
#endif
  return name + ", " LINNET_BUILD_TYPE;
}

}  // namespace linnet
