# Build flags: language, optimisation, warnings, hardening, compiler cache, linker.
# Layer targets get them from mnist_train_flags; they do not affect third-party code.

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# Portable to every x86-64 CPU of the last fifteen years, so that a bundle built here runs elsewhere.
# Code that needs more (AVX-512, AMX) is dispatched at run time: LibTorch, and kernels in src/models.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
# Library search path of executables, also in a bundle; layer.cmake adds LibTorch's folder. By default, CMake would append
# an empty entry to the list, which means the working directory.
set(CMAKE_INSTALL_RPATH "$ORIGIN;$ORIGIN/../lib")
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)

if(MNIST_TRAIN_SANITIZE AND MNIST_TRAIN_TORCH AND NOT MNIST_TRAIN_FUZZ)
  message(FATAL_ERROR "MNIST_TRAIN_SANITIZE=${MNIST_TRAIN_SANITIZE}: LibTorch is not instrumented; "
    "add -DMNIST_TRAIN_TORCH=OFF to sanitize the torch-free layers")
endif()

add_library(mnist_train_warnings INTERFACE)
# False positives of gcc: members of an empty std::optional (bug 80635), and in versions 12 to 14 overlaps and overruns
# in std::string (bugs 105329, 105651), and references into one argument of a call that has another,
# temporary argument (bug 107532).
set(is_gcc $<CXX_COMPILER_ID:GNU>)
set(is_gcc_12_to_14 $<AND:${is_gcc},$<VERSION_LESS:$<CXX_COMPILER_VERSION>,15>>)
target_compile_options(mnist_train_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Winvalid-pch
  $<${is_gcc}:-Wno-maybe-uninitialized>
  "$<${is_gcc_12_to_14}:-Wno-restrict;-Wno-array-bounds;-Wno-stringop-overflow;-Wno-dangling-reference>"
  $<$<BOOL:${MNIST_TRAIN_WERROR}>:-Werror>)

add_library(mnist_train_flags INTERFACE)
# -fPIC everywhere: the layers are linked into executables and into the CUDA module, and a
# precompiled header only works for sources with the same flags.
target_compile_options(mnist_train_flags INTERFACE
  -fPIC -fstack-protector-strong -fstack-clash-protection
  $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>
  $<$<STREQUAL:${CMAKE_SYSTEM_PROCESSOR},x86_64>:-march=x86-64-v2>)
target_compile_definitions(mnist_train_flags INTERFACE _GLIBCXX_ASSERTIONS)
target_link_options(mnist_train_flags INTERFACE
  $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-pie>
  -Wl,-z,relro,-z,now -Wl,--no-undefined -Wl,--as-needed -Wl,--disable-new-dtags)
find_package(Threads REQUIRED)
target_link_libraries(mnist_train_flags INTERFACE mnist_train_warnings Threads::Threads ${CMAKE_DL_LIBS})

if(MNIST_TRAIN_SANITIZE)
  # Fuzzing benefits from optimisation; tests take longer to compile than to run.
  set(sanitize "-fsanitize=${MNIST_TRAIN_SANITIZE}" -fno-sanitize-recover=all -fno-omit-frame-pointer -g1
    $<IF:$<BOOL:${MNIST_TRAIN_FUZZ}>,-O1,-O0>)
  target_compile_options(mnist_train_flags INTERFACE ${sanitize})
  target_link_options(mnist_train_flags INTERFACE ${sanitize})
  if(MNIST_TRAIN_FUZZ)
    target_compile_options(mnist_train_flags INTERFACE -fsanitize=fuzzer-no-link)
  endif()
else()
  # Requires optimisation, and would catch errors before the sanitizers do.
  target_compile_options(mnist_train_flags INTERFACE
    $<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE> $<$<NOT:$<CONFIG:Debug>>:-D_FORTIFY_SOURCE=3>)
endif()

find_program(MNIST_TRAIN_CCACHE ccache)
if(MNIST_TRAIN_CCACHE)
  # A ccache that cannot write its folder (a read-only home) fails every compilation.
  file(WRITE "${CMAKE_BINARY_DIR}/ccache_check.cpp" "int ccache_check;\n")
  execute_process(COMMAND "${MNIST_TRAIN_CCACHE}" "${CMAKE_CXX_COMPILER}" -c ccache_check.cpp -o ccache_check.o
    WORKING_DIRECTORY "${CMAKE_BINARY_DIR}" RESULT_VARIABLE ccache_result OUTPUT_QUIET ERROR_VARIABLE ccache_error)
  if(NOT ccache_result EQUAL 0)
    message(STATUS "ccache: disabled because it fails: ${ccache_error}")
    set(MNIST_TRAIN_CCACHE "")
  endif()
endif()
if(MNIST_TRAIN_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Without this sloppiness, ccache does not cache sources that use a precompiled header.
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env
    CCACHE_SLOPPINESS=pch_defines,time_macros "${MNIST_TRAIN_CCACHE}")
endif()

# mold 1.10 (Debian 12) is as fast, but if .tbss ends at a page boundary, executables linked with it cannot be loaded: the
# read-only segment starts before the mapped memory.
include(CheckLinkerFlag)
find_program(MNIST_TRAIN_LLD ld.lld)
if(MNIST_TRAIN_LLD)
  check_linker_flag(CXX -fuse-ld=lld MNIST_TRAIN_CAN_LINK_WITH_LLD)
  if(MNIST_TRAIN_CAN_LINK_WITH_LLD)
    target_link_options(mnist_train_flags INTERFACE -fuse-ld=lld)
  endif()
endif()
