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

// What is a rank to do?

/// The commands: those of workers, then those that the front end runs itself.
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
  kCompletion,
  kManPage,
  kShowText
};

/// Returns whether a single process on the CPU runs the command.
constexpr bool needs_one_cpu(Command command) {
  return command == Command::kDescribe || command == Command::kExport || command == Command::kInit;
}

/// What the front end hands to every worker: a validated command with absolute paths.
struct Job {
  Command command = Command::kTrain;
  std::string config;                 // the effective config as JSON
  std::filesystem::path config_path;  // its file, for messages
  std::filesystem::path run_folder;   // train: prepared by the front end; empty if rank 0 does that
  std::string resume;                 // "": a new run; else "auto" or the checkpoint's path
  bool after_restart = false;         // the newest checkpoint of this run overrides `resume`
  std::filesystem::path checkpoint;   // evaluate, predict, export; init: weights
  std::filesystem::path dataset_record;  // the dataset.json of its run; empty: none
  std::string export_format;             // export: "pt", "safetensors", "onnx", "python"
  std::string export_input;              // export, onnx: "float32", "bytes"
  std::filesystem::path export_path;     // export, preview: the file to write
  bool with_optimizer = false;           // export
  std::int64_t scale = 0;                // preview: of images; 0: large enough for people
  bool as_json = false;                  // results: else as text for people
  std::vector<std::string> images;       // predict: files as they were named; init: the folder
  bool predicts_test = false;            // predict: the test set instead of files
  std::string log_level = "info";
  bool quiet = false;
  bool progress_bar = false;  // the console is a terminal
  double started_s = 0;       // CLOCK_MONOTONIC when the command was started
  double attempt_s = 0;       // the same for this attempt
  int restarts = 0;
  bool has_table_head = false;          // an earlier attempt has drawn the table of epochs
  std::string program = "mnist-train";  // for commands to copy
  std::vector<std::filesystem::path> made_folders;  // train: made for this run, from the top down
  std::map<std::string, std::string> positions;     // FILE:LINE:COLUMN of config keys, by pointer
  int refusal_code = 0;  // not 0: rank 0 refused the start, and only tells the other ranks
  std::string refusal;   // the reason
};

/// Returns the shell command that resumes a run. It names the effective config in the run folder,
/// so options of the first command need not be repeated. `resume`: "auto" or a checkpoint.
std::string resume_command(const std::filesystem::path& run_folder,
                           const std::string& program = "mnist-train",
                           const std::string& resume = "auto");

/// Returns the end of a message about a failed run: its newest intact checkpoint and the command
/// that resumes it, else the command that starts it again.
std::string recovery_advice(const std::filesystem::path& run_folder,
                            const std::string& program = "mnist-train");

/// Returns the shell command that classifies an image with the weights of a file.
std::string predict_command(const std::filesystem::path& weights, const std::string& program);

/// Returns an exception's message. Lines of a ConfigKeyError that begin with a key's pointer get
/// the FILE:LINE:COLUMN of the key, or of one above it, in front.
std::string message_of(const std::exception& error,
                       const std::map<std::string, std::string>& positions);

/// Writes the job to a memory file that a child can inherit. Throws Error(kRunFailed).
UniqueFd publish_job(const Job& job);

/// Reads the job that `publish_job` wrote; the descriptor stays open. Throws Error(kConfig) if
/// there is no such descriptor, and Error(kRunFailed) if it holds no job.
Job read_job(int fd);

// Who is it?

enum class LauncherKind { kOwn, kTorchrun, kSlurm, kOpenMpi, kMpich };

/// Returns "mnist-train", "torchrun", "slurm", "open-mpi" or "mpich" (also for Intel MPI).
const char* name_of(LauncherKind kind);

/// This process's rank in the run, and the address of the store, which rank 0 serves.
struct WorkerIdentity {
  LauncherKind launcher = LauncherKind::kOwn;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_address = "127.0.0.1";
  int master_port = 0;
  bool store_served_by_agent = false;  // torchrun's agent serves the store: every rank is a client
  std::string store_prefix;            // run id and restart count, so that attempts share no keys
  int restart_count = 0;
  std::string launch;      // the same in all attempts of one launch; "" if the launcher has no id
  std::string decided_by;  // the variables that the above was read from, for the log
};

