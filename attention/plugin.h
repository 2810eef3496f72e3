// Exports of a plugin: the ABI that it was built for and the function that registers its
// mechanisms. A plugin is a shared library that the option --plugin loads; its source ends with
//   LINNET_PLUGIN() { linnet::register_mechanism(mine()); }
#pragma once

#include <version>

// Raised with every change of the classes and functions that plugins compile against.
#define LINNET_PLUGIN_INTERFACE 9

#define LINNET_PLUGIN_TEXT_(x) #x
#define LINNET_PLUGIN_TEXT(x) LINNET_PLUGIN_TEXT_(x)

#ifdef __clang__
#define LINNET_PLUGIN_COMPILER "clang++ " LINNET_PLUGIN_TEXT(__clang_major__)
#else
#define LINNET_PLUGIN_COMPILER "g++ " LINNET_PLUGIN_TEXT(__GNUC__)
#endif
#ifdef _LIBCPP_VERSION
#define LINNET_PLUGIN_LIBRARY "libc++ ABI " LINNET_PLUGIN_TEXT(_LIBCPP_ABI_VERSION)
#else
#define LINNET_PLUGIN_LIBRARY "libstdc++ CXX11 ABI " LINNET_PLUGIN_TEXT(_GLIBCXX_USE_CXX11_ABI)
#endif

// The headers' vector types are as wide as the processor's.
#if defined(__AVX512F__)
#define LINNET_PLUGIN_VECTORS "AVX-512"
#elif defined(__AVX2__)
#define LINNET_PLUGIN_VECTORS "AVX2"
#else
#define LINNET_PLUGIN_VECTORS "no AVX2"
#endif

// "9 (g++ 12, libstdc++ CXX11 ABI 1, AVX-512)". Literals only: an inline function could resolve to
// the program's copy.
#define LINNET_PLUGIN_ABI                     \
  LINNET_PLUGIN_TEXT(LINNET_PLUGIN_INTERFACE) \
  " (" LINNET_PLUGIN_COMPILER ", " LINNET_PLUGIN_LIBRARY ", " LINNET_PLUGIN_VECTORS ")"

// Begins the function that calls register_mechanism for each mechanism of the plugin.
#define LINNET_PLUGIN()                                                               \
  extern "C" __attribute__((visibility("default"))) const char* linnet_plugin_abi() { \
    return LINNET_PLUGIN_ABI;                                                         \
  }                                                                                   \
  extern "C" __attribute__((visibility("default"))) void linnet_plugin_register()
