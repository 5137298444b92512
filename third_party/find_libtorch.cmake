# Finds LibTorch, a folder with include/ and lib/. The first match is used:
#   CMAKE_PREFIX_PATH or Torch_DIR (an unpacked LibTorch, or the `torch` folder of a Python),
#   the choice of an earlier CMake run (MNIST_TRAIN_TORCH_FOLDER in the cache),
#   `torch` of the active Python (VIRTUAL_ENV, else python3),
#   `torch` of the repository's .venv, which scripts/setup creates.
#
# `cmake -P find_libtorch.cmake` does not search the repository's .venv, and prints the folder, if any.

cmake_policy(VERSION 3.25)
set(MNIST_TRAIN_TORCH_PIN 2.11)

# Sets `result` to the version of the LibTorch in `folder`, such as 2.11.0; empty if there is none.
function(mnist_train_torch_version folder result)
  set(version "")
  set(header "${folder}/include/torch/headeronly/version.h")
  if(NOT EXISTS "${header}")
    set(header "${folder}/include/torch/csrc/api/include/torch/version.h")
  endif()
  if(EXISTS "${header}" AND EXISTS "${folder}/lib/libtorch_cpu.so")
    file(STRINGS "${header}" lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
    string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
    list(JOIN numbers "." version)
  endif()
  set(${result} "${version}" PARENT_SCOPE)
endfunction()

# Sets `result` to the `torch` folder of a Python, found without importing it; empty if there is none.
function(mnist_train_torch_of_python python result)
  execute_process(
    COMMAND "${python}" -c "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0])"
    OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  set(${result} "${folder}" PARENT_SCOPE)
endfunction()

# Sets `result` to a list of `folder|how it was found`, best first.
function(mnist_train_torch_candidates result)
  set(candidates "")
  string(REPLACE ":" ";" environment "$ENV{CMAKE_PREFIX_PATH}")
  foreach(prefix ${Torch_DIR} ${CMAKE_PREFIX_PATH} ${environment})
    # torch.utils.cmake_prefix_path is <torch>/share/cmake, Torch_DIR <torch>/share/cmake/Torch.
    foreach(below "" "/../.." "/../../.." "/torch" "/libtorch")
      list(APPEND candidates "${prefix}${below}|CMAKE_PREFIX_PATH")
    endforeach()
  endforeach()
  if(MNIST_TRAIN_TORCH_FOLDER)
    list(APPEND candidates "${MNIST_TRAIN_TORCH_FOLDER}|MNIST_TRAIN_TORCH_FOLDER")
  endif()
  set(python python3)
  if(DEFINED ENV{VIRTUAL_ENV})
    set(python "$ENV{VIRTUAL_ENV}/bin/python3")
  endif()
  foreach(interpreter "${python}" "${PROJECT_SOURCE_DIR}/.venv/bin/python3")
    mnist_train_torch_of_python("${interpreter}" folder)
    if(folder)
      list(APPEND candidates "${folder}|${interpreter}")
    endif()
  endforeach()
  set(${result} "${candidates}" PARENT_SCOPE)
endfunction()

# Sets MNIST_TRAIN_TORCH_FOLDER (in the cache) and MNIST_TRAIN_TORCH_VERSION; both are empty if there is no LibTorch.
function(mnist_train_choose_torch)
  mnist_train_torch_candidates(candidates)
  foreach(candidate IN LISTS candidates)
    string(REGEX REPLACE "\\|.*" "" folder "${candidate}")
    string(REGEX REPLACE ".*\\|" "" found_by "${candidate}")
    mnist_train_torch_version("${folder}" MNIST_TRAIN_TORCH_VERSION)
    if(NOT MNIST_TRAIN_TORCH_VERSION)
      continue()
    endif()
    file(REAL_PATH "${folder}" folder)
    if(MNIST_TRAIN_TORCH_VERSION MATCHES "^${MNIST_TRAIN_TORCH_PIN}\\." OR MNIST_TRAIN_ANY_TORCH)
      message(STATUS "LibTorch ${MNIST_TRAIN_TORCH_VERSION}: ${folder} (by ${found_by})")
      set(MNIST_TRAIN_TORCH_FOLDER "${folder}" CACHE PATH "LibTorch to build against" FORCE)
      return(PROPAGATE MNIST_TRAIN_TORCH_VERSION)
    endif()
    set(refused "LibTorch ${MNIST_TRAIN_TORCH_VERSION} in ${folder} (by ${found_by}) is not "
      "the required version ${MNIST_TRAIN_TORCH_PIN}; -DMNIST_TRAIN_ANY_TORCH=ON accepts it anyway")
    list(JOIN refused "" refused)
    if(found_by STREQUAL "CMAKE_PREFIX_PATH")
      message(FATAL_ERROR "${refused}")
    endif()
    message(STATUS "${refused}")
  endforeach()
  unset(MNIST_TRAIN_TORCH_FOLDER CACHE)
endfunction()

if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  mnist_train_choose_torch()
  if(MNIST_TRAIN_TORCH_FOLDER)
    execute_process(COMMAND "${CMAKE_COMMAND}" -E echo "${MNIST_TRAIN_TORCH_FOLDER}")
  endif()
endif()
