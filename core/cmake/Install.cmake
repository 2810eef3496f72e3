# cmake --install BUILD --prefix PREFIX: the program, the library, its headers, the recipes, and the CMake
# package against which plugins build.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(LINNET_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/linnet)

target_include_directories(linnet_plugin INTERFACE
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/linnet>)
install(TARGETS linnet linnet_plugin EXPORT linnet LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
# Libraries outside of the system's folders, such as CUDA's, are found where they were linked.
set_target_properties(linnet PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
if(TARGET linnet_program)
  # The tree may be moved as a whole. (A preset that packs the program says where libraries will be.)
  if(NOT CMAKE_INSTALL_RPATH)
    file(RELATIVE_PATH library_dir ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
    set_target_properties(linnet_program PROPERTIES INSTALL_RPATH "$ORIGIN/${library_dir}")
  endif()
  install(TARGETS linnet_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

foreach(folder ${LINNET_FOLDERS})
  if(folder STREQUAL "recipes")
    set(folder recipes/engine)
  endif()
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder}/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/linnet/${folder}
    FILES_MATCHING PATTERN "*.h" PATTERN cmake EXCLUDE)
endforeach()
# core/cuda/backend.h and core/sanitizers.h include them.
install(FILES ${PROJECT_BINARY_DIR}/generated/core/cuda/build_backend.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/linnet/core/cuda)
install(FILES ${PROJECT_BINARY_DIR}/generated/core/build_sanitizers.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/linnet/core)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/recipes/ DESTINATION ${CMAKE_INSTALL_DATADIR}/linnet/recipes
  FILES_MATCHING PATTERN "*.yaml" PATTERN engine EXCLUDE)

install(EXPORT linnet NAMESPACE linnet:: FILE linnet-targets.cmake DESTINATION ${LINNET_PACKAGE_DIR})
set(package ${PROJECT_BINARY_DIR}/package)
file(WRITE ${package}/linnet-config.cmake "include(\"\${CMAKE_CURRENT_LIST_DIR}/linnet-targets.cmake\")\n")
write_basic_package_version_file(${package}/linnet-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${package}/linnet-config.cmake ${package}/linnet-config-version.cmake DESTINATION ${LINNET_PACKAGE_DIR})
