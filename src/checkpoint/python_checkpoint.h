#pragma once

#include <filesystem>
#include <string>

#include "checkpoint/tensor_file.h"
#include "settings/train_options.h"

namespace mnist_train::checkpoint {

/// Writes a checkpoint as a training script in Python would have saved it with `torch.save`:
/// `{"epoch", "step", "model_state_dict", "optimizer_state_dict"}`, the last one for
/// `load_state_dict` of `torch.optim.SGD`, `Adam` or `AdamW`, with the config's learning rate as
/// `lr`. `torch.load(path, weights_only=True)` reads it. `options` are those that the checkpoint
/// was trained with, `source` names its file. Whole or not at all. Throws Error(kCheckpoint), also
/// when the optimizer's state is not that of `options`.
void write_python_checkpoint(const std::filesystem::path& path, const TensorFile& file,
                             const settings::TrainOptions& options, const std::string& source);

}  // namespace mnist_train::checkpoint
