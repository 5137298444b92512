#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "settings/run_config.h"

namespace mnist_train::launch {

// The job of a rank.

/// The commands: first those that workers can run, then those that only the front end handles.
enum class Command {
  kTrain,
  kEvaluate,
  kPredict,
  kPreview,
  kDescribe,
  kExport,
  kInit,
  kDiagnose,  // for the doctor
  kDoctor,
  kFetch,
  kConvert,
  kReport,
  kConfigSchema,
  kShowText
};

/// Returns whether the command runs in a single process on the CPU.
constexpr bool needs_one_cpu(Command command) {
  return command == Command::kDescribe || command == Command::kExport || command == Command::kInit;
}

/// The input of every worker, prepared by the front end: a command and its validated config. All
/// paths except `config_path` and `images` are absolute.
struct Job {
  Command command = Command::kTrain;
  std::string config;                    // the effective config as JSON
  std::filesystem::path config_path;     // the first config file, for messages
  std::filesystem::path run_folder;      // train: under other launchers set only in rank 0's job
  std::string resume;                    // "": a new run; else "auto" or the checkpoint's path
  bool after_restart = false;            // the newest checkpoint of this run overrides `resume`
  std::filesystem::path checkpoint;      // evaluate, predict, export; init: weights
  std::filesystem::path dataset_record;  // the run's dataset.json or checkpoint; empty: none
  std::string export_format;             // export: "pt", "safetensors", "onnx", "python"
  std::string export_input;              // export, onnx: "float32", "bytes"
  std::filesystem::path export_path;     // export, preview: the file to write
  std::int64_t scale = 0;                // preview: magnification of the images; 0: automatic
  bool as_json = false;                  // how to print results; otherwise as human-readable text
  std::vector<std::string> images;       // predict: files as the user named them; init: the folder
  bool predicts_test = false;            // predict: the test set instead of files
  std::string log_level = "info";
  bool quiet = false;
  bool progress_bar = false;  // drawn on the console, a terminal that can redraw lines
  double started_s = 0;       // CLOCK_MONOTONIC when the command was started
  double attempt_s = 0;       // CLOCK_MONOTONIC when this attempt was started
  int restarts = 0;
  bool saves_snapshot = false;          // train: only saves an earlier attempt's newest snapshot
  bool has_table_head = false;          // an earlier attempt has drawn the head of the epoch table
  std::string program = "mnist-train";  // for commands to copy
  std::vector<std::filesystem::path> created_folders;  // train: created for this run, parents first
  std::map<std::string, std::string> positions;  // FILE:LINE:COLUMN of config keys, by pointer
  int refusal_code = 0;  // not 0: rank 0 refused to start, and only informs the others
  std::string refusal;   // the reason

