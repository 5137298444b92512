#pragma once

#include <filesystem>
#include <vector>

#include "settings/data_options.h"

namespace mnist_train::fetch {

/// Writes the wanted files of a .tar.gz, whose SHA-256 was verified, into `folder`, each whole or
/// not at all. They are found by the last part of their names in the archive, which does not affect
/// where they are written; other files are skipped. Throws Error(kData) naming the archive if one
/// of them is missing or the archive is truncated.
void unpack(const std::filesystem::path& archive, const std::vector<settings::DatasetFile>& wanted,
            const std::filesystem::path& folder);

}  // namespace mnist_train::fetch
