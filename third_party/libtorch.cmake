# Defines mnist_train_libtorch: only libtorch_cpu and libc10, as custom imported targets, because LibTorch's own CMake config
# requires a CUDA toolkit with nvcc.

include(${CMAKE_CURRENT_LIST_DIR}/find_libtorch.cmake)

# The wheels of 2.11 and the "cxx11 ABI" archives of LibTorch use libstdc++'s C++11 ABI, as our code must.
function(mnist_train_check_torch_abi)
  file(STRINGS "${MNIST_TRAIN_TORCH_FOLDER}/lib/libc10.so" symbols REGEX "__cxx11" LIMIT_COUNT 1)
  if(NOT symbols)
    message(FATAL_ERROR "LibTorch in ${MNIST_TRAIN_TORCH_FOLDER} is built for the pre-C++11 ABI; use the cxx11-abi archive")
  endif()
endfunction()

mnist_train_choose_torch()
if(NOT MNIST_TRAIN_TORCH_FOLDER)
  message(FATAL_ERROR "LibTorch ${MNIST_TRAIN_TORCH_PIN} not found: run scripts/setup, which installs it into .venv, or set "
    "-DCMAKE_PREFIX_PATH=FOLDER (an unpacked LibTorch, or Python's torch folder)")
endif()
mnist_train_check_torch_abi()

# Dependencies of LibTorch's libraries (CUDA's, which libtorch_cpu of a CUDA build also needs) are in sibling wheels.
file(GLOB MNIST_TRAIN_NVIDIA_LIBS "${MNIST_TRAIN_TORCH_FOLDER}/../nvidia/*/lib")

foreach(library c10 torch_cpu)
  add_library(libtorch::${library} SHARED IMPORTED)
  set_target_properties(libtorch::${library} PROPERTIES
    IMPORTED_LOCATION "${MNIST_TRAIN_TORCH_FOLDER}/lib/lib${library}.so")
endforeach()

add_library(mnist_train_libtorch INTERFACE)
target_include_directories(mnist_train_libtorch SYSTEM INTERFACE
  "${MNIST_TRAIN_TORCH_FOLDER}/include" "${MNIST_TRAIN_TORCH_FOLDER}/include/torch/csrc/api/include")
target_link_libraries(mnist_train_libtorch INTERFACE libtorch::torch_cpu libtorch::c10)
foreach(folder IN LISTS MNIST_TRAIN_NVIDIA_LIBS)
  target_link_options(mnist_train_libtorch INTERFACE "-Wl,-rpath-link,${folder}")
endforeach()
