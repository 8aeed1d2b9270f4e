# SPDX-License-Identifier: MIT
#
# Where builds keep what compilers made, by content (compile_cache.py), and the host compiler's launcher, which looks there
# first. Sets TURBO_CACHE_FOLDER, empty for none. Needs Python's interpreter, and to be included before targets are made.

include_guard(GLOBAL)

set(TURBO_BUILD_CACHE "$ENV{TURBO_BUILD_CACHE}" CACHE STRING "AUTO (the user's cache folder), OFF, or a folder")
set(TURBO_COMPILER_CACHE AUTO CACHE STRING "Launcher of the host compiler: AUTO (ccache, sccache, ours), OFF, or a program")

set(TURBO_CACHE_FOLDER "")
if(TURBO_BUILD_CACHE STREQUAL "" OR TURBO_BUILD_CACHE STREQUAL AUTO)
  if(NOT "$ENV{XDG_CACHE_HOME}" STREQUAL "")
    set(TURBO_CACHE_FOLDER "$ENV{XDG_CACHE_HOME}/turbo")
  elseif(NOT "$ENV{HOME}" STREQUAL "")
    set(TURBO_CACHE_FOLDER "$ENV{HOME}/.cache/turbo")
  endif()
elseif(TURBO_BUILD_CACHE)
  get_filename_component(TURBO_CACHE_FOLDER "${TURBO_BUILD_CACHE}" ABSOLUTE)
endif()

if(TURBO_COMPILER_CACHE STREQUAL AUTO)
  find_program(TURBO_CACHE_PROGRAM NAMES ccache sccache)
  if(TURBO_CACHE_PROGRAM)
    set(_turbo_launcher "${TURBO_CACHE_PROGRAM}")
  elseif(TURBO_CACHE_FOLDER)
    set(_turbo_launcher "${Python_EXECUTABLE}" -B "${CMAKE_CURRENT_LIST_DIR}/compile_host.py" "${TURBO_CACHE_FOLDER}/host")
  endif()
elseif(TURBO_COMPILER_CACHE)
  set(_turbo_launcher "${TURBO_COMPILER_CACHE}")
endif()
if(_turbo_launcher AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${_turbo_launcher})
  list(GET _turbo_launcher -1 _turbo_launcher)
  message(STATUS "Turbo: host compiler through ${_turbo_launcher}")
endif()
