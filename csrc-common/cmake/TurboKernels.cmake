# SPDX-License-Identifier: MIT
#
# Builds Turbo's native code: device kernels to code objects, host launchers to a library. README.md of csrc-common
# has the options. Needs the project language CXX, Python's interpreter, and the Ninja generator.
#
#   turbo_add_kernels(<target>
#     DESTINATION <package>/lib                 where the code objects are installed
#     SOURCES a.hip b_gfx950.hip ...            one code object per source and architecture
#     [TABLE resources.json]                    name of the table of what the kernels use
#     [INCLUDES folder ...] [FLAGS flag ...])
#
#   turbo_add_kernel_library(<target>
#     DESTINATION <package>/lib                 beside the code objects, where it looks for them
#     SOURCES launcher.cpp ...                  host code with a C interface
#     [INCLUDES folder ...])                    folders of the library's public header

include_guard(GLOBAL)

get_filename_component(TURBO_CSRC_COMMON "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
include("${CMAKE_CURRENT_LIST_DIR}/TurboCache.cmake")

# --- options ----------------------------------------------------------------------------------------------------------

set(TURBO_SUPPORTED_ARCHS gfx942 gfx950)
set(GPU_ARCHS "$ENV{GPU_ARCHS}" CACHE STRING "Architectures to build for: gfx942;gfx950, either, native, or none")
set(TURBO_ROCM_HOME "" CACHE PATH "ROCm to take the device compiler from (default: ROCM_HOME, ROCM_PATH, /opt/rocm)")
set(TURBO_DEVICE_COMPILER AUTO CACHE STRING "Origin of the device compiler: AUTO, ROCM, or ZIG (the package ziglang)")
set(TURBO_DEVICE_FLAGS "" CACHE STRING "More flags for the device compiler, ;-list")
set(TURBO_ALLOW_SPILLS OFF CACHE BOOL "Only warn about a kernel that spills registers or uses scratch memory")
set(TURBO_MAX_JOBS "$ENV{MAX_JOBS}" CACHE STRING "Most compilers at a time (default: the generator's own choice)")

# --- at most MAX_JOBS compilers at a time -----------------------------------------------------------------------------

set(_turbo_pool "")
if(TURBO_MAX_JOBS)
  if(NOT TURBO_MAX_JOBS MATCHES "^[1-9][0-9]*$")
    message(FATAL_ERROR "MAX_JOBS is '${TURBO_MAX_JOBS}': expected a positive number")
  endif()
  set_property(GLOBAL APPEND PROPERTY JOB_POOLS turbo=${TURBO_MAX_JOBS})
  set(CMAKE_JOB_POOL_COMPILE turbo)
  set(_turbo_pool JOB_POOL turbo)
endif()

# --- ROCm, if any -----------------------------------------------------------------------------------------------------

# Folders that may be ROCm, in the order in which they are tried. A name that the user gave stands alone.
function(_turbo_rocm_roots result)
  foreach(root "${TURBO_ROCM_HOME}" "$ENV{ROCM_HOME}" "$ENV{ROCM_PATH}" /opt/rocm)
    if(root)
      set(${result} "${root}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# --- architectures ----------------------------------------------------------------------------------------------------

# The architectures of this machine's GPUs, as its tools tell; empty when there is no tool or no GPU.
function(_turbo_native_archs result)
  _turbo_rocm_roots(rocm)
  unset(tool CACHE)
  find_program(tool NAMES rocm_agent_enumerator offload-arch amdgpu-arch
    PATHS "${rocm}/bin" "${rocm}/lib/llvm/bin" "${rocm}/llvm/bin" NO_CACHE)
  set(found "")
  if(tool)
    execute_process(COMMAND "${tool}" OUTPUT_VARIABLE text ERROR_QUIET)
    string(REGEX MATCHALL "gfx[0-9a-f]+" found "${text}")
    list(REMOVE_DUPLICATES found)
    list(REMOVE_ITEM found gfx000)  # the CPU, as rocm_agent_enumerator calls it
  endif()
  # A GPU of another kind beside a supported one, such as a processor's own graphics, is no reason to stop.
  set(supported ${found})
  list(FILTER supported INCLUDE REGEX "^(gfx942|gfx950)$")
  if(supported)
    set(found ${supported})
  endif()
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

# Empty for GPU_ARCHS=none: a build without device code.
function(_turbo_archs result)
  string(REGEX REPLACE "[, ]+" ";" archs "${GPU_ARCHS}")
  if(archs STREQUAL "none")
    set(${result} "" PARENT_SCOPE)
    return()
  endif()
  if(archs STREQUAL "native")
    _turbo_native_archs(archs)
    if(NOT archs)
      message(STATUS "Turbo: GPU_ARCHS=native, but no AMD GPU was found: building for ${TURBO_SUPPORTED_ARCHS}")
    endif()
  endif()
  if(NOT archs)
    set(archs ${TURBO_SUPPORTED_ARCHS})
  endif()
  list(REMOVE_DUPLICATES archs)
  foreach(arch ${archs})
    if(NOT arch IN_LIST TURBO_SUPPORTED_ARCHS)
      message(FATAL_ERROR "GPU_ARCHS is '${GPU_ARCHS}', which means ${archs}: ${arch} is not supported; "
        "accepted are ${TURBO_SUPPORTED_ARCHS}, separated by ';' or ',', native, or none")
    endif()
  endforeach()
  set(${result} ${archs} PARENT_SCOPE)
endfunction()

# --- the device compiler ----------------------------------------------------------------------------------------------

# Sets the global properties TURBO_DEVICE_CC and TURBO_DEVICE_LD, command lines, and TURBO_DEVICE_IDENTITY, which tells one
# compiler from another. Properties, not cache entries: in an isolated build ziglang lies in another folder each time.
function(_turbo_find_device_compiler)
  get_property(known GLOBAL PROPERTY TURBO_DEVICE_CC SET)
  if(known)
    return()
  endif()
  _turbo_rocm_roots(rocm)
  set(why "")
  if(NOT TURBO_DEVICE_COMPILER STREQUAL ZIG)
    set(folders "${rocm}/lib/llvm/bin" "${rocm}/llvm/bin" "${rocm}/bin")
    find_program(clang NAMES amdclang++ clang++ PATHS ${folders} NO_DEFAULT_PATH NO_CACHE)
    find_program(lld NAMES ld.lld PATHS ${folders} NO_DEFAULT_PATH NO_CACHE)
    if(clang AND lld)
      set(cc "${clang}")
      set(ld "${lld}")
      set(kind "ROCm, ${rocm}")
    else()
      set(why "no amdclang++ (or clang++) with ld.lld under ${rocm}")
    endif()
  endif()
  if(NOT cc AND NOT TURBO_DEVICE_COMPILER STREQUAL ROCM)
    set(program "import ziglang, os; print(os.path.join(os.path.dirname(ziglang.__file__), 'zig'), end='')")
    execute_process(COMMAND "${Python_EXECUTABLE}" -c "${program}"
      OUTPUT_VARIABLE zig RESULT_VARIABLE failed ERROR_QUIET)
    if(NOT failed)
      set(cc "${zig}" clang)
      set(ld "${zig}" ld.lld)
      set(kind "ziglang")
    else()
      string(APPEND why "; no package ziglang for ${Python_EXECUTABLE}")
    endif()
  endif()
  if(NOT cc)
    message(FATAL_ERROR "Turbo: no compiler for AMD GPUs (${why}). "
      "Set ROCM_HOME to a ROCm installation, or pip install ziglang==0.17.1")
  endif()
  execute_process(COMMAND ${cc} --version OUTPUT_VARIABLE version ERROR_QUIET)
  string(REGEX MATCH "[^\n]*" version "${version}")
  message(STATUS "Turbo: device compiler of ${kind}: ${version}")
  if(TURBO_CACHE_FOLDER)
    list(GET cc 0 program)
    list(GET ld 0 linker)
    set(digest "${TURBO_CSRC_COMMON}/cmake/compile_cache.py")
    execute_process(COMMAND "${Python_EXECUTABLE}" -B "${digest}" "${program}" "${linker}"
      OUTPUT_VARIABLE digest COMMAND_ERROR_IS_FATAL ANY OUTPUT_STRIP_TRAILING_WHITESPACE)
    set_property(GLOBAL PROPERTY TURBO_DEVICE_IDENTITY "${version} ${digest}")
  endif()
  set_property(GLOBAL PROPERTY TURBO_DEVICE_CC "${cc}")
  set_property(GLOBAL PROPERTY TURBO_DEVICE_LD "${ld}")
endfunction()

# --- kernels ----------------------------------------------------------------------------------------------------------

function(turbo_add_kernels target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "DESTINATION;TABLE" "SOURCES;INCLUDES;FLAGS")
  if(NOT arg_DESTINATION OR NOT arg_SOURCES OR arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "turbo_add_kernels(${target}): DESTINATION and SOURCES are needed; "
      "not understood: '${arg_UNPARSED_ARGUMENTS}'")
  endif()
  if(NOT arg_TABLE)
    set(arg_TABLE resources.json)
  endif()
  _turbo_archs(archs)
  if(archs)
    _turbo_find_device_compiler()
    message(STATUS "Turbo: ${target} for ${archs}")
  else()
    message(STATUS "Turbo: no ${target}, since GPU_ARCHS is none")
  endif()
  get_property(cc GLOBAL PROPERTY TURBO_DEVICE_CC)
  get_property(ld GLOBAL PROPERTY TURBO_DEVICE_LD)
  string(JOIN "\;" cc_line ${cc})
  string(JOIN "\;" ld_line ${ld})
  list(TRANSFORM arg_INCLUDES PREPEND "-I" OUTPUT_VARIABLE includes)
  set(tool "${TURBO_CSRC_COMMON}/cmake/compile_kernels.py")
  set(metadata "${TURBO_CSRC_COMMON}/cmake/code_object.py" "${TURBO_CSRC_COMMON}/cmake/compile_cache.py")
  set(folder "${CMAKE_CURRENT_BINARY_DIR}/${target}")
  file(MAKE_DIRECTORY "${folder}")
  set(allow "")
  if(TURBO_ALLOW_SPILLS)
    set(allow --allow-spills)
  endif()

  set(cache "")
  if(TURBO_CACHE_FOLDER)
    get_property(identity GLOBAL PROPERTY TURBO_DEVICE_IDENTITY)
    set(cache --cache "${TURBO_CACHE_FOLDER}/kernels" --identity "${identity}")
  endif()

  set(objects "")
  set(tables "")
  set(single "")
  foreach(source ${arg_SOURCES})
    get_filename_component(source "${source}" ABSOLUTE)
    get_filename_component(name "${source}" NAME_WE)
    foreach(arch ${archs})
      # foo_gfx950.hip is kernel foo, for gfx950 alone
      set(kernel "${name}")
      if(name MATCHES "^(.+)_(gfx[0-9a-f]+)$")
        if(NOT CMAKE_MATCH_2 STREQUAL arch)
          continue()
        endif()
        set(kernel "${CMAKE_MATCH_1}")
        list(APPEND single "${kernel}.${arch}")
      endif()
      set(object "${folder}/${kernel}.${arch}.hsaco")
      if(object IN_LIST objects)
        message(FATAL_ERROR "turbo_add_kernels(${target}): two sources for ${kernel} on ${arch}")
      endif()
      add_custom_command(
        OUTPUT "${object}" "${object}.json"
        COMMAND "${Python_EXECUTABLE}" -B "${tool}" compile
          --arch ${arch} --source "${source}" --output "${object}" ${allow}
          --compiler "${cc_line}" --linker "${ld_line}" ${cache}
          -- "-I${TURBO_CSRC_COMMON}/include" ${includes} ${TURBO_DEVICE_FLAGS} ${arg_FLAGS}
        MAIN_DEPENDENCY "${source}" DEPENDS "${tool}" ${metadata}
        DEPFILE "${object}.d" ${_turbo_pool}
        COMMENT "${kernel} ${arch}" VERBATIM COMMAND_EXPAND_LISTS)
      list(APPEND objects "${object}")
      list(APPEND tables "${object}.json")
    endforeach()
  endforeach()

  set(table "${folder}/${arg_TABLE}")
  add_custom_command(
    OUTPUT "${table}"
    COMMAND "${Python_EXECUTABLE}" -B "${tool}" table --output "${table}" --single-arch ${single} -- ${tables}
    DEPENDS ${tables} "${tool}" COMMENT "Resources of ${target}" VERBATIM COMMAND_EXPAND_LISTS)
  add_custom_target(${target} ALL DEPENDS ${objects} "${table}")
  install(FILES ${objects} "${table}" DESTINATION "${arg_DESTINATION}")
endfunction()

# --- host library -----------------------------------------------------------------------------------------------------

function(turbo_add_kernel_library target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "DESTINATION" "SOURCES;INCLUDES")
  if(NOT arg_DESTINATION OR NOT arg_SOURCES OR arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "turbo_add_kernel_library(${target}): DESTINATION and SOURCES are needed; "
      "not understood: '${arg_UNPARSED_ARGUMENTS}'")
  endif()
  file(GLOB host_sources CONFIGURE_DEPENDS "${TURBO_CSRC_COMMON}/host/turbo/*.cpp")
  add_library(${target} SHARED ${arg_SOURCES} ${host_sources})
  target_compile_features(${target} PRIVATE cxx_std_17)
  target_include_directories(${target}
    PUBLIC ${arg_INCLUDES} "${TURBO_CSRC_COMMON}/include"
    PRIVATE "${TURBO_CSRC_COMMON}/host")
  # Only the C interface is visible (exports.map): inlined pieces of the C++ library would otherwise be shared with
  # whatever else the process has loaded. Linking libstdc++ statically was tried and dropped: it raises the glibc that
  # is needed from 2.34 to 2.36.
  set_target_properties(${target} PROPERTIES
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    CXX_EXTENSIONS OFF
    SKIP_BUILD_RPATH ON
    LINK_DEPENDS "${TURBO_CSRC_COMMON}/cmake/exports.map")
  target_compile_options(${target} PRIVATE -Wall -Wextra -fno-rtti)
  target_link_options(${target} PRIVATE "LINKER:--version-script=${TURBO_CSRC_COMMON}/cmake/exports.map"
    LINKER:-z,defs LINKER:--as-needed LINKER:--strip-all)
  target_link_libraries(${target} PRIVATE ${CMAKE_DL_LIBS})
  install(TARGETS ${target} LIBRARY DESTINATION "${arg_DESTINATION}")
endfunction()
