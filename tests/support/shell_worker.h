#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "support/temp_folder.h"

namespace mnist_train::testing {

/// Writes a worker that runs a shell script, with descriptors numbered as in HandedOverFd.
inline std::filesystem::path shell_worker(const TempFolder& folder, const std::string& script) {
  const std::filesystem::path path = folder.write("worker.sh", "#!/bin/sh\n" + script + "\n");
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

/// Returns the text of a small file; empty if it does not exist.
inline std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace mnist_train::testing
