#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/tensor_file.h"
#include "models/model.h"

namespace mnist_train::checkpoint {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// The model's state_dict: parameters and buffers by PyTorch's names, in its order, as
/// contiguous copies on the CPU, floating-point ones as fp32.
NamedTensors state_dict(const models::Model& model);

/// What keeps `weights` from being the model's, a line for EVERY missing, unexpected and misshapen
/// tensor, each after a newline; empty where they fit.
std::string differences(const models::Model& model, const NamedTensors& weights);

/// Copies `weights` into the model. Throws Error(kCheckpoint) with their differences; the model is
/// then unchanged. `source` names the file.
void load_state_dict(models::Model& model, const NamedTensors& weights, const std::string& source);

/// The weights of a file, by its content: a checkpoint, `.safetensors`, or a `.pt` that PyTorch or
/// this program saved from a state_dict. Throws Error(kCheckpoint).
NamedTensors read_weights(const std::filesystem::path& path);

/// The stored images, before any augmentation, that a checkpoint's model was trained on; nothing
/// for weights alone. Throws Error(kCheckpoint).
std::optional<models::ImageShape> trained_image_shape(const std::filesystem::path& path);

enum class WeightsFormat { kPt, kSafetensors };

/// Writes a state_dict (contiguous tensors on the CPU, each with memory of its own), whole or not
/// at all. Throws Error(kCheckpoint).
void write_weights(const std::filesystem::path& path, const NamedTensors& weights,
                   WeightsFormat format);

}  // namespace mnist_train::checkpoint
