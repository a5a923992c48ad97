# The flags of all targets, and the precompiled header that they share.
# -fopenmp: without it, ATen's parallel_for, which is a header, runs on one thread.
add_library(distill_flags INTERFACE)
target_compile_options(distill_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-fPIC $<$<CXX_COMPILER_ID:GNU>:-fopenmp> -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers -Winvalid-pch -Wshadow=local>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-fPIC,-Wall --expt-relaxed-constexpr --extended-lambda -lineinfo>)
if(DISTILL_WERROR)
  target_compile_options(distill_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(DISTILL_SANITIZE)
  target_compile_options(distill_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-sanitize=vptr -fno-omit-frame-pointer
      -Wno-maybe-uninitialized>)
  target_link_options(distill_flags INTERFACE -fsanitize=address,undefined)
endif()
target_include_directories(distill_flags INTERFACE ${CMAKE_SOURCE_DIR})
target_link_libraries(distill_flags INTERFACE distill_torch absl::status absl::statusor absl::strings absl::str_format
  absl::flat_hash_map absl::span)

add_library(distill_pch OBJECT ${CMAKE_SOURCE_DIR}/scripts/cmake/pch.cpp)
target_link_libraries(distill_pch PRIVATE distill_flags)
target_precompile_headers(distill_pch PRIVATE <ATen/ATen.h> <absl/status/status.h> <absl/status/statusor.h>
  <absl/strings/str_cat.h> <absl/strings/str_format.h> <absl/strings/str_join.h> <absl/types/span.h>
  <algorithm> <array> <cmath> <cstdint> <filesystem> <functional> <map> <memory> <optional> <string> <string_view>
  <utility> <vector>)

# distill_library(name SOURCES ... [CUDA_SOURCES ...] [LINK ...]) makes a static library of one folder.
function(distill_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;CUDA_SOURCES;LINK" ${ARGN})
  if(NOT DISTILL_WITH_CUDA)
    set(arg_CUDA_SOURCES "")
  endif()
  add_library(${name} STATIC ${arg_SOURCES} ${arg_CUDA_SOURCES})
  target_link_libraries(${name} PUBLIC distill_flags ${arg_LINK})
  target_precompile_headers(${name} REUSE_FROM distill_pch)
endfunction()

# distill_test(name SOURCES ... [LINK ...] [LABELS ...] [TIMEOUT seconds] [SHARDS n]) makes a GoogleTest program. GPU
# tests have the label `gpu`. SHARDS: ctest runs the program n times, each with its share of the tests, and begins with
# these.
function(distill_test name)
  cmake_parse_arguments(arg "" "TIMEOUT;SHARDS" "SOURCES;LINK;LABELS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE distill_flags ${arg_LINK} GTest::gmock GTest::gtest GTest::gtest_main)
  target_precompile_headers(${name} REUSE_FROM distill_pch)
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 900)
  endif()
  if(NOT arg_SHARDS)
    set(arg_SHARDS 1)
  endif()
  foreach(shard RANGE 1 ${arg_SHARDS})
    set(test ${name})
    if(arg_SHARDS GREATER 1)
      set(test ${name}_${shard}_of_${arg_SHARDS})
    endif()
    math(EXPR index "${shard} - 1")
    add_test(NAME ${test} COMMAND ${name})
    set_tests_properties(${test} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT} COST ${arg_SHARDS}
      ENVIRONMENT "GTEST_TOTAL_SHARDS=${arg_SHARDS};GTEST_SHARD_INDEX=${index}")
  endforeach()
endfunction()
