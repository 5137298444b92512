#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "checkpoint/tensor_file.h"
#include "comm/communicator.h"
#include "models/model.h"
#include "settings/model_options.h"
#include "train/trainer.h"

namespace mnist_train::checkpoint {

/// Returns the model's parameters and buffers with PyTorch's names and in PyTorch's order, module
/// by module. They share the model's memory.
NamedTensors model_tensors(const models::Model& model);

/// Returns the model's state_dict: parameters and buffers with PyTorch's names and in PyTorch's
/// order, as contiguous CPU copies; floating-point tensors are in fp32.
NamedTensors state_dict(const models::Model& model);

/// Lists all missing tensors, size mismatches and unexpected tensors, in this order. Each line
/// begins with a newline; "" if names and shapes are the same.
std::string differences(const NamedTensors& expected, const NamedTensors& found);

/// Copies to each target the value with the same name, which must exist.
void copy_tensors(const NamedTensors& targets, const NamedTensors& values);

/// Throws Error(kCheckpoint) naming the tensor if a parameter of the model contains NaN or
/// infinity, or a buffer contains NaN. `source` names the weights file.
void require_finite(const models::Model& model, const std::string& source);

/// The tensors of a training state; the rest of it is `Progress`. They share the trainer's memory.
struct StateTensors {
  std::vector<at::Tensor> flat;     // [n] weights, optimizer state, EMA weights; equal on all ranks
  std::vector<at::Tensor> buffers;  // rank 0's are used
};

/// Returns the tensors of the trainer's state, in an order that depends only on its options.
StateTensors state_tensors(const train::Trainer& trainer);

/// Returns the progress as JSON, from which `progress_from_json` restores it exactly.
nlohmann::json progress_to_json(const train::Progress& progress);
/// Throws nlohmann::json::exception if the JSON does not have the format of `progress_to_json`.
train::Progress progress_from_json(const nlohmann::json& json);

/// Copies the training state of rank 0's trainer to the trainers of all ranks, so that only rank 0
/// needs to read a checkpoint. Collective.
void broadcast_state(train::Trainer& trainer, comm::Communicator& communicator);

/// A checkpoint's description of the run that wrote it.
struct RunFacts {
  std::string config;     // the effective config as JSON, without `output`
  std::string data_hash;  // Dataset::hash
  int world_size = 1;
  LogPositions positions;  // when the checkpoint was taken
  std::int64_t restarts = 0;
  network::ImageShape images;              // of the data, before any augmentation
  std::vector<std::string> class_names{};  // by label; empty if the data has none
  std::string files_hash{};                // Dataset::files_hash
  std::string code_hash{};                 // of model.torchscript or model.plugin; empty if none
};

/// Returns a host copy of the trainer's state and progress, as the content of a checkpoint file.
TensorFile snapshot(const train::Trainer& trainer, const RunFacts& facts);

/// Returns the content of a checkpoint file. Throws Error(kCheckpoint) if it is damaged or not a
/// checkpoint that this version can read.
TensorFile read_checkpoint(const std::filesystem::path& path);

/// Restores the trainer's state from a checkpoint, on this rank only. If the checkpoint's tensors
/// or optimizer differ from the trainer's, throws Error(kCheckpoint) listing the differences and
/// leaves the trainer unchanged. `source` names the file in messages, here and below.
void restore(train::Trainer& trainer, const TensorFile& file, const std::string& source);

/// Returns whether `snapshot` created the content of this safetensors file.
bool is_checkpoint(const TensorFile& file);
/// Returns the checkpoint's weights for evaluation: the state_dict of the EMA model if there is
/// one, else that of the trained model.
NamedTensors checkpoint_weights(const TensorFile& file);
/// Throws Error(kCheckpoint).
train::Progress checkpoint_progress(const TensorFile& file, const std::string& source);
/// Throws Error(kCheckpoint).
RunFacts checkpoint_facts(const TensorFile& file, const std::string& source);

/// The folder `checkpoints/` of a run. It contains the newest `keep` checkpoints, any extra ones,
/// and `best.safetensors`, a hard link to the best checkpoint or a copy of it.
class CheckpointFolder {
 public:
  CheckpointFolder(std::filesystem::path folder, std::int64_t keep)
      : folder_(std::move(folder)), keep_(keep) {}

