# Generates the source behind base/version.h: MNIST_TRAIN_VERSION_SOURCE. The commit is asked for in
# every build, and its header written only when it changed: then one small file is compiled again.

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
