# Version strings that the program prints: git commit, libraries.

# linnet_header_version(NAME HEADER MACRO...): appends NAME and the macros' numbers, joined by dots,
# to LINNET_LIBRARY_LIST; nothing when the header is absent.
function(linnet_header_version name header)
  if(NOT EXISTS "${header}")
    return()
  endif()
  set(numbers "")
  foreach(macro ${ARGN})
    file(STRINGS "${header}" line REGEX "#[ ]*define[ ]+${macro}[ ]+[0-9]+" LIMIT_COUNT 1)
    string(REGEX REPLACE ".*${macro}[ ]+([0-9]+).*" "\\1" number "${line}")
    list(APPEND numbers "${number}")
  endforeach()
  string(REPLACE ";" "." version "${numbers}")
  set(LINNET_LIBRARY_LIST "${LINNET_LIBRARY_LIST}    {\"${name}\", \"${version}\"},\n" PARENT_SCOPE)
endfunction()

# Writes generated/core/git_hash.h at every build, before linnet_core is compiled.
add_custom_target(linnet_git_hash
  COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} -DBUILD_TYPE=${CMAKE_BUILD_TYPE} -DOUTPUT=${PROJECT_BINARY_DIR}/generated/core/git_hash.h
    -P ${PROJECT_SOURCE_DIR}/core/cmake/GitHash.cmake
  BYPRODUCTS ${PROJECT_BINARY_DIR}/generated/core/git_hash.h
  VERBATIM)
add_dependencies(linnet_core linnet_git_hash)

# generated/core/build_libraries.h: names and versions of the libraries found at configure time.
set(LINNET_LIBRARY_LIST "")
foreach(pair "Eigen=${Eigen3_VERSION}" "yaml-cpp=${yaml-cpp_VERSION}" "HDF5=${HDF5_VERSION}"
    "CLI11=${CLI11_VERSION}" "spdlog=${spdlog_VERSION}" "nlohmann-json=${nlohmann_json_VERSION}"
    "OpenMP=${OpenMP_CXX_VERSION}")
  string(REGEX MATCH "^([^=]+)=(.*)$" matched "${pair}")
  string(APPEND LINNET_LIBRARY_LIST "    {\"${CMAKE_MATCH_1}\", \"${CMAKE_MATCH_2}\"},\n")
endforeach()
if(TARGET gloo)
  string(APPEND LINNET_LIBRARY_LIST "    {\"Gloo\", \"${GLOO_VERSION}\"},\n")
endif()
# Header-only look-ups have no version variable: it is read from the header's macros.
linnet_header_version(oneDNN "${DNNL_INCLUDE}/oneapi/dnnl/dnnl_version.h"
  DNNL_VERSION_MAJOR DNNL_VERSION_MINOR DNNL_VERSION_PATCH)
linnet_header_version(xxHash "${XXHASH_INCLUDE}/xxhash.h"
  XXH_VERSION_MAJOR XXH_VERSION_MINOR XXH_VERSION_RELEASE)
linnet_header_version(utf8proc "${UTF8PROC_INCLUDE}/utf8proc.h"
  UTF8PROC_VERSION_MAJOR UTF8PROC_VERSION_MINOR UTF8PROC_VERSION_PATCH)
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/generated/core/build_libraries.h @ONLY CONTENT
[[// Written by the build (core/cmake/Version.cmake): libraries that linnet was compiled against.
#pragma once

namespace linnet {

struct BuildLibrary {
  const char* name;
  const char* version;
};
inline constexpr BuildLibrary kBuildLibraries[] = {
@LINNET_LIBRARY_LIST@};

}  // namespace linnet
]])