  /// Returns the flag that names `checkpoint`, for messages about the file.
  const char* checkpoint_flag() const {
    return command == Command::kInit ? "--weights " : "--checkpoint ";
  }
};

/// Returns the shell command that resumes a run. It names the effective config in the run folder,
/// so the original config files and `--set` are not needed. `resume` is "auto" or a checkpoint.
std::string resume_command(const std::filesystem::path& run_folder,
                           const std::string& program = "mnist-train",
                           const std::string& resume = "auto");

/// Returns the last lines of a message about a failed or stopped run: its newest intact checkpoint
/// and the command that resumes from it, or else the command that starts over. Omits a command that
/// would fail in the same way: resuming from a checkpoint that was refused (`is_mistake` and
/// kCheckpoint) or, if none was written, starting over after that or after kRunFailed.
std::string recovery_advice(const std::filesystem::path& run_folder,
                            const std::string& program = "mnist-train",
                            ExitCode code = ExitCode::kDone, bool is_mistake = false);

/// Returns the shell command that classifies an image with the weights in a file.
std::string predict_command(const std::filesystem::path& weights, const std::string& program);

/// Returns an exception's message. In a ConfigKeyError, lines that begin with a key's JSON pointer
/// are prefixed with the FILE:LINE:COLUMN of the key or of its nearest ancestor with a position.
std::string message_of(const std::exception& error,
                       const std::map<std::string, std::string>& positions);

/// Writes the job to an in-memory file that a child process can inherit. Throws Error(kRunFailed).
UniqueFd publish_job(const Job& job);

/// Reads the job that `publish_job` wrote; the descriptor stays open. Throws Error(kConfig) if
/// there is no such descriptor, and Error(kRunFailed) if it contains no job.
Job read_job(int fd);

// The identity of a rank.

enum class LauncherKind { kBuiltIn, kTorchrun, kSlurm, kOpenMpi, kMpich };

/// Returns "mnist-train", "torchrun", "slurm", "open-mpi" or "mpich" (also for Intel MPI).
const char* name_of(LauncherKind kind);

/// This process's rank, and the address of the store, which torchrun's agent or else rank 0 serves.
struct WorkerIdentity {
  LauncherKind launcher = LauncherKind::kBuiltIn;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_address = "127.0.0.1";
  int master_port = 0;
  bool store_served_by_agent = false;  // by torchrun's agent: every rank is a client
  std::string store_prefix;            // run id and restart count, so that attempts share no keys
  int restart_count = 0;
  std::string launch;         // the same for all attempts of a launch; "" if it has no id
  std::string detected_from;  // the variables and other sources, for messages
};

/// Reads the identity from torchrun's variables (our own launcher sets the same ones for its
/// ranks) or, failing that, from those of Slurm, Open MPI, MPICH or Intel MPI. Returns nothing if
/// this process was started by hand or in a Slurm shell or batch script. Throws Error(kConfig) if
/// the variables are incomplete or contradictory, or if a batch script asked for several tasks.
std::optional<WorkerIdentity> identity_from_environment();

/// Returns how many times Slurm has requeued this job; 0 outside of Slurm.
int slurm_restart_count();

/// Returns the first host of a list in Slurm's notation: "node[03-05,7],x" -> "node03".
std::string first_host(const std::string& list);

/// Returns the number of tasks on a node from a list in Slurm's notation, in which "2(x3),1" means
/// 2, 2, 2, 1; 0 past the end of the list or if it is malformed.
int tasks_on_node(const std::string& list, int node);

// The placement of a rank.

/// The CUDA module, next to the worker's executable.
inline constexpr const char* kCudaModule = "libmnist-train-cuda.so";

/// The processors of this machine.
struct Machine {
  int cores = 1;
  int gpus = 0;               // usable by this build
  bool lacks_module = false;  // GPUs exist, but the CUDA module does not
  bool same_for_all = true;   // all local ranks see the same GPUs with the same indices
};

/// Detects cores and GPUs, without loading CUDA's runtime.
Machine this_machine();

/// Returns the number of GPUs that this process may use (see CUDA_VISIBLE_DEVICES); 0 without a
/// driver. Queries NVIDIA's driver directly, which is faster than loading LibTorch.
int visible_gpus();

/// Raises the soft limit on open files as far as the descriptors that workers inherit may need.
/// Throws Error(kRunFailed) if the hard limit is too low even for a few workers.
void require_open_files();

/// Device and backend of one rank.
struct Placement {
  bool cuda = false;
  int device_index = 0;          // of the GPU
  std::string backend = "gloo";  // or "nccl"; a single rank does not use it
  int threads = 1;               // for the rank

  std::string device_name() const;  // "cpu", "cuda:0"
};

/// Returns the number of ranks that our own launcher starts: `processes_per_node`, or the length of
/// `devices` or `data.train_per_process`. The default is one per GPU or, on CPUs, one per core up
/// to two (more would compete for memory bandwidth and gain little), but at most `train.shards`. On
/// two cores, the default is a single rank with two threads if that is faster, as for small batches
/// or large linear networks. Throws Error(kConfig) if the config asks for GPUs and there are none.
int choose_process_count(const settings::RunConfig& config, const Machine& machine);

/// Returns a note for the user if a GPU is not used because this build lacks the CUDA module, or if
/// `choose_process_count` prefers one process with a thread for each core; "" otherwise.
std::string placement_note(const settings::RunConfig& config, const Machine& machine);

/// Chooses the device, backend and threads of one rank. If there are more ranks than GPUs, ranks
/// are assigned to GPUs round-robin and use Gloo, because NCCL refuses two ranks on one GPU.
/// Devices and backends that the config sets are used, or refused with Error(kConfig), but never
/// replaced. If ranks see different GPUs, the indices do not show which GPUs are shared: "nccl" is
/// then valid only if `assign_gpus` assigns each rank its own GPU.
Placement choose_placement(const settings::RunConfig& config, const Machine& machine,
                           int local_rank, int local_world_size);

/// The GPU of each rank.
struct GpuAssignment {
  std::vector<std::size_t> indices;  // by rank: an index into the rank's list
  int first = -1;                    // the first two ranks that share a GPU, if any
  int second = -1;

  bool is_exclusive() const { return first < 0; }
};

/// Assigns each rank the GPU that the fewest earlier ranks use, the first one in a tie. `allowed`
/// lists, for each rank, globally unique names of the GPUs that it may use; none means the CPU.
GpuAssignment assign_gpus(const std::vector<std::vector<std::string>>& allowed);

/// Returns the backend to use if two ranks share a GPU. Throws Error(kConfig) naming both ranks if
/// the config requests NCCL.
std::string backend_for_shared_gpu(const settings::RunConfig& config, const GpuAssignment& gpus);

}  // namespace mnist_train::launch
