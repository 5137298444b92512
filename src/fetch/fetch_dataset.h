#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace mnist_train::fetch {

struct FetchOptions {
  std::string dataset;               // mnist, fashion-mnist
  std::filesystem::path to;          // made if it is not there
  std::vector<std::string> mirrors;  // instead of the known ones, tried in order
};

/// Brings the data set's four files into `to`. Files that are there and sound are left alone. A
/// file has its name only when the SHA-256 of its decompressed bytes was found right; until then it
/// lies beside it as a hidden .part, from which the next attempt, of this or another process, goes
/// on. One process downloads while others that want the same folder wait for it. Gives the files'
/// paths. Throws Error(kData) with what each mirror answered, Error(kConfig) for an unknown name.
std::vector<std::filesystem::path> fetch_dataset(const FetchOptions& options);

}  // namespace mnist_train::fetch
