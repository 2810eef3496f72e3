// Which sanitizer watches the library. Tests that are not watched themselves ask, too.
#pragma once

#include "core/build_sanitizers.h"

namespace linnet {

inline constexpr bool kAddressSanitizer = LINNET_BUILD_ADDRESS_SANITIZER;
inline constexpr bool kThreadSanitizer = LINNET_BUILD_THREAD_SANITIZER;

}  // namespace linnet
