# SPDX-License-Identifier: MIT
#
# What the native part of a wheel is made of. Needs the Ninja generator; the project has LANGUAGES NONE, and its name is
# the package's, turbo_foo. With GPU_ARCHS=none nothing is compiled, and no compiler is looked for.
#
#   turbo_add_wheel([FLAGS flag ...])           more flags for the device compiler
#
#   csrc/kernels/*.hip        code objects             <package>/lib/<kernel>.<arch>.hsaco
#   csrc/kernels/*.cpp        launchers with the C interface of csrc/kernels/include/<package>.h
#                                                      <package>/lib/lib<package>_kernels.so
#   csrc/pytorch/module.cpp   front end for torch      <package>/pytorch/_C

include_guard(GLOBAL)
find_package(Python REQUIRED COMPONENTS Interpreter)
include("${CMAKE_CURRENT_LIST_DIR}/TurboKernels.cmake")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

_turbo_archs(_turbo_wheel_archs)
if(_turbo_wheel_archs)
  enable_language(CXX)  # CMake allows it in no function
endif()
set(CMAKE_INTERPROCEDURAL_OPTIMIZATION OFF)  # named, pybind11 does not try out which flags there would be for it

set(PRIMUS_TURBO_FRAMEWORK "$ENV{PRIMUS_TURBO_FRAMEWORK}" CACHE STRING "Front ends to build, ;-list (default PYTORCH)")

# The front ends that are asked for, each known.
function(_turbo_frameworks result)
  set(asked "${PRIMUS_TURBO_FRAMEWORK}")
  if(NOT asked)
    set(asked PYTORCH)
  endif()
  string(REGEX REPLACE "[, ]+" ";" asked "${asked}")
  string(REPLACE "_" "-" wheel "${PROJECT_NAME}")
  foreach(framework ${asked})
    if(framework STREQUAL JAX)
      message(FATAL_ERROR "PRIMUS_TURBO_FRAMEWORK is '${PRIMUS_TURBO_FRAMEWORK}': "
        "${wheel} has no JAX front end yet; accepted is PYTORCH")
    elseif(NOT framework STREQUAL PYTORCH)
      message(FATAL_ERROR "PRIMUS_TURBO_FRAMEWORK is '${PRIMUS_TURBO_FRAMEWORK}': "
        "${framework} is unknown; accepted is PYTORCH")
    endif()
  endforeach()
  set(${result} ${asked} PARENT_SCOPE)
endfunction()

function(turbo_add_wheel)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "FLAGS")
  set(package "${PROJECT_NAME}")
  _turbo_frameworks(frameworks)

  file(GLOB kernel_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/csrc/kernels/*.hip")
  turbo_add_kernels(kernels
    DESTINATION ${package}/lib
    SOURCES ${kernel_sources}
    FLAGS ${arg_FLAGS})

  if(NOT _turbo_wheel_archs)
    return()  # launchers and front ends of nothing
  endif()

  file(GLOB launcher_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/csrc/kernels/*.cpp")
  turbo_add_kernel_library(${package}_kernels
    DESTINATION ${package}/lib
    SOURCES ${launcher_sources}
    INCLUDES "${PROJECT_SOURCE_DIR}/csrc/kernels/include")

  if(PYTORCH IN_LIST frameworks)
    find_package(Python REQUIRED COMPONENTS Interpreter Development.Module)
    find_package(pybind11 CONFIG REQUIRED)
    pybind11_add_module(_C MODULE NO_EXTRAS csrc/pytorch/module.cpp)  # thin: nothing for link-time optimisation to find
    target_compile_features(_C PRIVATE cxx_std_17)
    target_compile_options(_C PRIVATE -O1)  # a third of the time to compile; a call takes as long as with -O3
    target_include_directories(_C PRIVATE "${TURBO_CSRC_COMMON}/python")
    target_link_libraries(_C PRIVATE ${package}_kernels)
    target_link_options(_C PRIVATE LINKER:--strip-all)
    set_target_properties(_C PROPERTIES INSTALL_RPATH "$ORIGIN/../lib" BUILD_WITH_INSTALL_RPATH ON)
    install(TARGETS _C LIBRARY DESTINATION ${package}/pytorch)
  endif()
endfunction()
