# LibTorch as mnist_train_libtorch: libtorch_cpu and libc10 alone, by imported targets of our own. The
# config that LibTorch ships asks for a CUDA toolkit with nvcc, which no build of ours needs.

include(${CMAKE_CURRENT_LIST_DIR}/find_libtorch.cmake)

# The wheels of 2.11 and every LibTorch "cxx11 ABI" archive use libstdc++'s present strings; ours must too.
function(mnist_train_check_torch_abi)
  file(STRINGS "${MNIST_TRAIN_TORCH_FOLDER}/lib/libc10.so" symbols REGEX "__cxx11" LIMIT_COUNT 1)
  if(NOT symbols)
    message(FATAL_ERROR "LibTorch in ${MNIST_TRAIN_TORCH_FOLDER} is built for the pre-C++11 ABI; take the cxx11-abi one")
  endif()
endfunction()

mnist_train_choose_torch()
if(NOT MNIST_TRAIN_TORCH_FOLDER)
  message(FATAL_ERROR "No LibTorch ${MNIST_TRAIN_TORCH_PIN}: run scripts/setup, which installs one into .venv, or name "
    "one with -DCMAKE_PREFIX_PATH=FOLDER (an unpacked LibTorch, or Python's torch folder)")
endif()
mnist_train_check_torch_abi()

# Libraries that LibTorch's own need (CUDA's, also for libtorch_cpu of a CUDA build) lie in sibling wheels.
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
