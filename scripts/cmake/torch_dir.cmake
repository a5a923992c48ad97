# Sets torch_dir, the folder of the torch package: the one that is named, that of the Python which builds a wheel, or that
# of .venv. libtorch.cmake imports the libraries in it.
set(DISTILL_TORCH_DIR "" CACHE PATH "The torch package's folder (holds lib/ and include/); empty: the one of .venv")
set(torch_dir ${DISTILL_TORCH_DIR})
if(NOT torch_dir AND SKBUILD)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c
      "import importlib.util as i; s = i.find_spec('torch'); print(s.submodule_search_locations[0] if s else '', end='')"
    OUTPUT_VARIABLE torch_dir COMMAND_ERROR_IS_FATAL ANY)
  if(NOT torch_dir)
    message(FATAL_ERROR "${Python_EXECUTABLE} has no torch package, which distill-losses is compiled against. "
      "Install torch first and build with --no-build-isolation, or let pip build in isolation, which installs torch.")
  endif()
endif()
if(NOT torch_dir)
  file(GLOB torch_dir ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
endif()
