#pragma once

#include <filesystem>
#include <vector>

#include "settings/named_datasets.h"

namespace mnist_train::fetch {

/// Writes the wanted files of a .tar.gz into `folder`, each whole or not at all. They are found by
/// the last part of their names in the archive, which says nothing about where they are written;
/// everything else in it is skipped. Throws Error(kData) naming the archive where one of them is
/// missing, is there twice, is not a regular file, or has another size or SHA-256 than it should,
/// and where the archive is damaged.
void unpack(const std::filesystem::path& archive, const std::vector<settings::DatasetFile>& wanted,
            const std::filesystem::path& folder);

}  // namespace mnist_train::fetch
