#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "report/records.h"

namespace mnist_train::report {

/// Writes `predictions.jsonl`, one object a line: `id`, `image`, `guess`, `truth`, `score_0`, …,
/// and where classes have names `guess_name` and `truth_name`; the file is whole or absent. Throws
/// Error(kRunFailed).
void write_predictions(const std::filesystem::path& path,
                       const std::vector<Prediction>& predictions,
                       const std::vector<std::string>& class_names = {});

/// Encodes an image [channels, height, width] u8 of 1 or 3 channels as PNG; of an image with
/// another number of channels, the first channel alone.
Picture make_picture(const std::uint8_t* pixels, std::int64_t channels, std::int64_t height,
                     std::int64_t width);

/// Returns the picture as "data:image/png;base64,…".
std::string image_uri(const Picture& picture);

}  // namespace mnist_train::report
