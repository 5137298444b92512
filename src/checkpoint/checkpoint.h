#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/tensor_file.h"
#include "models/model.h"
#include "settings/train_options.h"
#include "train/trainer.h"

namespace mnist_train::checkpoint {

/// A checkpoint's description of the run that wrote it.
struct RunFacts {
  std::string config;  // the effective config as JSON, without `output`
  std::string data_hash;
  int world_size = 1;
  std::int64_t metrics_bytes = 0;  // length of metrics.jsonl when the checkpoint was taken
  std::int64_t event_bytes = 0;    // length of TensorBoard's file; 0 without one
  std::int64_t restarts = 0;
  network::ImageShape images;              // of the data, before any augmentation
  std::vector<std::string> class_names{};  // by number; empty where the data have none
};

/// Returns a copy, on the host, of the trainer's weights, optimizer state and progress.
TensorFile snapshot(const train::Trainer& trainer, const RunFacts& facts);

/// Writes a snapshot as a sealed safetensors file. Throws Error(kCheckpoint), which leaves an
/// earlier file of that name intact.
void write_checkpoint(const std::filesystem::path& path, const TensorFile& snapshot);

/// Returns the content of a checkpoint file. Throws Error(kCheckpoint) if it is damaged or not a
/// checkpoint.
TensorFile read_checkpoint(const std::filesystem::path& path);

/// Gives the trainer the state of a checkpoint, on this rank alone. Throws Error(kCheckpoint) with
/// every difference between its tensors or optimizer and the trainer's, which is then unchanged.
/// `source` names the file in messages, here and below.
void restore(train::Trainer& trainer, const TensorFile& file, const std::string& source);

/// Returns whether `snapshot` made the content of this safetensors file.
bool is_checkpoint(const TensorFile& file);
/// Returns the state_dict of the checkpoint's evaluated model: the EMA model, if there is one.
NamedTensors checkpoint_weights(const TensorFile& file);
/// Returns the state_dict of the checkpoint's trained model.
NamedTensors trained_weights(const TensorFile& file);
/// Returns the names of those tensors of `checkpoint_weights` that are buffers, not parameters.
/// Throws Error(kCheckpoint).
std::vector<std::string> checkpoint_buffers(const TensorFile& file, const std::string& source);
/// Throws Error(kCheckpoint).
train::Progress checkpoint_progress(const TensorFile& file, const std::string& source);
/// Throws Error(kCheckpoint).
RunFacts checkpoint_facts(const TensorFile& file, const std::string& source);

/// Writes a checkpoint as a training script in Python would save it with `torch.save`:
/// `{"epoch", "step", "model_state_dict", "optimizer_state_dict"}`, the last one for
/// `load_state_dict` of `torch.optim.SGD`, `Adam` or `AdamW`, with the config's learning rate as
/// `lr`, and with `ema` the EMA model as "ema_state_dict". `torch.load(path, weights_only=True)`
/// reads it. `options` are those of the checkpoint's run. Whole or not at all. Throws
/// Error(kCheckpoint), also if the optimizer's state is not that of `options`.
void write_python_checkpoint(const std::filesystem::path& path, const TensorFile& file,
                             const settings::TrainOptions& options, const std::string& source);

}  // namespace mnist_train::checkpoint
