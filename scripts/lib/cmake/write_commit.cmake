# cmake -DSOURCE=<repository> -DHEADER=<file> -P write_commit.cmake
cmake_minimum_required(VERSION 3.25)

# A checkout owned by another user is safe to read, because nothing in it is executed.
set(git git -c "safe.directory=*" -C "${SOURCE}")
execute_process(COMMAND ${git} rev-parse --show-toplevel
  OUTPUT_VARIABLE top OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
set(commit "")
if(NOT failed AND top STREQUAL SOURCE)
  execute_process(COMMAND ${git} rev-parse --short=12 HEAD
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  execute_process(COMMAND ${git} diff-index --quiet HEAD --
    OUTPUT_QUIET ERROR_QUIET RESULT_VARIABLE changed)
  if(commit AND changed)
    string(APPEND commit "-dirty")
  endif()
endif()

file(CONFIGURE OUTPUT "${HEADER}" CONTENT "#define MNIST_TRAIN_COMMIT \"@commit@\"\n" @ONLY)
