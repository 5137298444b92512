#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace mnist_train::fetch {

struct FetchOptions {
  std::string dataset;               // a name of settings::named_datasets()
  std::filesystem::path to;          // made if it is not there
  std::vector<std::string> mirrors;  // instead of the known ones, tried in order
};

/// Downloads a data set's files into the folder `to` and returns their paths. Files that are there
/// and sound are left alone. A file has its name only when its SHA-256 was found right; until then
/// it is a hidden .part beside it, from which the next attempt, of this or another process,
/// resumes. Files that come in an archive are unpacked when the archive's SHA-256 was found right.
/// One process downloads while others that want the same folder wait for it. Throws Error(kData)
/// with what each mirror answered, Error(kConfig) for an unknown name.
std::vector<std::filesystem::path> fetch_dataset(const FetchOptions& options);

}  // namespace mnist_train::fetch
