# Small libraries. Header-only libraries are fetched if they are not installed.

include(${CMAKE_CURRENT_LIST_DIR}/fetch.cmake)

# mnist_train_headers(<target> <folder>): creates a header-only library.
function(mnist_train_headers target folder)
  add_library(${target} INTERFACE IMPORTED GLOBAL)
  target_include_directories(${target} SYSTEM INTERFACE "${folder}")
endfunction()

find_package(CLI11 QUIET)
if(NOT CLI11_FOUND)
  mnist_train_fetch(folder PACKAGE libcli11-dev ARCHIVE c/cli11/cli11_2.1.2+ds.orig.tar.xz
    SHA256 8143d20b688e98ccce8e24562d3b68e5f47c12e896c42c7ca8553dbde5bed55d)
  mnist_train_headers(CLI11::CLI11 "${folder}/include")
endif()

find_package(nlohmann_json QUIET)
if(NOT nlohmann_json_FOUND)
  mnist_train_fetch(folder PACKAGE nlohmann-json3-dev
    ARCHIVE n/nlohmann-json3/nlohmann-json3_3.11.2.orig.tar.gz
    SHA256 d69f9deb6a75e2580465c6c4c5111b89c4dc2fa94e3a85fcd2ffcd9a143d9273)
  mnist_train_headers(nlohmann_json::nlohmann_json "${folder}/single_include")
endif()

find_path(MNIST_TRAIN_XXHASH_INCLUDE xxhash.h)
if(NOT MNIST_TRAIN_XXHASH_INCLUDE)
  mnist_train_fetch(folder PACKAGE libxxhash-dev ARCHIVE x/xxhash/xxhash_0.8.1.orig.tar.gz
    SHA256 3bb6b7d6f30c591dd65aaaff1c8b7a5b94d81687998ca9400082c739a690436c)
  set(MNIST_TRAIN_XXHASH_INCLUDE "${folder}")
endif()
mnist_train_headers(mnist_train_xxhash "${MNIST_TRAIN_XXHASH_INCLUDE}")

# Compiled libraries are not fetched, because their packages are small.
function(mnist_train_require found name package)
  if(NOT found)
    message(FATAL_ERROR "${name} is not installed; install the package ${package}, as scripts/setup does")
  endif()
endfunction()

find_package(ZLIB QUIET)
mnist_train_require("${ZLIB_FOUND}" zlib zlib1g-dev)
find_package(PNG QUIET)
mnist_train_require("${PNG_FOUND}" libpng libpng-dev)
find_package(JPEG QUIET)
mnist_train_require("${JPEG_FOUND}" libjpeg libjpeg-dev)
find_package(CURL 7.85 QUIET)
mnist_train_require("${CURL_FOUND}" libcurl libcurl4-openssl-dev)

# mnist_train_find_library(<target> <library> <header> <package>): for libraries without CMake support.
function(mnist_train_find_library target library header package)
  find_path(MNIST_TRAIN_${library}_INCLUDE ${header})
  find_library(MNIST_TRAIN_${library}_LIBRARY ${library})
  if(NOT MNIST_TRAIN_${library}_INCLUDE OR NOT MNIST_TRAIN_${library}_LIBRARY)
    mnist_train_require(FALSE lib${library} ${package})
  endif()
  mnist_train_headers(${target} "${MNIST_TRAIN_${library}_INCLUDE}")
  target_link_libraries(${target} INTERFACE "${MNIST_TRAIN_${library}_LIBRARY}")
endfunction()

# Only the headers of libwebp are needed here: it is loaded when the first WebP picture is read, to keep startup fast.
find_path(MNIST_TRAIN_WEBP_INCLUDE webp/decode.h)
mnist_train_require("${MNIST_TRAIN_WEBP_INCLUDE}" libwebp libwebp-dev)
mnist_train_headers(mnist_train_webp "${MNIST_TRAIN_WEBP_INCLUDE}")

# Wuffs, used only for BMP pictures. Its single file is also its header.
set(wuffs_folder "${CMAKE_CURRENT_LIST_DIR}/wuffs")
add_library(mnist_train_wuffs STATIC "${wuffs_folder}/wuffs-v0.3.c")
set_source_files_properties("${wuffs_folder}/wuffs-v0.3.c" PROPERTIES LANGUAGE CXX
  COMPILE_OPTIONS "-w;-fno-sanitize=nonnull-attribute")  # it copies 0 bytes from null pointers