/// Returns the identity that torchrun's variables give (our own launcher sets the same ones for its
/// ranks), else those of Slurm, Open MPI, MPICH or Intel MPI; nothing if this process was started
/// by hand or in a shell or batch script of Slurm. Throws Error(kConfig) if the variables are
/// incomplete or contradict each other.
std::optional<WorkerIdentity> identity_from_environment();

/// Returns how often Slurm has requeued this job; 0 outside of Slurm.
int slurm_restart_count();

/// Returns the first host of a list in Slurm's notation: "node[03-05,7],x" -> "node03".
std::string first_host(const std::string& list);

/// Returns a node's number of tasks from a list in Slurm's notation, in which "2(x3),1" stands for
/// 2, 2, 2, 1; 0 past its end.
int count_of_node(const std::string& list, int node);

// Where does it compute?

/// The module for GPUs, beside the worker's executable.
inline constexpr const char* kCudaModule = "libmnist-train-cuda.so";

/// The processors of this machine.
struct Machine {
  int cores = 1;
  int gpus = 0;               // usable by this build
  bool lacks_module = false;  // there are GPUs, but the module for them was not built
  bool same_for_all = true;   // every rank here sees the same GPUs under the same numbers
};

/// Detects cores and GPUs, without loading CUDA's runtime.
Machine this_machine();

/// Returns how many GPUs the NVIDIA driver shows this process (CUDA_VISIBLE_DEVICES respected); 0
/// without a driver. Asks the driver itself, which takes less time than loading LibTorch.
int visible_gpus();

/// Raises the soft limit of open files if it is too low for the descriptors that workers inherit.
/// Throws Error(kRunFailed) if the hard limit forbids that.
void require_open_files();

/// Device and backend of one rank.
struct Placement {
  bool cuda = false;
  int device_index = 0;          // of the GPU
  std::string backend = "gloo";  // or "nccl"; a single rank does not use it
  int threads = 1;               // of the rank

  std::string device_name() const;  // "cpu", "cuda:0"
};

/// Returns how many ranks our own launcher starts: `processes_per_node`, the length of `devices` or
/// of `data.train_per_process`. If the config has none of them: one for each GPU; on CPUs one for
/// each core up to 2, because more share memory bandwidth and gain little; on two cores one with
/// two threads for large networks of linear layers only, for which two already are too many. Throws
/// Error(kConfig) if the config asks for GPUs and there are none.
int choose_process_count(const settings::RunConfig& config, const Machine& machine);

/// Returns a note for the user on the choices of `choose_process_count`, or "".
std::string placement_note(const settings::RunConfig& config, const Machine& machine);

/// Chooses device, backend and threads of one rank. If there are more ranks than GPUs, they share
/// them in turn, over Gloo, since NCCL refuses two ranks on one GPU. Devices and backends that the
/// config names are used, or refused with Error(kConfig), but never replaced. Unless all ranks see
/// the same GPUs, their numbers do not tell which are shared: "nccl" then holds if `share_out_gpus`
/// gives each rank its own GPU.
Placement choose_placement(const settings::RunConfig& config, const Machine& machine,
                           int local_rank, int local_world_size);

/// The GPU of each rank.
struct GpuShares {
  std::vector<std::size_t> taken;  // by rank: an index into its list
  int first = -1;                  // two ranks that share a GPU, if any do
  int second = -1;

  bool one_each() const { return first < 0; }
};

/// Gives each rank the GPU that the fewest ranks before it took, the first of several. `allowed`:
/// by rank, globally unique names of the GPUs that it may take; an empty list is a rank on the CPU.
GpuShares share_out_gpus(const std::vector<std::vector<std::string>>& allowed);

/// Returns the backend of ranks if two of them share a GPU. Throws Error(kConfig) that names them
/// if the config asks for NCCL.
std::string backend_of_shared_gpu(const settings::RunConfig& config, const GpuShares& shares);

}  // namespace mnist_train::launch
