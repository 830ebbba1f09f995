# What we build with. tools/setup installs all of it; where it put the wheels is asked for here,
# unless the caller says so:
#   LIBTORCH_DIR   the `torch` folder of a PyTorch wheel
#   UCX_DIR        the prefix of UCX 1.22
# Also read by the installed package, with the folders of the build as defaults.
include_guard()

if(NOT LIBTORCH_DIR OR NOT UCX_DIR)
  set(_setup ${PROJECT_SOURCE_DIR}/tools/setup)
  if(EXISTS ${_setup})
    execute_process(COMMAND ${_setup} --where OUTPUT_VARIABLE _where COMMAND_ERROR_IS_FATAL ANY)
    foreach(_key LIBTORCH_DIR UCX_DIR)
      if(NOT ${_key} AND _where MATCHES "(^|\n)${_key}=([^\n]*)")
        set(${_key} "${CMAKE_MATCH_2}" CACHE PATH "From tools/setup --where" FORCE)
      endif()
    endforeach()
  endif()
endif()

find_package(Threads REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(fmt 9 REQUIRED)
find_package(Boost 1.81 REQUIRED)
if(PIPER_WITH_UCX OR PIPER_WITH_LIBTORCH)
  find_package(ucx 1.22 CONFIG REQUIRED HINTS ${UCX_DIR})
endif()
if(PIPER_WITH_LIBTORCH)
  find_package(LibTorchCpu 2.11 REQUIRED)
  find_package(CAF REQUIRED)
  find_package(spdlog REQUIRED)
  find_package(CLI11 REQUIRED)
endif()
