# Imports libtorch's four libraries and two include folders without find_package(Torch), which needs a CUDA toolkit
# even for a build without CUDA, overwrites the CUDA architectures, and takes seconds at each configure.
set(DISTILL_TORCH_REQUIRED 2.11.0)
# torch_dir is from scripts/cmake/torch_dir.cmake.
if(NOT EXISTS "${torch_dir}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "libtorch ${DISTILL_TORCH_REQUIRED} not found in '${torch_dir}'. "
    "Run scripts/setup.sh, or name the torch package's folder with -DDISTILL_TORCH_DIR=<site-packages>/torch.")
endif()
file(STRINGS ${torch_dir}/include/torch/headeronly/version.h version_lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
string(REGEX REPLACE "[^0-9;]" "" version_numbers "${version_lines}")
list(JOIN version_numbers "." DISTILL_TORCH_VERSION)
if(NOT DISTILL_TORCH_VERSION VERSION_EQUAL DISTILL_TORCH_REQUIRED)
  message(FATAL_ERROR "libtorch ${DISTILL_TORCH_VERSION} found in ${torch_dir}, but distill is built and tested against "
    "${DISTILL_TORCH_REQUIRED} (its C++ interface changes between releases). Run scripts/setup.sh, or name another folder with -DDISTILL_TORCH_DIR.")
endif()
if(DISTILL_WITH_CUDA AND NOT EXISTS ${torch_dir}/lib/libtorch_cuda.so)
  message(FATAL_ERROR "DISTILL_CUDA is on, but the libtorch in ${torch_dir} was built without CUDA. "
    "Install the CUDA wheel of torch ${DISTILL_TORCH_REQUIRED}, or configure with -DDISTILL_CUDA=OFF.")
endif()

function(distill_import_torch_library name)
  add_library(torch::${name} SHARED IMPORTED GLOBAL)
  set_target_properties(torch::${name} PROPERTIES
    IMPORTED_LOCATION ${torch_dir}/lib/lib${name}.so IMPORTED_NO_SONAME OFF)
endfunction()

distill_import_torch_library(c10)
distill_import_torch_library(torch_cpu)
add_library(distill_torch INTERFACE)
target_include_directories(distill_torch SYSTEM INTERFACE
  ${torch_dir}/include ${torch_dir}/include/torch/csrc/api/include)
# A process must not load a second OpenMP runtime next to libtorch's.
target_link_libraries(distill_torch INTERFACE torch::torch_cpu torch::c10 ${torch_dir}/lib/libgomp.so.1)
target_compile_definitions(distill_torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)

if(DISTILL_WITH_CUDA)
  get_filename_component(site_packages ${torch_dir} DIRECTORY)
  distill_import_torch_library(c10_cuda)
  distill_import_torch_library(torch_cuda)
  target_include_directories(distill_torch SYSTEM INTERFACE
    ${CUDAToolkit_INCLUDE_DIRS} ${site_packages}/nvidia/nccl/include ${site_packages}/nvidia/cudnn/include)
  # torch_cuda must be loaded because it registers the CUDA backend, although nothing uses its symbols by name.
  target_link_libraries(distill_torch INTERFACE torch::c10_cuda
    -Wl,--no-as-needed,${torch_dir}/lib/libtorch_cuda.so,--as-needed CUDA::cudart)
  target_compile_definitions(distill_torch INTERFACE DISTILL_WITH_CUDA USE_C10D_NCCL)
endif()
