# LibTorch's CPU libraries from the PyTorch wheel, as LibTorchCpu::LibTorchCpu. The wheel's own
# config also wants nvcc and every CUDA library, which a machine without a GPU need not have.
#   LIBTORCH_DIR   the wheel's `torch` folder
include(FindPackageHandleStandardArgs)
find_path(LibTorchCpu_INCLUDE_DIR ATen/core/Tensor.h HINTS ${LIBTORCH_DIR}/include NO_DEFAULT_PATH)
find_library(LibTorchCpu_LIBRARY torch_cpu HINTS ${LIBTORCH_DIR}/lib NO_DEFAULT_PATH)
find_library(LibTorchCpu_C10 c10 HINTS ${LIBTORCH_DIR}/lib NO_DEFAULT_PATH)
if(LibTorchCpu_INCLUDE_DIR)
  file(STRINGS ${LibTorchCpu_INCLUDE_DIR}/torch/headeronly/version.h _lines
       REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
  list(TRANSFORM _lines REPLACE "[^0-9]" "")
  list(JOIN _lines "." LibTorchCpu_VERSION)
endif()
find_package_handle_standard_args(LibTorchCpu
  REQUIRED_VARS LibTorchCpu_LIBRARY LibTorchCpu_C10 LibTorchCpu_INCLUDE_DIR
  VERSION_VAR LibTorchCpu_VERSION
  REASON_FAILURE_MESSAGE "run tools/setup, or set LIBTORCH_DIR to the `torch` folder of a wheel")
if(LibTorchCpu_FOUND AND NOT TARGET LibTorchCpu::LibTorchCpu)
  add_library(LibTorchCpu::c10 SHARED IMPORTED)
  set_target_properties(LibTorchCpu::c10 PROPERTIES IMPORTED_LOCATION ${LibTorchCpu_C10})
  add_library(LibTorchCpu::LibTorchCpu SHARED IMPORTED)
  set_target_properties(LibTorchCpu::LibTorchCpu PROPERTIES
    IMPORTED_LOCATION ${LibTorchCpu_LIBRARY}
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${LibTorchCpu_INCLUDE_DIR}/torch/csrc/api/include"
    INTERFACE_INCLUDE_DIRECTORIES "${LibTorchCpu_INCLUDE_DIR}/torch/csrc/api/include"
    # After the system's: the wheel also brings headers of other libraries (an fmt that is newer
    # than the one we link, for instance).
    INTERFACE_COMPILE_OPTIONS "SHELL:-idirafter ${LibTorchCpu_INCLUDE_DIR}"
    INTERFACE_LINK_LIBRARIES LibTorchCpu::c10
    # libtorch_cpu finds the CUDA runtime's libraries by its own run path.
    INTERFACE_LINK_OPTIONS "-Wl,--allow-shlib-undefined")
endif()
