# The CUDA backend: which sources a build has, and how they are compiled. `off` has none of what
# lies in folders named cuda; `emulated` compiles kernels as C++; `on` needs the CUDA toolkit.
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/generated/core/cuda/build_backend.h CONTENT
  "#define LINNET_CUDA_BACKEND ${LINNET_CUDA}\n")

if(LINNET_CUDA STREQUAL "emulated")
  find_path(BOOST_CONTEXT_INCLUDE boost/context/detail/fcontext.hpp)
  find_library(BOOST_CONTEXT_LIBRARY boost_context)
  if(NOT BOOST_CONTEXT_INCLUDE OR NOT BOOST_CONTEXT_LIBRARY)
    message(FATAL_ERROR "LINNET_CUDA=emulated needs Boost.Context; run  apt-get install libboost-context-dev")
  endif()
  target_include_directories(linnet_dependencies SYSTEM INTERFACE ${BOOST_CONTEXT_INCLUDE})
  target_link_libraries(linnet_dependencies INTERFACE ${BOOST_CONTEXT_LIBRARY})
  # CUDA's own vector and bf16 types where the toolkit is installed; emulation has the few it needs.
  find_path(CUDA_TYPES_INCLUDE cuda_bf16.h PATHS /usr/local/cuda/include)
  if(CUDA_TYPES_INCLUDE)
    target_include_directories(linnet_dependencies SYSTEM INTERFACE ${CUDA_TYPES_INCLUDE})
  endif()
elseif(LINNET_CUDA STREQUAL "on")
  if(NOT CMAKE_CUDA_COMPILER)
    find_program(LINNET_NVCC nvcc PATHS /usr/local/cuda/bin)
    if(NOT LINNET_NVCC)
      message(FATAL_ERROR "LINNET_CUDA=on needs nvcc (CUDA Toolkit 12 or newer) in the PATH; without it use the preset release")
    endif()
    set(CMAKE_CUDA_COMPILER ${LINNET_NVCC})
  endif()
  # A100, H100/H200, and PTX for what comes after.
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90 CACHE STRING "GPU architectures")
  # The one that is linked below: two runtimes in a program would each have a last error of their own.
  set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
  target_link_libraries(linnet_dependencies INTERFACE CUDA::cudart CUDA::cublasLt)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know it for nvcc 12 and newer
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  # Registers and spills of every kernel, for tools/check_spills.
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${PROJECT_SOURCE_DIR}/core/cmake/keep_ptxas_report)
  # -lineinfo: lines of the source in what compute-sanitizer and profilers report; no cost at run time.
  set(LINNET_CUDA_FLAGS --extended-lambda --expt-relaxed-constexpr -lineinfo -Werror=all-warnings
    -Xptxas=-v -Xcompiler=-Wall,-Wextra,-Wno-unused-parameter,-fPIC)
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    list(APPEND LINNET_CUDA_FLAGS --compress-mode=size)  # lines treble what else is shipped
  endif()
endif()

# The CUDA sources of a folder in this build.
function(linnet_cuda_sources folder result)
  set(found "")
  if(NOT LINNET_CUDA STREQUAL "off")
    file(GLOB_RECURSE found CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} ${folder}/*.cu)
    file(GLOB_RECURSE cpp CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} ${folder}/*.cpp)
    list(FILTER cpp INCLUDE REGEX /cuda/)
    list(APPEND found ${cpp})
    if(LINNET_CUDA STREQUAL "on")
      list(FILTER found EXCLUDE REGEX "/emulation/|_emulated\\.cpp$")
      if(LINNET_CUDNN)
        list(FILTER found EXCLUDE REGEX "/cudnn_absent\\.cpp$")
      else()
        list(FILTER found EXCLUDE REGEX "/cudnn_plan\\.cpp$")
      endif()
      if(LINNET_NCCL)
        list(FILTER found EXCLUDE REGEX "/nccl_absent\\.cpp$")
      else()
        list(FILTER found EXCLUDE REGEX "/nccl_(communicator|library)\\.cpp$")
      endif()
    else()
      list(FILTER found EXCLUDE REGEX "_cuda\\.cpp$|_cublaslt\\.cpp$|_cub\\.cu$|/cudnn_(plan|absent)\\.cpp$|/nccl_(communicator|library)\\.cpp$")
      linnet_emulate(${found})
    endif()
  endif()
  set(${result} ${found} PARENT_SCOPE)
endfunction()

# Kernels as C++; the emulator itself is never instrumented but tells the sanitizers what it does.
function(linnet_emulate)
  set(flags ${LINNET_KERNEL_FLAGS})
  if(LINNET_SANITIZE MATCHES "undefined")
    list(APPEND flags -fsanitize=alignment)  # a GPU faults where the CPU does not
  endif()
  foreach(source ${ARGN})
    if(source MATCHES "\\.cu$")
      set_source_files_properties(${source} PROPERTIES LANGUAGE CXX
        COMPILE_OPTIONS "-x;c++;-fno-strict-aliasing;-Wno-unknown-pragmas;${flags}")
    elseif(source MATCHES "/emulation/" AND LINNET_SANITIZE)
      set(define "")
      if(LINNET_SANITIZE MATCHES "address")
        set(define LINNET_EMULATION_ASAN)
      elseif(LINNET_SANITIZE MATCHES "thread")
        set(define LINNET_EMULATION_TSAN)
      endif()
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "-fno-sanitize=all;-O2"
        COMPILE_DEFINITIONS "${define}")
    endif()
  endforeach()
endfunction()
