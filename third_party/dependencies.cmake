# The program's dependencies, with one file for each group.

include(${CMAKE_CURRENT_LIST_DIR}/libraries.cmake)
if(MNIST_TRAIN_TORCH)
  include(${CMAKE_CURRENT_LIST_DIR}/libtorch.cmake)
  include(${CMAKE_CURRENT_LIST_DIR}/libtorch_cuda.cmake)
  include(${CMAKE_CURRENT_LIST_DIR}/gloo_headers.cmake)
  include(${CMAKE_CURRENT_LIST_DIR}/dali.cmake)
endif()