  std::filesystem::path path_of(std::int64_t step) const { return folder_ / checkpoint_name(step); }

  /// Writes the checkpoint of `step`, reads it back and verifies it. Then removes the checkpoint of
  /// step `replaced` and all but the newest `keep` checkpoints; if `is_extra` is set, keeps the new
  /// one in addition to these. Throws Error(kCheckpoint), leaving earlier checkpoints in place.
  void save(const TensorFile& snapshot, std::int64_t step, bool is_extra = false,
            std::int64_t replaced = -1);
  /// Moves all checkpoints later than `step` aside, like `abandon`, and returns their number. The
  /// best one is left to `restore_best`. Throws Error(kCheckpoint).
  std::int64_t abandon_later_than(std::int64_t step);
  /// Moves a file of the run into `abandoned/`, or into `abandoned-2/` and so on if there was such
  /// a folder before this object's first call. Throws Error(kCheckpoint).
  void abandon(const std::filesystem::path& file);
  /// Marks a checkpoint file as the best one. Throws Error(kCheckpoint).
  void mark_best(const std::filesystem::path& checkpoint) const;
  /// Makes the checkpoint of `step` the best one again if it is saved, in this folder or in
  /// `other`; otherwise leaves no best one and returns false. Moves a best one aside unless its
  /// step is earlier and it is replaced. Throws Error(kCheckpoint).
  bool restore_best(std::int64_t step, const std::filesystem::path& other);
  /// Returns the path of the best checkpoint, which need not exist.
  std::filesystem::path best() const { return folder_ / kBestCheckpoint; }
  /// Returns the folder that `abandon` has moved files into; empty if it has moved none.
  const std::filesystem::path& abandoned() const { return abandoned_; }

 private:
  std::filesystem::path folder_;
  std::filesystem::path abandoned_;
  std::int64_t keep_;
};

/// Writes checkpoints on a thread, one at a time, while training continues. If the thread fails,
/// the next call to `check`, `start` or `wait` throws its error; earlier checkpoints stay intact.
class CheckpointWriter {
 public:
  explicit CheckpointWriter(CheckpointFolder folder) : folder_(std::move(folder)) {}
  /// Waits for the thread. Logs its error, if any.
  ~CheckpointWriter();

  /// Waits for the previous checkpoint, then starts saving `snapshot` as the checkpoint of `step`,
  /// and marks it as the best one if `best` is set. The other arguments are those of
  /// CheckpointFolder::save. Throws the previous checkpoint's Error(kCheckpoint). If no thread can
  /// be started, saves the checkpoint before returning, and throws if that fails.
  void start(TensorFile snapshot, std::int64_t step, bool best, bool is_extra = false,
             std::int64_t replaced = -1);
  /// Throws the thread's Error(kCheckpoint) if it has already failed. Does not wait.
  void check();
  /// Waits until the last checkpoint is on disk. Throws Error(kCheckpoint).
  void wait();

 private:
  CheckpointFolder folder_;
  std::future<void> saving_;
  bool has_warned_ = false;
};

struct FoundCheckpoint {
  std::filesystem::path path;
  TensorFile file;
};

/// Returns the newest intact checkpoint in `folder`, or the best one if all others are damaged;
/// nullopt if there are no checkpoints. Logs a warning for each newer one that is damaged. Throws
/// Error(kCheckpoint) if all are damaged.
std::optional<FoundCheckpoint> newest_valid(const std::filesystem::path& folder);

/// Snapshots of the training state of the ranks on one host, in an in-memory file that the launcher
/// keeps across restarts: the newest two, and the newest one that is also written as a checkpoint.
/// Each rank writes its part of the weights and optimizer state (rank 0 also writes buffers and
/// progress) and seals it with the step. A snapshot is valid once every rank has sealed it; if a
/// rank is killed before that, the previous snapshot remains valid. Snapshots are never mapped for
/// writing, so stray pointers cannot damage them.
class SnapshotMemory {
 public:
  /// Opens the in-memory file `fd` for the trainer's tensors, and clears it if its size does not
  /// match them. Collective. Throws Error(kRunFailed).
  SnapshotMemory(int fd, const train::Trainer& trainer, const comm::Communicator& communicator);
  SnapshotMemory(const SnapshotMemory&) = delete;
  SnapshotMemory& operator=(const SnapshotMemory&) = delete;

