#pragma once

#include <filesystem>
#include <string>

#include "checkpoint/tensor_file.h"
#include "settings/train_options.h"

namespace mnist_train::checkpoint {

/// Writes a checkpoint as a training script in Python would have saved it with `torch.save`:
/// `{"epoch", "step", "model_state_dict", "optimizer_state_dict"}`, the last one as
/// `torch.optim.SGD`, `Adam` and `AdamW` take it in `load_state_dict`, `lr` being the config's
/// learning rate. `torch.load(path, weights_only=True)` reads it. `options`: what the checkpoint
/// was trained with. Whole or not at all. Throws Error(kCheckpoint).
void write_python_checkpoint(const std::filesystem::path& path, const TensorFile& checkpoint,
                             const settings::TrainOptions& options, const std::string& source);

}  // namespace mnist_train::checkpoint
