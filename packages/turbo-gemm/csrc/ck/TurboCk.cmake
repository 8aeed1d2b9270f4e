# SPDX-License-Identifier: MIT
#
# The composable-kernel GEMMs, in a build with TURBO_BUILD_CK=1: README.md beside this file says where the headers are
# looked for, and how to build without ROCm.

set(TURBO_CK_INCLUDES "$ENV{TURBO_CK_INCLUDES}" CACHE STRING "Folders with ck/ck.hpp and ck/config.h, ;-list")
set(TURBO_CK_HIP_FLAGS "$ENV{TURBO_CK_HIP_FLAGS}" CACHE STRING "Flags that let the device compiler find HIP's headers, ;-list")

_turbo_rocm_roots(rocm)

set(ck_includes "${TURBO_CK_INCLUDES}")
if(NOT ck_includes)
  string(JOIN "\n" program
    "import importlib.util, pathlib"
    "spec = importlib.util.find_spec('aiter_meta')"
    "print(pathlib.Path(list(spec.submodule_search_locations)[0]) / '3rdparty' if spec else '', end='')")
  execute_process(COMMAND "${Python_EXECUTABLE}" -c "${program}" OUTPUT_VARIABLE third_party)
  if(third_party)
    set(ck_includes "${third_party}/ck_helper" "${third_party}/composable_kernel/include")
  elseif(EXISTS "${rocm}/include/ck/ck.hpp")
    set(ck_includes "${rocm}/include")
  else()
    message(FATAL_ERROR "TURBO_BUILD_CK: composable kernel's headers are neither in the package amd-aiter of "
      "${Python_EXECUTABLE} nor under ${rocm}/include; set TURBO_CK_INCLUDES")
  endif()
endif()

set(hip_flags "${TURBO_CK_HIP_FLAGS}")
if(NOT hip_flags)
  if(NOT EXISTS "${rocm}/include/hip/hip_runtime.h")
    message(FATAL_ERROR "TURBO_BUILD_CK: HIP's headers are not under ${rocm}/include; set TURBO_CK_HIP_FLAGS")
  endif()
  set(hip_flags -isystem "${rocm}/include")
endif()

message(STATUS "Turbo: composable kernel from ${ck_includes}")
file(GLOB ck_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/*.hip")
turbo_add_kernels(ck_kernels
  DESTINATION ${PROJECT_NAME}/lib
  TABLE resources_ck.json
  SOURCES ${ck_sources}
  INCLUDES ${ck_includes}
  FLAGS -w ${hip_flags} -include __clang_hip_runtime_wrapper.h -D__HIP_PLATFORM_AMD__)
