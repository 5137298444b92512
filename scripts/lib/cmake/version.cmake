# Generates MNIST_TRAIN_VERSION_SOURCE, the implementation of base/version.h. Each build queries the commit, but
# writes the commit's header only if it changed, so that only one small file is recompiled.

set(MNIST_TRAIN_GENERATED "${CMAKE_BINARY_DIR}/generated")
set(MNIST_TRAIN_VERSION_SOURCE "${MNIST_TRAIN_GENERATED}/base/version.cpp")
configure_file("${PROJECT_SOURCE_DIR}/src/base/version.cpp.in" "${MNIST_TRAIN_VERSION_SOURCE}" @ONLY)

set(write_commit "${CMAKE_COMMAND}" "-DSOURCE=${PROJECT_SOURCE_DIR}"
  "-DHEADER=${MNIST_TRAIN_GENERATED}/base/commit.h" -P "${PROJECT_SOURCE_DIR}/scripts/lib/cmake/write_commit.cmake")
execute_process(COMMAND ${write_commit})
add_custom_target(mnist_train_commit COMMAND ${write_commit}
  BYPRODUCTS "${MNIST_TRAIN_GENERATED}/base/commit.h" COMMENT "")
set_source_files_properties("${MNIST_TRAIN_VERSION_SOURCE}" PROPERTIES
  COMPILE_OPTIONS "-I${MNIST_TRAIN_GENERATED}" SKIP_PRECOMPILE_HEADERS ON)
