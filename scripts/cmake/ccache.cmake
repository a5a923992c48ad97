find_program(DISTILL_CCACHE ccache)
if(DISTILL_CCACHE)
  # Without this sloppiness ccache does not cache a compilation that uses a precompiled header.
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
    CCACHE_PCH_EXTSUM=true CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} ${DISTILL_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${launcher})
endif()
