// Which sanitizer this code was compiled with. GCC and clang say it in different ways.
#pragma once

#ifdef __has_feature
#define LINNET_HAS_FEATURE(feature) __has_feature(feature)
#else
#define LINNET_HAS_FEATURE(feature) 0
#endif

namespace linnet {

#if defined(__SANITIZE_ADDRESS__) || LINNET_HAS_FEATURE(address_sanitizer)
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif

#if defined(__SANITIZE_THREAD__) || LINNET_HAS_FEATURE(thread_sanitizer)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

}  // namespace linnet

#undef LINNET_HAS_FEATURE
