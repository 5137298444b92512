#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/tensor_file.h"
#include "models/model.h"

namespace mnist_train::checkpoint {

/// Returns the model's state_dict: parameters and buffers by PyTorch's names and in its order, as
/// contiguous copies on the CPU, floating-point ones in fp32.
NamedTensors state_dict(const models::Model& model);

/// Returns a line for EVERY missing and unexpected tensor and every size mismatch, each after a
/// newline; nothing where names and shapes are the same.
std::string differences(const NamedTensors& expected, const NamedTensors& found);
/// Returns the differences between the model's state_dict and `weights`.
std::string differences(const models::Model& model, const NamedTensors& weights);

/// Copies `weights` into the model. Throws Error(kCheckpoint) with their differences, which leaves
/// the model unchanged. `source` names the file.
void load_state_dict(models::Model& model, const NamedTensors& weights, const std::string& source);

/// Throws Error(kCheckpoint), which names the tensor, where a parameter of the model is NaN or
/// infinite, or a buffer NaN. `source` names the file that its weights are from.
void require_finite(const models::Model& model, const std::string& source);

/// Returns whether a file of weights holds weights without the rest of a training state, so that no
/// run can resume from it. Throws Error(kCheckpoint).
bool holds_weights_alone(const std::filesystem::path& path);

/// Returns the weights in a file whose content, not its name, says what it is: a checkpoint,
/// safetensors, or a `.pt` that PyTorch or this program saved from a state_dict, alone or in a dict
/// under "model_state_dict" or "state_dict". Throws Error(kCheckpoint).
NamedTensors read_weights(const std::filesystem::path& path);

/// Returns the shape, before any augmentation, of the images that a checkpoint's model was trained
/// on; nothing for files that hold weights alone. Throws Error(kCheckpoint).
std::optional<network::ImageShape> trained_image_shape(const std::filesystem::path& path);

/// Returns the names of the classes of those images, by number; none where the data had none, or
/// the file holds weights alone. Throws Error(kCheckpoint).
std::vector<std::string> trained_class_names(const std::filesystem::path& path);

enum class WeightsFormat { kPt, kSafetensors };

/// Returns the format that the extension of a file names: ".safetensors", else PyTorch's.
WeightsFormat format_of(const std::filesystem::path& path);

/// Writes a state_dict of contiguous CPU tensors, none of which share memory; whole or not at all.
/// Throws Error(kCheckpoint).
void write_weights(const std::filesystem::path& path, const NamedTensors& weights,
                   WeightsFormat format);

}  // namespace mnist_train::checkpoint
