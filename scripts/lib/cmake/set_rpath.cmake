# cmake -D RPATH=FOLDERS -P set_rpath.cmake -- FILE...: makes executables search for libraries only in these folders.
cmake_minimum_required(VERSION 3.25)

set(is_file FALSE)
math(EXPR last "${CMAKE_ARGC} - 1")
foreach(index RANGE ${last})
  if(is_file)
    file(RPATH_SET FILE "${CMAKE_ARGV${index}}" NEW_RPATH "${RPATH}")
  elseif(CMAKE_ARGV${index} STREQUAL "--")
    set(is_file TRUE)
  endif()
endforeach()
