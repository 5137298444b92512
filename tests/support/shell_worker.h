#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "support/temp_folder.h"

namespace mnist_train::testing {

/// An executable shell script. Descriptors are the numbers of launch::HandedOverFd.
inline std::filesystem::path shell_worker(const TempFolder& folder, const std::string& script) {
  const std::filesystem::path path = folder.write("worker.sh", "#!/bin/sh\n" + script + "\n");
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

/// The whole text of a small file; empty when there is none.
inline std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace mnist_train::testing
