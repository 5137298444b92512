#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "base/system.h"
#include "comm/communicator.h"
#include "data/dataset.h"
#include "launch/job.h"
#include "launch/status_board.h"
#include "loader/augmenter.h"
#include "models/model.h"
#include "settings/run_config.h"

namespace mnist_train::app {

/// One rank, placed on its device and connected to the others.
struct Worker {
  launch::Job job;
  settings::RunConfig config;
  launch::WorkerIdentity identity;
  launch::Placement placement;
  launch::StatusBoard board;
  comm::Communicator communicator;
  std::filesystem::path run_folder;  // training only; the same on all ranks
  OomKills oom_kills{};              // since the worker was started

  bool is_rank0() const { return identity.rank == 0; }
  at::Device device() const;
  launch::RankStatus& status() { return board.of(identity.local_rank); }
  /// Reports a phase other than training. `batch`: the batch number in an evaluation or prediction;
  /// in other phases, a counter that grows as work is done.
  void enter(launch::Phase phase, std::int64_t batch = 0) {
    launch::update(status(), phase, 0, 0, batch);
  }
};

/// Reads the front end's job, determines this rank's identity, sets up logging, threads and the
/// device, and connects to the other ranks. Collective. Throws Error.
std::unique_ptr<Worker> start_worker();

/// On a GPU, compiles custom kernels unless the config turns them off. Throws Error(kRunFailed).
void prepare_kernels(const Worker& worker);

/// From now on, the signals of launch::stop_signals are only recorded, so that the ranks can agree
/// on a step after which all of them stop, save and exit.
void record_stop_signals();

/// Returns the first recorded signal, or 0.
int stop_signal();

/// Returns 130 for Ctrl-C (SIGINT), and 143 for other signals or if only another rank received one.
ExitCode stopped_exit_code();

/// Requeues the Slurm job, so that the run resumes later, if any rank received SIGUSR1, which Slurm
/// sends as a warning before the job's time limit (`sbatch --signal=USR1@SECONDS`). Call it after
/// the run has stopped and saved. Collective.
void requeue_if_asked(Worker& worker);

// Data and model of a worker.

/// Logs the files left out of the data set, the skipped samples, and notes on the files.
void log_left_out(const data::Dataset& dataset);

/// Opens the config's data. Unless it is streamed, our own launcher reads it for its ranks; with
/// other launchers, and for streamed data, each process opens it itself. Rank 0 logs skipped
/// samples. Collective. Throws Error(kData), for example if a set in train_per_process is empty.
data::Dataset open_dataset(Worker& worker, data::Splits splits = data::Splits::kBoth);

/// Returns an image set without samples, with the shape of the config's images or of those that the
/// job's checkpoint was trained on: read from the checkpoint; if it has none, from the named data
/// set, from the config and the run's dataset.json, or from a checkpoint of the same run; failing
/// that, from the data's files, of which at most one image is decoded. Throws Error(kCheckpoint) or
/// Error(kData) if they cannot be read.
data::ImageSet image_shape(const Worker& worker);

/// Returns the config's `data.augment` for this image size; null if empty. `mixes_across_ranks`:
/// whether global mixup and cutmix use samples of other ranks or shards, as in training.
std::shared_ptr<loader::Augmenter> make_augmenter(const Worker& worker,
                                                  const data::ImageSet& images,
                                                  bool mixes_across_ranks);

/// Returns the shape of the model's input for these images, after `data.augment`.
network::ImageShape model_input(const settings::RunConfig& config, const data::ImageSet& images);

/// Creates the config's model for these images, on the CPU, with initial weights. Throws
/// Error(kConfig), for example if a crop does not fit or the images are too small.
std::shared_ptr<models::Model> make_model(const settings::RunConfig& config,
                                          const data::ImageSet& images);

}  // namespace mnist_train::app
