# linnet_embed(FILE SYMBOL HEADER OUTPUT): a C++ file that holds the bytes of FILE as the text
# linnet::SYMBOL that HEADER declares; written anew when FILE changes.
function(linnet_embed file symbol header output)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  file(READ ${file} bytes HEX)
  string(REGEX REPLACE "(..)" "'\\\\x\\1'," bytes "${bytes}")
  file(CONFIGURE OUTPUT ${output} CONTENT [=[
#include "@header@"

namespace linnet {
namespace {
constexpr char kBytes[]{@bytes@};
}  // namespace
const std::string_view @symbol@{kBytes, sizeof(kBytes)};
}  // namespace linnet
]=] @ONLY)
endfunction()