  /// Called on rank 0: plans a snapshot on all ranks for `moment`, a counter equal on all ranks.
  void plan(std::int64_t moment);
  /// Returns whether a snapshot is planned for this moment. Call it after `plan` and a collective.
  bool is_planned(std::int64_t moment) const;

  /// Writes this rank's part of the trainer's state. All ranks must call it after the same step,
  /// and none may call it again before all have returned. Only rank 0's `positions` are stored.
  /// `is_checkpoint`: whether a checkpoint of the same step is written too; it must be the same on
  /// all ranks. Throws Error(kRunFailed).
  void take(const train::Trainer& trainer, const LogPositions& positions, bool is_checkpoint);

  /// Returns the steps of the snapshots that all ranks have sealed, ascending.
  std::vector<std::int64_t> steps() const;
  /// Returns whether the snapshot of `step` was taken with `is_checkpoint` set.
  bool is_checkpoint(std::int64_t step) const;
  /// Restores the trainer's state from the snapshot of `step`, on this rank only.
  LogPositions restore(train::Trainer& trainer, std::int64_t step) const;

 private:
  struct Plan;
  struct Seal;

  Seal& seal(int slot, int rank) const;
  std::size_t begin_of(int slot) const {
    return head_bytes_ + static_cast<std::size_t>(slot) * slot_bytes_;
  }
  std::int64_t step_in(int slot) const;
  int slot_of(std::int64_t step) const;

  int fd_;
  int rank_;
  int world_size_;
  std::size_t head_bytes_;
  std::size_t slot_bytes_;
  std::shared_ptr<std::uint8_t> head_;
  Plan* plan_ = nullptr;      // in `head_`, followed by the seals
  int newest_slot_ = -1;      // newest that this process has written or found
  int checkpoint_slot_ = -1;  // newest that is also a checkpoint
};

/// Throws a ConfigKeyError whose message begins with `key` unless the head, the module of the last
/// parameter, has `classes` outputs.
void require_head(const char* key, const models::Model& model, std::int64_t classes);

/// Loads the model's weights from a checkpoint, a safetensors file or a `.pt` file, detected from
/// the content. Prefixes "module.", "_orig_mod." and "model." are removed from each name that has
/// them, unless names of the model begin with them or two names would become the same. Tensors that
/// match `weights.fresh` keep their values; returns their names. Tensors that the model does not
/// have are ignored with a warning; `num_batches_tracked` may be missing. If there are other
/// differences, or if the weights belong to a different built-in network, throws Error(kCheckpoint)
/// listing them, with advice (on `fresh` only if `starts_run` is set), and leaves the model
/// unchanged. Logs nothing unless `logs` is set. Throws ConfigKeyError if a glob in `fresh` matches
/// no tensor, and throws like `require_head` and `require_finite`. `images`: the model's input
/// shape.
std::set<std::string> load_weights(models::Model& model, const settings::WeightsOptions& weights,
                                   const network::ImageShape& images, bool starts_run = false,
                                   bool logs = true);

/// Returns the weights in a file that `load_weights` can read, without the prefixes "module." and
/// "_orig_mod." if all names have them. Throws Error(kCheckpoint).
NamedTensors read_weights(const std::filesystem::path& path);

/// Returns the built-in network whose tensors are most like the file's, ignoring the size of the
/// head; nullopt if none is similar. Networks without published weights are built for `images`.
std::optional<settings::ModelName> network_like(const NamedTensors& file,
                                                const network::ImageShape& images);

/// Returns the facts about the run that wrote a checkpoint; nullopt if the file contains only
/// weights. Throws Error(kCheckpoint).
std::optional<RunFacts> facts_of(const std::filesystem::path& path);

/// Atomically writes a state_dict of contiguous CPU tensors that share no memory, as safetensors or
/// in PyTorch's format. Throws Error(kCheckpoint).
void write_weights(const std::filesystem::path& path, const NamedTensors& weights,
                   bool as_safetensors);

}  // namespace mnist_train::checkpoint