set_target_properties(mnist_train_wuffs PROPERTIES POSITION_INDEPENDENT_CODE ON)  # the DALI module is a shared library
target_include_directories(mnist_train_wuffs SYSTEM INTERFACE "${wuffs_folder}")
target_compile_definitions(mnist_train_wuffs PRIVATE WUFFS_IMPLEMENTATION
  PUBLIC WUFFS_CONFIG__MODULES WUFFS_CONFIG__MODULE__BASE WUFFS_CONFIG__MODULE__BMP)

mnist_train_find_library(mnist_train_lmdb lmdb lmdb.h liblmdb-dev)
mnist_train_find_library(mnist_train_md md sha2.h libmd-dev)

find_path(MNIST_TRAIN_PROTOZERO_INCLUDE protozero/pbf_reader.hpp)
mnist_train_require("${MNIST_TRAIN_PROTOZERO_INCLUDE}" protozero libprotozero-dev)
mnist_train_headers(mnist_train_protozero "${MNIST_TRAIN_PROTOZERO_INCLUDE}")

# LibTorch brings headers of another fmt than the one that spdlog is compiled with. A folder with
# the right fmt alone, ahead of LibTorch's headers, settles which one every source means.
set(fmt_folder "${CMAKE_BINARY_DIR}/third_party/include")
find_package(spdlog QUIET)
if(spdlog_FOUND)
  # CMAKE_PREFIX_PATH may contain LibTorch, whose fmt is the wrong one.
  find_path(MNIST_TRAIN_FMT_INCLUDE fmt/core.h NO_CMAKE_PATH NO_CMAKE_ENVIRONMENT_PATH)
  get_target_property(definitions spdlog::spdlog INTERFACE_COMPILE_DEFINITIONS)
  if("SPDLOG_FMT_EXTERNAL" IN_LIST definitions)
    file(MAKE_DIRECTORY "${fmt_folder}")
    file(CREATE_LINK "${MNIST_TRAIN_FMT_INCLUDE}/fmt" "${fmt_folder}/fmt" SYMBOLIC)
  endif()
else()
  mnist_train_fetch(folder PACKAGE libfmt-dev ARCHIVE f/fmtlib/fmtlib_9.1.0+ds1.orig.tar.gz
    SHA256 84ce1c2d0be3a9863935137969dcec6970125caac032f82474640bfc81463583)
  file(MAKE_DIRECTORY "${fmt_folder}")
  file(CREATE_LINK "${folder}/include/fmt" "${fmt_folder}/fmt" SYMBOLIC)
  mnist_train_fetch(folder PACKAGE libspdlog-dev ARCHIVE s/spdlog/spdlog_1.10.0+ds.orig.tar.xz
    SHA256 620ca6842b5c21014470bd42eb4716024674214fb973b5ffa3aaea33310ad327)
  mnist_train_headers(spdlog::spdlog "${folder}/include")
  target_compile_definitions(spdlog::spdlog INTERFACE SPDLOG_FMT_EXTERNAL FMT_HEADER_ONLY)
endif()
add_library(mnist_train_fmt INTERFACE)
target_include_directories(mnist_train_fmt SYSTEM BEFORE INTERFACE "${fmt_folder}")

if(MNIST_TRAIN_TESTS)
  find_package(Catch2 QUIET)
  if(NOT Catch2_FOUND)
    mnist_train_fetch(folder PACKAGE catch2 ARCHIVE c/catch2/catch2_2.13.10.orig.tar.gz
      SHA256 2f4fe284449cf17394350e027ae21958973a61b9161197d416e2dfca16167686)
    mnist_train_headers(Catch2::Catch2 "${folder}/single_include")
    set(Catch2_VERSION 2.13.10)
  endif()
endif()

# Include folders and libraries of every source.
add_library(mnist_train_common INTERFACE)
target_include_directories(mnist_train_common INTERFACE "${PROJECT_SOURCE_DIR}/src")
target_link_libraries(mnist_train_common INTERFACE
  mnist_train_flags mnist_train_fmt spdlog::spdlog nlohmann_json::nlohmann_json)
