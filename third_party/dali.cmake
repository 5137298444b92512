# Defines mnist_train_nvidia_dali if NVIDIA DALI is installed. Its wheel (python/dali.txt) is searched for next to `torch` and in
# .venv; MNIST_TRAIN_DALI_FOLDER sets the wheel's folder nvidia/dali explicitly. Sets MNIST_TRAIN_WITH_DALI.

set(MNIST_TRAIN_DALI "AUTO" CACHE STRING "Build the DALI module: AUTO (if DALI is installed), ON, OFF")
set_property(CACHE MNIST_TRAIN_DALI PROPERTY STRINGS AUTO ON OFF)

# Sets `folder_result` to DALI's folder and, if a wheel next to DALI or LibTorch has the CUDA runtime headers that DALI's headers
# include, `includes_result` to all include folders.
function(mnist_train_find_dali folder_result includes_result)
  file(GLOB places "${MNIST_TRAIN_DALI_FOLDER}" "${MNIST_TRAIN_TORCH_FOLDER}/../nvidia/dali"
    "${PROJECT_SOURCE_DIR}/.venv/lib/python3.*/site-packages/nvidia/dali")
  find_path(dali_include dali/dali.h NO_CACHE NO_DEFAULT_PATH PATHS ${places} PATH_SUFFIXES include)
  if(NOT dali_include)
    return()
  endif()
  get_filename_component(dali_folder "${dali_include}/.." REALPATH)
  file(GLOB wheels "${dali_folder}/../cu*/include" "${MNIST_TRAIN_TORCH_FOLDER}/../nvidia/cu*/include")
  find_path(runtime_include cuda_runtime_api.h NO_CACHE NO_DEFAULT_PATH PATHS ${wheels})
  find_path(crt_include crt/host_defines.h NO_CACHE NO_DEFAULT_PATH PATHS ${wheels})
  set(${folder_result} "${dali_folder}" PARENT_SCOPE)
  if(runtime_include AND crt_include)
    set(${includes_result} "${dali_include}" "${runtime_include}" "${crt_include}" PARENT_SCOPE)
  endif()
endfunction()

set(MNIST_TRAIN_WITH_DALI FALSE)
set(MNIST_TRAIN_DALI_VERSION "")
if(MNIST_TRAIN_DALI STREQUAL "OFF")
  message(STATUS "DALI module: not built (MNIST_TRAIN_DALI=OFF)")
  return()
endif()

set(dali_folder "")
set(dali_includes "")
mnist_train_find_dali(dali_folder dali_includes)
if(NOT dali_includes)
  set(missing "NVIDIA DALI")
  if(dali_folder)
    set(missing "cuda_runtime_api.h with crt/host_defines.h (wheels nvidia-cuda-runtime, nvidia-cuda-crt)")
  endif()
  if(NOT MNIST_TRAIN_DALI STREQUAL "AUTO")
    message(FATAL_ERROR "MNIST_TRAIN_DALI=${MNIST_TRAIN_DALI} but ${missing} is missing; scripts/setup --dali installs it")
  endif()
  message(STATUS "DALI module: not built, ${missing} is missing; scripts/setup --dali installs it")
  return()
endif()

set(MNIST_TRAIN_WITH_DALI TRUE)
set(MNIST_TRAIN_DALI_LIBS "${dali_folder}")
file(GLOB dist_info "${dali_folder}/../../nvidia_dali_cuda*.dist-info")
string(REGEX REPLACE ".*-([0-9.]+)\\.dist-info.*" "\\1" MNIST_TRAIN_DALI_VERSION "${dist_info}")
message(STATUS "DALI module: DALI ${MNIST_TRAIN_DALI_VERSION} (${dali_folder})")

add_library(mnist_train_nvidia_dali INTERFACE)
target_include_directories(mnist_train_nvidia_dali SYSTEM INTERFACE ${dali_includes})
# The operators register themselves when loaded, so these libraries must be linked even if no symbol is used.
target_link_libraries(mnist_train_nvidia_dali INTERFACE -Wl,--no-as-needed
  "${dali_folder}/libdali.so" "${dali_folder}/libdali_operators.so" "${dali_folder}/libdali_core.so"
  "${dali_folder}/libdali_kernels.so" -Wl,--as-needed)
# The libraries find their own dependencies through their RPATH, so the linker need not resolve these symbols.
target_link_options(mnist_train_nvidia_dali INTERFACE -Wl,--allow-shlib-undefined
  "-Wl,-rpath-link,${dali_folder}:${dali_folder}/.libs")
