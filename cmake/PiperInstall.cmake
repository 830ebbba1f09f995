# `cmake --install`: static libraries, the headers under include/piper, the programs, and a package
# that find_package(piper) reads. Programs find LibTorch and UCX where they were built with them.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

get_property(_libraries GLOBAL PROPERTY PIPER_LIBRARIES)
set(_package ${CMAKE_INSTALL_LIBDIR}/cmake/piper)
install(TARGETS ${_libraries} EXPORT piper ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT piper NAMESPACE piper:: FILE piperTargets.cmake DESTINATION ${_package})
install(DIRECTORY ir compiler transport actors DESTINATION include/piper
        FILES_MATCHING PATTERN "*.h")
if(PIPER_WITH_LIBTORCH)
  install(DIRECTORY examples/models DESTINATION include/piper/examples
          FILES_MATCHING PATTERN "*.h")
  install(FILES tools/piper/main.h DESTINATION include/piper/tools/piper)
  install(TARGETS piper_program DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

configure_package_config_file(cmake/piperConfig.cmake.in ${CMAKE_BINARY_DIR}/piperConfig.cmake
                              INSTALL_DESTINATION ${_package})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/piperConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/piperConfig.cmake ${CMAKE_BINARY_DIR}/piperConfigVersion.cmake
              cmake/PiperDependencies.cmake cmake/FindCAF.cmake cmake/FindLibTorchCpu.cmake
        DESTINATION ${_package})
