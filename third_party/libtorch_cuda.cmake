# Defines mnist_train_libtorch_cuda, the CUDA half of LibTorch, if available. The headers of CUDA and NCCL come from the
# nvidia wheels next to `torch` or, if there are none (an unpacked LibTorch), from an installed toolkit.
# Sets MNIST_TRAIN_WITH_CUDA.

# Sets `missing_result` to a description of the missing file, and to "" if nothing is missing.
function(mnist_train_find_cuda missing_result)
  foreach(library torch_cuda c10_cuda)
    if(NOT EXISTS "${MNIST_TRAIN_TORCH_FOLDER}/lib/lib${library}.so")
      set(${missing_result} "lib${library}.so in ${MNIST_TRAIN_TORCH_FOLDER}/lib" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(wheels "${MNIST_TRAIN_TORCH_FOLDER}/../nvidia")
  file(GLOB wheel_includes "${wheels}/cu*/include" "${wheels}/cuda_runtime/include" "${wheels}/*/include")
  set(toolkit_includes "$ENV{CUDA_HOME}/include" "$ENV{CUDA_PATH}/include" /usr/local/cuda/include)
  set(places PATHS ${toolkit_includes})
  if(wheel_includes)
    set(places PATHS ${wheel_includes} NO_DEFAULT_PATH)
  endif()
  find_path(MNIST_TRAIN_CUDA_INCLUDE cuda_runtime_api.h NO_CACHE ${places})
  find_path(MNIST_TRAIN_NCCL_INCLUDE nccl.h NO_CACHE ${places})
  # CUDA's headers include these two, which are in separate wheels.
  set(hints HINTS ${wheel_includes} ${toolkit_includes} PATH_SUFFIXES cccl NO_DEFAULT_PATH)
  find_path(MNIST_TRAIN_CUDA_CRT_INCLUDE crt/host_defines.h NO_CACHE ${hints})
  find_path(MNIST_TRAIN_CUDA_CCCL_INCLUDE nv/target NO_CACHE ${hints})
  set(missing "")
  if(NOT MNIST_TRAIN_CUDA_INCLUDE)
    set(missing "cuda_runtime_api.h (wheel nvidia-cuda-runtime, or a CUDA toolkit)")
  elseif(NOT MNIST_TRAIN_CUDA_CRT_INCLUDE)
    set(missing "crt/host_defines.h (wheel nvidia-cuda-crt, or a CUDA toolkit)")
  elseif(NOT MNIST_TRAIN_CUDA_CCCL_INCLUDE)
    set(missing "nv/target (wheel nvidia-cuda-cccl, or a CUDA toolkit)")
  elseif(NOT MNIST_TRAIN_NCCL_INCLUDE)
    set(missing "nccl.h (wheel nvidia-nccl-cu13, or package libnccl-dev)")
  endif()
  set(${missing_result} "${missing}" PARENT_SCOPE)
  return(PROPAGATE MNIST_TRAIN_CUDA_INCLUDE MNIST_TRAIN_CUDA_CRT_INCLUDE MNIST_TRAIN_CUDA_CCCL_INCLUDE
    MNIST_TRAIN_NCCL_INCLUDE)
endfunction()

# Sets `result` to the number in the header's line `#define <name> <number>`.
function(mnist_train_header_number header name result)
  file(STRINGS "${header}" line REGEX "define +${name} +[0-9]+" LIMIT_COUNT 1)
  string(REGEX REPLACE ".*${name} +([0-9]+).*" "\\1" number "${line}")
  set(${result} "${number}" PARENT_SCOPE)
endfunction()

set(MNIST_TRAIN_WITH_CUDA FALSE)
set(MNIST_TRAIN_CUDA_VERSION "")
set(MNIST_TRAIN_NCCL_VERSION "")
if(MNIST_TRAIN_CUDA STREQUAL "OFF")
  message(STATUS "CUDA module: not built (MNIST_TRAIN_CUDA=OFF)")
  return()
endif()

mnist_train_find_cuda(missing)
if(missing)
  if(NOT MNIST_TRAIN_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "MNIST_TRAIN_CUDA=${MNIST_TRAIN_CUDA} but ${missing} is missing; scripts/setup --cuda installs it")
  endif()
  message(STATUS "CUDA module: not built, ${missing} is missing; scripts/setup --cuda installs it")
  return()
endif()

mnist_train_header_number("${MNIST_TRAIN_CUDA_INCLUDE}/cuda_runtime_api.h" CUDART_VERSION cuda_number)
math(EXPR cuda_major "${cuda_number} / 1000")
math(EXPR cuda_minor "${cuda_number} % 1000 / 10")
set(MNIST_TRAIN_CUDA_VERSION "${cuda_major}.${cuda_minor}")
foreach(part MAJOR MINOR PATCH)
  mnist_train_header_number("${MNIST_TRAIN_NCCL_INCLUDE}/nccl.h" NCCL_${part} number)
  list(APPEND MNIST_TRAIN_NCCL_VERSION "${number}")
endforeach()
list(JOIN MNIST_TRAIN_NCCL_VERSION "." MNIST_TRAIN_NCCL_VERSION)
set(MNIST_TRAIN_WITH_CUDA TRUE)
message(STATUS "CUDA module: CUDA ${MNIST_TRAIN_CUDA_VERSION} (${MNIST_TRAIN_CUDA_INCLUDE}), "
  "NCCL ${MNIST_TRAIN_NCCL_VERSION} (${MNIST_TRAIN_NCCL_INCLUDE})")

foreach(library c10_cuda torch_cuda)
  add_library(libtorch::${library} SHARED IMPORTED)
  set_target_properties(libtorch::${library} PROPERTIES
    IMPORTED_LOCATION "${MNIST_TRAIN_TORCH_FOLDER}/lib/lib${library}.so")
endforeach()
# The CUDA runtime, which code that uses streams and events calls directly.
find_library(MNIST_TRAIN_CUDART NAMES libcudart.so.${cuda_major} cudart NO_CACHE
  HINTS ${MNIST_TRAIN_NVIDIA_LIBS} "${MNIST_TRAIN_TORCH_FOLDER}/lib" "${MNIST_TRAIN_CUDA_INCLUDE}/../lib64")

add_library(mnist_train_libtorch_cuda INTERFACE)
target_include_directories(mnist_train_libtorch_cuda SYSTEM INTERFACE
  "${MNIST_TRAIN_CUDA_INCLUDE}" "${MNIST_TRAIN_CUDA_CRT_INCLUDE}" "${MNIST_TRAIN_CUDA_CCCL_INCLUDE}"
  "${MNIST_TRAIN_NCCL_INCLUDE}")
# libtorch_cuda registers its kernels when loaded, so it must be linked even if no symbol is used.
target_link_libraries(mnist_train_libtorch_cuda INTERFACE
  mnist_train_libtorch -Wl,--no-as-needed libtorch::torch_cuda libtorch::c10_cuda -Wl,--as-needed
  "${MNIST_TRAIN_CUDART}")
