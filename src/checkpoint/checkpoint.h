#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/tensor_file.h"
#include "comm/communicator.h"
#include "models/model.h"
#include "settings/model_options.h"
#include "settings/train_options.h"
#include "train/trainer.h"

namespace mnist_train::checkpoint {

/// Returns the model's parameters and buffers by PyTorch's names and in its order, module by
/// module. They share the model's memory.
NamedTensors model_tensors(const models::Model& model);

/// Returns the model's state_dict: parameters and buffers by PyTorch's names and in its order, as
/// contiguous copies on the CPU, floating-point ones in fp32.
NamedTensors state_dict(const models::Model& model);

/// Returns a line for EVERY missing and unexpected tensor and every size mismatch, each after a
/// newline; "" if names and shapes are the same.
std::string differences(const NamedTensors& expected, const NamedTensors& found);

/// Copies each of these values, by name, into the target of that name.
void copy_tensors(const NamedTensors& targets, const NamedTensors& values);

/// Throws Error(kCheckpoint), which names the tensor, if a parameter of the model is NaN or
/// infinite, or a buffer NaN. `source` names the file of its weights.
void require_finite(const models::Model& model, const std::string& source);

/// The tensors of a training state, of which `Progress` is the rest. They share the trainer's
/// memory.
struct StateTensors {
  std::vector<at::Tensor> flat;     // [n] weights, optimizer state, EMA weights; equal on all ranks
  std::vector<at::Tensor> buffers;  // rank 0's count
};

/// Returns the tensors of the trainer's state, in the same order for trainers of the same options.
StateTensors state_tensors(const train::Trainer& trainer);

/// Returns progress as JSON, from which `progress_from_json` restores every bit.
OrderedJson progress_to_json(const train::Progress& progress);
/// Throws Error(kCheckpoint) for JSON that `progress_to_json` does not return.
train::Progress progress_from_json(const OrderedJson& saved);

/// Gives the trainers of all ranks the training state of rank 0's, so that only rank 0 needs to
/// read a checkpoint. Collective.
void broadcast_state(train::Trainer& trainer, comm::Communicator& communicator);

/// A checkpoint's description of the run that wrote it.
struct RunFacts {
  std::string config;  // the effective config as JSON, without `output`
  std::string data_hash;
  int world_size = 1;
  std::int64_t metrics_bytes = 0;  // length of metrics.jsonl when the checkpoint was taken
  std::int64_t event_bytes = 0;    // length of TensorBoard's file; 0 without one
  std::int64_t restarts = 0;
  network::ImageShape images;              // of the data, before any augmentation
  std::vector<std::string> class_names{};  // by number; empty if the data have none
};

/// Returns a copy, on the host, of the trainer's weights, optimizer state and progress.
TensorFile snapshot(const train::Trainer& trainer, const RunFacts& facts);

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

/// The folder `checkpoints/` of a run. It holds `step-<step>.safetensors` for the `keep` highest
/// steps, and `best.safetensors`, a link to the best checkpoint.
class CheckpointFolder {
 public:
  CheckpointFolder(std::filesystem::path folder, std::int64_t keep)
      : folder_(std::move(folder)), keep_(keep) {}

  std::filesystem::path path_of(std::int64_t step) const;

  /// Writes the checkpoint of `step`, reads it back and verifies it, then removes all but the
  /// newest `keep`. Throws Error(kCheckpoint) with the earlier checkpoints still in place.
  void save(const TensorFile& snapshot, std::int64_t step);
  /// Moves checkpoints of later steps than `step`, the best one too, into `abandoned/`. Returns the
  /// number of their steps. Throws Error(kCheckpoint).
  std::int64_t set_aside_later_than(std::int64_t step) const;
  /// Moves a file of the run into `abandoned/`. Throws Error(kCheckpoint).
  void set_aside(const std::filesystem::path& file) const;
  /// Marks the saved checkpoint of `step` as the best one. Throws Error(kCheckpoint).
  void mark_best(std::int64_t step) const;
  /// Returns the path of the best checkpoint, which need not exist.
  std::filesystem::path best() const { return folder_ / kBestCheckpoint; }

 private:
  std::filesystem::path folder_;
  std::int64_t keep_;
};

/// Writes checkpoints on a thread, one at a time, while training continues. An error of the thread
/// is thrown by the next call of `check`, `start` or `wait`; earlier checkpoints are then intact.
class CheckpointWriter {
 public:
  explicit CheckpointWriter(CheckpointFolder folder) : folder_(std::move(folder)) {}
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  /// Waits for the thread. Logs its error, if there is one.
  ~CheckpointWriter();

  /// Waits for the previous checkpoint, then starts to save `snapshot` as that of `step`, and as
  /// the best one if `best`. Throws the previous checkpoint's Error(kCheckpoint).
  void start(TensorFile snapshot, std::int64_t step, bool best);
  /// Throws the Error(kCheckpoint) of the thread, if it has failed by now. Does not wait.
  void check();
  /// Returns when the last checkpoint is on disk. Throws Error(kCheckpoint).
  void wait();

 private:
  CheckpointFolder folder_;
  std::thread thread_;
  std::exception_ptr failure_;       // of the thread, read when it has ended
  std::atomic<bool> failed_{false};  // so that `check` need not wait
};

struct FoundCheckpoint {
  std::filesystem::path path;
  TensorFile file;
};

/// Returns the newest checkpoint in `folder` that is not damaged, and warns of each newer one;
/// nullopt if there are no checkpoints. Throws Error(kCheckpoint) if all are damaged.
std::optional<FoundCheckpoint> newest_valid(const std::filesystem::path& folder);

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
