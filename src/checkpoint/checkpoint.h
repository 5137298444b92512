#pragma once

#include <filesystem>
#include <string>

#include "checkpoint/tensor_file.h"
#include "checkpoint/weights.h"
#include "train/trainer.h"

namespace mnist_train::checkpoint {

/// What a checkpoint says about the run that wrote it, beside weights and progress.
struct RunFacts {
  std::string config;  // the effective config as JSON, without `output`
  std::string data_hash;
  int world_size = 1;
  std::int64_t metrics_bytes = 0;  // length of metrics.jsonl when it was written
  std::int64_t event_bytes = 0;    // the same of TensorBoard's file; 0: none
  std::int64_t restarts = 0;
  models::ImageShape images;  // of the data, before any augmentation
};

/// Copies weights, optimizer state and progress to the host.
TensorFile snapshot(const train::Trainer& trainer, const RunFacts& facts);

/// Writes a snapshot as a sealed safetensors file. Throws Error(kCheckpoint); an earlier file of
/// that name is then intact.
void write_checkpoint(const std::filesystem::path& path, const TensorFile& snapshot);

/// Reads and verifies one. Throws Error(kCheckpoint).
TensorFile read_checkpoint(const std::filesystem::path& path);

/// Puts the trainer where the checkpoint was taken. Throws Error(kCheckpoint) naming every tensor
/// that does not fit and the other data set, the trainer unchanged.
RunFacts restore(train::Trainer& trainer, const TensorFile& checkpoint,
                 const std::string& data_hash, const std::string& source);

/// Whether a safetensors file is one that `snapshot` made.
bool is_checkpoint(const TensorFile& file);
/// The model's tensors alone.
NamedTensors checkpoint_weights(const TensorFile& checkpoint);
/// Throws Error(kCheckpoint), `source` naming the file.
train::Progress checkpoint_progress(const TensorFile& checkpoint, const std::string& source);
/// Throws Error(kCheckpoint), `source` naming the file.
RunFacts checkpoint_facts(const TensorFile& checkpoint, const std::string& source);

}  // namespace mnist_train::checkpoint
