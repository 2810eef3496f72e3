// Where tests find real data: LINNET_DATA, by default ../shared/data beside the source directory.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace linnet::test {

// The source directory. Compiled into test_main.cpp alone, so that the other objects are the same
// in every checkout and ccache finds them.
std::string source_dir();

// The path of a file or folder of the data collection, or "" when it is absent.
inline std::string data_path(const std::string& relative) {
  const char* root = std::getenv("LINNET_DATA");
  const std::filesystem::path path =
      std::filesystem::path(root != nullptr ? root : source_dir() + "/../shared/data") / relative;
  return std::filesystem::exists(path) ? path.string() : "";
}

}  // namespace linnet::test

// Skips the running test, loudly, when a file of the data collection is absent.
#define LINNET_REQUIRE_DATA(variable, relative)                     \
  const std::string variable = ::linnet::test::data_path(relative); \
  if (variable.empty())                                             \
  GTEST_SKIP() << "SKIPPED: real data '" << (relative)              \
               << "' not found; set LINNET_DATA to the folder that holds it"
