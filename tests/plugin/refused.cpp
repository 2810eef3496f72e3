// Shared libraries that are no usable plugins.
#include "attention/plugin.h"

#if defined(REFUSED_other_abi)
extern "C" const char* linnet_plugin_abi() {
  return "0 (another compiler)";
}
#elif defined(REFUSED_unresolved)
void defined_nowhere();
LINNET_PLUGIN() {
  defined_nowhere();
}
#else
LINNET_PLUGIN() {}
#endif
