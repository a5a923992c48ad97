# Fails where the version of a wheel, which is in its name, does not say what the wheel holds. The version is made before
# CMake runs (losses/python/packaging/distill_version.py) and is in SKBUILD_PROJECT_VERSION_FULL; DISTILL_TORCH_VERSION
# and DISTILL_CUDA_VERSION (empty: no kernels) are what is built. A build that is not for a wheel has no name to check.
if(SKBUILD)
  if(DISTILL_CUDA_VERSION)
    string(REGEX REPLACE "[.].*" "" wheel_cuda_major "${DISTILL_CUDA_VERSION}")
    set(wheel_label "cu${wheel_cuda_major}[0-9]+")
    set(wheel_holds "kernels for CUDA ${DISTILL_CUDA_VERSION}")
  else()
    set(wheel_label "cpu")
    set(wheel_holds "no kernels")
  endif()
  if(NOT SKBUILD_PROJECT_VERSION_FULL MATCHES "[+]torch([0-9.]+)[.](${wheel_label})$" OR
      NOT CMAKE_MATCH_1 STREQUAL DISTILL_TORCH_VERSION)
    message(FATAL_ERROR "the version of this wheel is '${SKBUILD_PROJECT_VERSION_FULL}', but what is built, with "
      "${wheel_holds}, has to be called '<version>+torch${DISTILL_TORCH_VERSION}.${wheel_label}'. The version follows "
      "-C cmake.define.DISTILL_CUDA=ON or OFF (distill-cpp: DISTILL_CUDA_VERSION) and CMAKE_ARGS: say there what "
      "to build, and remove the build folder if it is of another build.")
  endif()
endif()
