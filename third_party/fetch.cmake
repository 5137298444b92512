# Downloads the archive of a library that is not installed from Debian's servers, verifies its SHA-256, and unpacks it into the
# build folder. The second server keeps every version, even after the first has removed it.
set(MNIST_TRAIN_ARCHIVES
  "http://deb.debian.org/debian/pool/main"
  "https://snapshot.debian.org/archive/debian/20250520T000000Z/pool/main"
  CACHE STRING "Servers with archives of libraries that are not installed, tried in order")

# mnist_train_fetch(<result> PACKAGE <Debian package> ARCHIVE <path> SHA256 <hash>)
# Sets `result` to the folder that the archive unpacks to.
function(mnist_train_fetch result)
  cmake_parse_arguments(PARSE_ARGV 1 fetch "" "PACKAGE;ARCHIVE;SHA256" "")
  get_filename_component(name "${fetch_ARCHIVE}" NAME)
  set(folder "${CMAKE_BINARY_DIR}/third_party/${fetch_PACKAGE}")
  set(stamp "${folder}/${fetch_SHA256}")
  if(NOT EXISTS "${stamp}")
    message(STATUS "${fetch_PACKAGE} is not installed; fetching ${name}")
    mnist_train_download("${fetch_ARCHIVE}" "${fetch_SHA256}" "${folder}/${name}" reasons)
    if(reasons)
      message(FATAL_ERROR "cannot fetch ${name} (${reasons}); install the package ${fetch_PACKAGE} instead, "
        "as scripts/setup does")
    endif()
    file(ARCHIVE_EXTRACT INPUT "${folder}/${name}" DESTINATION "${folder}")
    file(GLOB inner "${folder}/data.tar.*")  # of a .deb
    if(inner)
      file(ARCHIVE_EXTRACT INPUT "${inner}" DESTINATION "${folder}/data")
    endif()
    file(TOUCH "${stamp}")
  endif()
  file(GLOB unpacked LIST_DIRECTORIES TRUE "${folder}/*/include" "${folder}/*/single_include" "${folder}/*/usr" "${folder}/*/*.h")
  list(GET unpacked 0 unpacked)
  get_filename_component(unpacked "${unpacked}" DIRECTORY)
  set(${result} "${unpacked}" PARENT_SCOPE)
endfunction()

# Sets `reasons` to the error of each server; empty on success.
function(mnist_train_download archive sha256 file reasons)
  set(failures "")
  foreach(server IN LISTS MNIST_TRAIN_ARCHIVES)
    file(DOWNLOAD "${server}/${archive}" "${file}.part" STATUS status INACTIVITY_TIMEOUT 30)
    list(GET status 0 code)
    if(NOT code)
      file(SHA256 "${file}.part" actual)
      if(actual STREQUAL sha256)
        file(RENAME "${file}.part" "${file}")
        set(${reasons} "" PARENT_SCOPE)
        return()
      endif()
      set(status "0;SHA-256 is ${actual}, expected ${sha256}")
    endif()
    list(GET status 1 message)
    list(APPEND failures "${server}: ${message}")
  endforeach()
  list(JOIN failures ", " failures)
  set(${reasons} "${failures}" PARENT_SCOPE)
endfunction()
