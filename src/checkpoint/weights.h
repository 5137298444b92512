#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/tensor_file.h"
#include "models/model.h"

namespace mnist_train::checkpoint {

/// Returns the model's state_dict: parameters and buffers by PyTorch's names and in its order, as
/// contiguous copies on the CPU, floating-point ones in fp32.
NamedTensors state_dict(const models::Model& model);

/// Returns a line for EVERY missing and unexpected tensor and every size mismatch, each after a
/// newline; "" if names and shapes are the same.
std::string differences(const NamedTensors& expected, const NamedTensors& found);
/// Returns the differences between the model's state_dict and `weights`.
std::string differences(const models::Model& model, const NamedTensors& weights);

/// Copies `weights` into the model. Throws Error(kCheckpoint) with their differences, which leaves
/// the model unchanged. `source` names the file.
void load_state_dict(models::Model& model, const NamedTensors& weights, const std::string& source);

/// Throws Error(kCheckpoint), which names the tensor, if a parameter of the model is NaN or
/// infinite, or a buffer NaN. `source` names the file of its weights.
void require_finite(const models::Model& model, const std::string& source);

/// Gives the model the weights of a file, as `read_weights`, `load_state_dict` and `require_finite`
/// do. Throws Error(kCheckpoint).
void load_weights(models::Model& model, const std::filesystem::path& path);

/// Returns whether a file holds weights without the rest of a training state, so that no run can
/// resume from it. Throws Error(kCheckpoint).
bool holds_weights_alone(const std::filesystem::path& path);

/// Returns the weights in a checkpoint, a safetensors file, or a `.pt` file with a state_dict,
/// alone or in a dict under "model_state_dict" or "state_dict". The content tells the format, not
/// the name. Throws Error(kCheckpoint).
NamedTensors read_weights(const std::filesystem::path& path);

/// Returns what a checkpoint says about its run; nullopt if the file holds weights alone. Throws
/// Error(kCheckpoint).
std::optional<RunFacts> facts_of(const std::filesystem::path& path);

enum class WeightsFormat { kPt, kSafetensors };

/// Returns the format that the extension of a file names: ".safetensors", else PyTorch's.
WeightsFormat format_of(const std::filesystem::path& path);

/// Writes a state_dict of contiguous CPU tensors, none of which share memory; whole or not at all.
/// Throws Error(kCheckpoint).
void write_weights(const std::filesystem::path& path, const NamedTensors& weights,
                   WeightsFormat format);

}  // namespace mnist_train::checkpoint
