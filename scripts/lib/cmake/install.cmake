# Rules for `cmake --install`. Files find each other by relative paths, so the prefix is relocatable; LibTorch is not
# installed.

include(GNUInstallDirs)
include(pages)

# The front end prints the config schema.
set(config_schema "${CMAKE_BINARY_DIR}/share/config.schema.json")
file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/share")
add_custom_command(OUTPUT "${config_schema}"
  COMMAND mnist-train config-schema > "${config_schema}" DEPENDS mnist-train VERBATIM)
add_custom_target(mnist_train_config_schema ALL DEPENDS "${config_schema}")
add_dependencies(programs mnist_train_config_schema)

set(data_folder "${CMAKE_INSTALL_DATADIR}/mnist-train")
install(TARGETS mnist-train RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
foreach(program mnist-train-fetch mnist-train-worker mnist-train-cuda mnist-train-dali)
  if(TARGET ${program})
    # The worker loads the modules from its own folder.
    install(TARGETS ${program} DESTINATION "${CMAKE_INSTALL_LIBEXECDIR}/mnist-train")
  endif()
endforeach()
install(FILES "${config_schema}" DESTINATION "${data_folder}")
install(DIRECTORY configs third_party/mnist DESTINATION "${data_folder}" PATTERN README.md EXCLUDE)
if(EXISTS "${PROJECT_SOURCE_DIR}/scripts/integrations")
  install(DIRECTORY scripts/integrations DESTINATION "${data_folder}" USE_SOURCE_PERMISSIONS
    PATTERN __pycache__ EXCLUDE PATTERN README.md EXCLUDE)
endif()
mnist_train_install_pages("${CMAKE_INSTALL_DOCDIR}")

# For custom networks in libraries: find_package(mnist_train), target mnist_train::model.
if(MNIST_TRAIN_TORCH)
  include(CMakePackageConfigHelpers)
  set(package "${CMAKE_BINARY_DIR}/package")
  set(package_folder "${CMAKE_INSTALL_LIBDIR}/cmake/mnist_train")
  configure_package_config_file("${PROJECT_SOURCE_DIR}/scripts/lib/cmake/mnist_train-config.cmake.in"
    "${package}/mnist_train-config.cmake" INSTALL_DESTINATION "${package_folder}" PATH_VARS CMAKE_INSTALL_INCLUDEDIR)
  write_basic_package_version_file("${package}/mnist_train-config-version.cmake" COMPATIBILITY SameMinorVersion)
  install(FILES "${package}/mnist_train-config.cmake" "${package}/mnist_train-config-version.cmake"
    DESTINATION "${package_folder}")
  install(FILES src/plugin/model.h DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/mnist_train")
endif()
