# Finds every package, prints one table (found / missing / how to install) and stops only when a
# required one is missing. `linnet_dependencies` carries include paths and libraries.
add_library(linnet_dependencies INTERFACE)
set(LINNET_DEPENDENCY_TABLE "")
set(LINNET_MISSING_REQUIRED "")

# linnet_component(NAME REQUIRED|OPTIONAL FOUND DETAIL DEBIAN_PACKAGE)
function(linnet_component name need found detail package)
  if(found)
    set(line "  found    ${name}: ${detail}")
  else()
    set(line "  MISSING  ${name} (${need}): install with  apt-get install ${package}")
    if(need STREQUAL "required")
      set(LINNET_MISSING_REQUIRED "${LINNET_MISSING_REQUIRED} ${package}" PARENT_SCOPE)
    endif()
  endif()
  set(LINNET_DEPENDENCY_TABLE "${LINNET_DEPENDENCY_TABLE}\n${line}" PARENT_SCOPE)
endfunction()

find_package(Threads REQUIRED)
target_link_libraries(linnet_dependencies INTERFACE Threads::Threads ${CMAKE_DL_LIBS})

find_package(OpenMP COMPONENTS CXX)
linnet_component(OpenMP required "${OpenMP_CXX_FOUND}" "${OpenMP_CXX_VERSION}" g++)

# Only header-only or .cpp-private packages below: no header of linnet includes them.
find_package(Eigen3 3.3 QUIET NO_MODULE)
linnet_component(Eigen required "${Eigen3_FOUND}" "${Eigen3_VERSION}" libeigen3-dev)

find_package(yaml-cpp QUIET)
linnet_component(yaml-cpp required "${yaml-cpp_FOUND}" "${yaml-cpp_VERSION}" libyaml-cpp-dev)

find_package(HDF5 QUIET COMPONENTS C)
linnet_component(HDF5 required "${HDF5_FOUND}" "${HDF5_VERSION}" libhdf5-dev)

find_package(ZLIB QUIET)
linnet_component(zlib required "${ZLIB_FOUND}" "${ZLIB_VERSION_STRING}" zlib1g-dev)

find_package(LibArchive QUIET)
linnet_component(libarchive required "${LibArchive_FOUND}" "${LibArchive_VERSION}" libarchive-dev)

find_package(PNG QUIET)
linnet_component(libpng required "${PNG_FOUND}" "${PNG_VERSION_STRING}" libpng-dev)

find_package(JPEG QUIET)
linnet_component(libjpeg required "${JPEG_FOUND}" "${JPEG_VERSION}" libjpeg-dev)

find_package(CLI11 QUIET)
linnet_component(CLI11 required "${CLI11_FOUND}" "${CLI11_VERSION}" libcli11-dev)

find_package(spdlog QUIET)
linnet_component(spdlog required "${spdlog_FOUND}" "${spdlog_VERSION}" libspdlog-dev)

find_package(nlohmann_json QUIET)
linnet_component(nlohmann-json required "${nlohmann_json_FOUND}" "${nlohmann_json_VERSION}" nlohmann-json3-dev)

find_path(UTF8PROC_INCLUDE utf8proc.h)
find_library(UTF8PROC_LIBRARY utf8proc)
if(UTF8PROC_INCLUDE AND UTF8PROC_LIBRARY)
  set(utf8proc_found TRUE)
endif()
linnet_component(utf8proc required "${utf8proc_found}" "${UTF8PROC_LIBRARY}" libutf8proc-dev)

find_path(XXHASH_INCLUDE xxhash.h)
find_library(XXHASH_LIBRARY xxhash)
if(XXHASH_INCLUDE AND XXHASH_LIBRARY)
  set(xxhash_found TRUE)
endif()
linnet_component(xxHash required "${xxhash_found}" "${XXHASH_LIBRARY}" libxxhash-dev)

# Debian's find_package(dnnl) demands OpenCL development files; the header and library are enough.
if(LINNET_ONEDNN)
  find_path(DNNL_INCLUDE oneapi/dnnl/dnnl.hpp)
  find_library(DNNL_LIBRARY dnnl)
  if(DNNL_INCLUDE AND DNNL_LIBRARY)
    set(dnnl_found TRUE)
    target_compile_definitions(linnet_dependencies INTERFACE LINNET_HAVE_ONEDNN=1)
    target_include_directories(linnet_dependencies SYSTEM INTERFACE ${DNNL_INCLUDE})
    target_link_libraries(linnet_dependencies INTERFACE ${DNNL_LIBRARY})
  endif()
  linnet_component(oneDNN optional "${dnnl_found}" "${DNNL_LIBRARY}" libdnnl-dev)
endif()

# Messages between several processes on CPUs: for core/comm/gloo_transport.cpp alone.
if(LINNET_GLOO)
  find_package(Gloo QUIET)
  if(TARGET gloo)
    set(gloo_found TRUE)
  endif()
  linnet_component(Gloo optional "${gloo_found}" "${GLOO_VERSION}" libgloo-dev)
endif()

# The headers alone: the library is loaded when a benchmark asks for it.
if(LINNET_CUDA STREQUAL "on")
  find_path(CUDNN_INCLUDE cudnn_graph.h PATHS /usr/local/cuda/include)
  if(CUDNN_INCLUDE)
    file(STRINGS ${CUDNN_INCLUDE}/cudnn_version.h cudnn_lines REGEX "define CUDNN_(MAJOR|MINOR|PATCHLEVEL) ")
    string(REGEX REPLACE "[^0-9;]" "" cudnn_version "${cudnn_lines}")
    string(REPLACE ";" "." cudnn_version "${cudnn_version}")
    if(cudnn_version VERSION_GREATER_EQUAL 9.16)
      set(LINNET_CUDNN TRUE)
      target_include_directories(linnet_dependencies SYSTEM INTERFACE ${CUDNN_INCLUDE})
    endif()
  endif()
  linnet_component("cuDNN 9.16 or newer" optional "${LINNET_CUDNN}" "${cudnn_version}" cudnn9-cuda-13)
endif()

if(LINNET_TESTS)
  find_package(GTest QUIET)
  linnet_component(GoogleTest required "${GTest_FOUND}" "${GTest_VERSION}" "libgtest-dev libgmock-dev")
endif()

message(STATUS "Components:${LINNET_DEPENDENCY_TABLE}")
if(LINNET_MISSING_REQUIRED)
  message(FATAL_ERROR "Missing packages. On Debian or Ubuntu run:\n  apt-get install${LINNET_MISSING_REQUIRED}")
endif()

target_include_directories(linnet_dependencies SYSTEM INTERFACE
  ${HDF5_INCLUDE_DIRS} ${UTF8PROC_INCLUDE} ${XXHASH_INCLUDE})
target_link_libraries(linnet_dependencies INTERFACE OpenMP::OpenMP_CXX Eigen3::Eigen yaml-cpp
  ${HDF5_C_LIBRARIES} ZLIB::ZLIB LibArchive::LibArchive PNG::PNG JPEG::JPEG CLI11::CLI11 spdlog::spdlog
  nlohmann_json::nlohmann_json ${UTF8PROC_LIBRARY} ${XXHASH_LIBRARY})
