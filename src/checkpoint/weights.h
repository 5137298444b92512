#pragma once

#include <filesystem>
#include <optional>

#include "checkpoint/checkpoint.h"
#include "checkpoint/tensor_file.h"
#include "models/model.h"
#include "settings/model_options.h"

namespace mnist_train::checkpoint {

/// Gives the model the weights of a checkpoint, safetensors or `.pt` file, or of several by their
/// index. The content tells the format, not the name. Prefixes "module.", "_orig_mod." and "model."
/// are removed if the model's names have none. What `weights.fresh` names keeps its values. Tensors
/// that the model lacks are ignored with a warning; `num_batches_tracked` may be missing. Throws
/// Error(kCheckpoint) with all other differences, which leaves the model unchanged, and with
/// advice, for a run that starts to train also on `fresh`; ConfigKeyError if a name in that is
/// nobody's; and as `require_finite` does. `images`: those of the model.
void load_weights(models::Model& model, const settings::WeightsOptions& weights,
                  const network::ImageShape& images, bool starts_run = false);

/// Returns the weights in such a file, without "module." and "_orig_mod." if all names have them.
/// Throws Error(kCheckpoint).
NamedTensors read_weights(const std::filesystem::path& path);

/// Returns the built-in network whose tensors these are, whatever its head, if there is one.
/// `images`: those of networks without published weights.
std::optional<settings::ModelName> network_like(const NamedTensors& file,
                                                const network::ImageShape& images);

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
