# How a target of ours is built: warnings as errors, sanitizers, the linker, ccache.
include_guard()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Clones elsewhere share the cache; precompiled headers need the sloppiness.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      ${CCACHE_PROGRAM})
endif()
find_program(MOLD_PROGRAM mold)
if(MOLD_PROGRAM)
  add_link_options(-fuse-ld=mold)
endif()
if(PIPER_SANITIZE)
  add_compile_options(-fsanitize=${PIPER_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${PIPER_SANITIZE})
endif()

function(piper_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Werror -Wno-missing-field-initializers)
endfunction()

# piper_library(NAME folders... ) makes static library piper_NAME, piper::NAME, of the sources in
# the folders (relative to the current one, not recursive).
function(piper_library name)
  set(patterns)
  foreach(folder ${ARGN})
    list(APPEND patterns ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.cpp)
  endforeach()
  file(GLOB sources CONFIGURE_DEPENDS ${patterns})
  add_library(piper_${name} STATIC ${sources})
  add_library(piper::${name} ALIAS piper_${name})
  set_target_properties(piper_${name} PROPERTIES EXPORT_NAME ${name})
  target_include_directories(piper_${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:include/piper>)
  piper_warnings(piper_${name})
  set_property(GLOBAL APPEND PROPERTY PIPER_LIBRARIES piper_${name})
endfunction()
