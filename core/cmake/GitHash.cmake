# Script: writes OUTPUT (git_hash.h) with the current commit of SOURCE, only when it changed, so
# that one small file is recompiled after a commit and nothing otherwise.
execute_process(COMMAND git -C ${SOURCE} rev-parse HEAD
  OUTPUT_VARIABLE hash OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  set(hash unknown)
else()
  execute_process(COMMAND git -C ${SOURCE} status --porcelain --untracked-files=no
    OUTPUT_VARIABLE changes ERROR_QUIET)
  if(changes)
    set(hash ${hash}-dirty)
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT [[// Written by the build (core/cmake/GitHash.cmake).
#define LINNET_GIT_HASH "@hash@"
#define LINNET_BUILD_TYPE "@BUILD_TYPE@"
]])
