// Shared libraries that are no usable plugins.
#include "attention/plugin.h"

#if defined(REFUSED_other_abi)
extern "C" const char* linnet_plugin_abi() {
  return "0 (another compiler)";
}
#elif defined(REFUSED_older_interface)
// By the same compiler, with the headers of an older interface.
#undef LINNET_PLUGIN_INTERFACE
#define LINNET_PLUGIN_INTERFACE 3
LINNET_PLUGIN() {}
#elif defined(REFUSED_unresolved)
void defined_nowhere();
LINNET_PLUGIN() {
  defined_nowhere();
}
#else
LINNET_PLUGIN() {}
#endif
