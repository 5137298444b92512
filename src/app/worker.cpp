#include "app/worker.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <malloc.h>
#include <signal.h>
#include <spawn.h>
#include <spdlog/spdlog.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <numeric>

#include "accelerator/device.h"
#include "base/hash.h"
#include "base/print.h"
#include "kernels/operations.h"
#include "launch/supervisor.h"
#include "report/records.h"

namespace mnist_train::app {

namespace {

std::atomic<int> recorded_signal = 0;
std::atomic<bool> recording = false;

sigset_t set_of_stop_signals() {
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int signal : launch::stop_signals()) ::sigaddset(&signals, signal);
  return signals;
}

/// Takes stop signals for as long as the process lives.
[[noreturn]] void take_stop_signals(bool trains) {
  const sigset_t signals = set_of_stop_signals();
  while (true) {
    int signal = 0;
    if (::sigwait(&signals, &signal) != 0) continue;
    const bool can_wait = trains && signal == SIGUSR1;
    if (!recording && !can_wait) ::_exit(launch::stopped_exit_code(signal));
    int none = 0;
    recorded_signal.compare_exchange_strong(none, signal);
  }
}

/// Returns the exit status of `scontrol requeue JOB`, 127 if it cannot be started.
int scontrol_requeue(std::string job) {
  std::string program = "scontrol";
  std::string command = "requeue";
  std::array<char*, 4> arguments{program.data(), command.data(), job.data(), nullptr};
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_adddup2(&files, STDERR_FILENO,
                                     STDOUT_FILENO);  // its output is no result
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t none;
  ::sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  pid_t pid = 0;
  int status = 0;
  const int error =
      ::posix_spawnp(&pid, program.c_str(), &files, &attributes, arguments.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&files);
  if (error != 0 || ::waitpid(pid, &status, 0) != pid) return 127;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int handed_over_or(const char* name, int fd, int otherwise) {
  return launch::was_handed_over(name) ? fd : otherwise;
}

launch::WorkerIdentity own_identity() {
  auto identity = launch::identity_from_environment().value_or(launch::WorkerIdentity{});
  if (launch::was_handed_over("status")) {
    identity.launcher = launch::LauncherKind::kOwn;
    identity.decided_by = "mnist-train's own launcher";
  }
  return identity;
}

void set_up_log(const Worker& worker) {
  LogSetup setup;
  setup.console_fd = handed_over_or("console", launch::kConsoleFd, STDERR_FILENO);
  setup.level = worker.job.quiet ? "warning" : worker.job.log_level;
  if (worker.job.progress_bar) setup.console_prefix = kEraseLine;
  if (!worker.is_rank0()) {
    setup.console_prefix += "rank " + std::to_string(worker.identity.rank) + ": ";
    if (setup.level == "info") setup.level = "warning";
  }
  const auto folder = worker.run_folder / report::files::kLogs;
  if (!worker.run_folder.empty() && std::filesystem::is_directory(folder)) {
    setup.file = folder / launch::log_file_name(worker.identity.rank);
  }
  set_up_logging(setup);
  const launch::WorkerIdentity& identity = worker.identity;
  spdlog::debug(
      "rank {} of {}, local rank {} of {}, store at {}:{}, keys under {}, attempt {}; decided by "
      "{}",
      identity.rank, identity.world_size, identity.local_rank, identity.local_world_size,
      identity.master_address, identity.master_port, identity.store_prefix,
      identity.restart_count + 1, identity.decided_by);
}

/// LibTorch's own warnings, which have stack traces and precede our message, are for debugging.
class LibTorchWarnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    spdlog::debug("LibTorch: {}", warning.msg());
  }
};

void silence_libtorch(const std::string& level) {
  static LibTorchWarnings warnings;
  c10::WarningUtils::set_warning_handler(&warnings);
  if (std::getenv("TORCH_CPP_LOG_LEVEL") != nullptr) return c10::initLogging();
  const bool debugging = level == "debug" || level == "trace";
  FLAGS_caffe2_log_level = debugging ? c10::GLOG_WARNING : c10::GLOG_FATAL;
}

/// Returns how long this rank waits for others until its progress is watched. Our launcher finds
/// the silent rank itself, so no rank may give up before it does.
double peer_timeout_s(const Worker& worker) {
  constexpr double kMargin_s = 5;
  return worker.config.launch.hang_timeout_s + (launch::was_handed_over("status") ? kMargin_s : 0);
}

void set_up_host(Worker& worker) {
  at::set_num_threads(worker.placement.threads);
  // Keep the memory of activations and gradients, which each step frees and the next allocates.
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);
  ::mallopt(M_TRIM_THRESHOLD, -1);
  const bool deterministic = worker.config.train.deterministic;
  at::globalContext().setDeterministicAlgorithms(deterministic, /*warn_only=*/false);
  // It would fill every new tensor with NaNs, to find reads of uninitialised memory.
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  if (!worker.placement.cuda) return;
  if (deterministic) ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::globalContext().setBenchmarkCuDNN(!deterministic);
  at::globalContext().setDeterministicCuDNN(deterministic);
  // TF32 keeps 10 bits, so the parts of a split batch would not sum to the result of the whole.
  if (deterministic) at::globalContext().setAllowTF32CuDNN(false);
}

comm::RendezvousOptions rendezvous_of(const settings::RunConfig& config,
                                      const launch::WorkerIdentity& identity) {
  comm::RendezvousOptions rendezvous;
  rendezvous.identity = identity;
  rendezvous.timeout_s = config.launch.rendezvous_timeout_s;
  return rendezvous;
}

/// Returns the GPUs that this rank may use: the one in the config, else all that it sees.
std::vector<int> allowed_gpus(const Worker& worker) {
  if (!worker.placement.cuda) return {};
  if (!worker.config.launch.devices.empty()) return {worker.placement.device_index};
  std::vector<int> all(static_cast<std::size_t>(accelerator::cuda_module().device_count()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

/// Takes a GPU that no other rank takes, if there is one. Ranks may number GPUs differently: with
/// Slurm's --gpu-bind, for example, each task's GPU 0 is another one.
void take_gpu(Worker& worker, const std::vector<int>& allowed, const launch::GpuShares& shares) {
  launch::Placement& placement = worker.placement;
  if (!placement.cuda) return;
  placement.device_index =
      allowed.at(shares.taken.at(static_cast<std::size_t>(worker.identity.rank)));
  if (placement.backend == "nccl" && !shares.one_each()) {
    placement.backend = launch::backend_of_shared_gpu(worker.config, shares);
    spdlog::debug("ranks {} and {} share a GPU: connecting over {}", shares.first, shares.second,
                  placement.backend);
  }
  accelerator::cuda_module().set_device(placement.device_index);
  accelerator::show_waits_on(&worker.status());
}

comm::Communicator connect(Worker& worker) {
  comm::RendezvousOptions rendezvous = rendezvous_of(worker.config, worker.identity);
  rendezvous.listen_fd = handed_over_or("listen", launch::kListenFd, -1);
  rendezvous.fingerprint = hash_hex(settings::write_run_config(worker.config, false));
  rendezvous.backend = worker.placement.backend;
  const std::vector<int> gpus = allowed_gpus(worker);
  for (const int gpu : gpus) {
    rendezvous.gpus.push_back(accelerator::cuda_module().pci_address(gpu));
  }
  if (worker.placement.backend == "nccl") {
    const bool one_host = worker.identity.local_world_size == worker.identity.world_size;
    const auto& folder = worker.run_folder;
    comm::set_nccl_defaults(one_host, folder.empty() ? folder : folder / report::files::kLogs);
  }
  const comm::RendezvousResult joined = comm::rendezvous(rendezvous);
  take_gpu(worker, gpus, joined.gpus);
  return {worker.identity, joined,
          worker.placement.backend == "nccl" ? comm::BackendKind::kNccl : comm::BackendKind::kGloo,
          peer_timeout_s(worker)};
}

/// Rejects kernels that do not work on some rank's GPU; CPUs have none and do not count. Uses the
/// store, which has a time-out, unlike NCCL's first exchange with a rank whose GPU hangs.
void agree_on_kernels(Worker& worker) {
  std::string failed;  // a character for each operation
  for (const kernels::Selected& operation : kernels::selected()) {
    failed += worker.placement.cuda && !operation.is_own ? 'x' : '-';
  }
  const std::vector<std::string> of_ranks = worker.all_gather_text(failed);
  for (std::size_t i = 0; i < kernels::kOperations; ++i) {
    const bool failed_anywhere = std::ranges::any_of(
        of_ranks, [i](const std::string& of_rank) { return of_rank.at(i) == 'x'; });
    if (!kernels::selected()[i].is_own || !failed_anywhere) continue;
    kernels::reject(static_cast<kernels::Operation>(i), "another rank cannot use it");
  }
}

}  // namespace

at::Device Worker::device() const {
  return placement.cuda
             ? at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(placement.device_index))
             : at::Device(at::kCPU);
}

std::vector<std::string> Worker::all_gather_text(const std::string& text) {
  const nlohmann::json all = communicator.gather_text(text);
  return nlohmann::json::parse(communicator.broadcast_text(json_text(all)))
      .get<std::vector<std::string>>();
}

std::unique_ptr<Worker> start_worker() {
  launch::Job job = launch::read_job(handed_over_or("job", launch::kJobFd, -1));
  end_on_stop_signals(/*trains=*/job.command == launch::Command::kTrain);
  silence_libtorch(job.log_level);
  settings::RunConfig config = settings::parse_run_config(
      {job.config_path.string(), job.config, job.config_path.parent_path()});
  const launch::WorkerIdentity identity = own_identity();
  if (job.refusal_code != 0) {  // the front end has printed it
    const auto code = static_cast<ExitCode>(job.refusal_code);
    comm::publish_refusal(rendezvous_of(config, identity), code, job.refusal);
    ::_exit(job.refusal_code);
  }
  launch::Placement placement;
  if (!launch::needs_one_cpu(job.command)) {
    launch::Machine machine = launch::this_machine();
    machine.same_for_all = identity.launcher == launch::LauncherKind::kOwn;
    placement =
        launch::choose_placement(config, machine, identity.local_rank, identity.local_world_size);
  }
  auto board = launch::StatusBoard::attach(handed_over_or("status", launch::kStatusFd, -1),
                                           identity.local_world_size);
  auto worker = std::make_unique<Worker>(
      Worker{std::move(job), std::move(config), identity, placement, std::move(board), {}, {}});
  worker->run_folder = worker->job.run_folder;
  set_up_log(*worker);
  set_up_host(*worker);
  launch::update(worker->status(), launch::Phase::kRendezvous, 0, 0);
  worker->communicator = connect(*worker);
  worker->communicator.report_to(worker->status());
  if (worker->job.command == launch::Command::kTrain &&
      identity.launcher != launch::LauncherKind::kOwn) {
    worker->run_folder = worker->communicator.broadcast_text(worker->run_folder.string());
    if (!worker->is_rank0()) set_up_log(*worker);  // the folder of its file is known now
  }
  return worker;
}

void select_kernels(Worker& worker) {
  if (worker.config.train.gpu_kernels == settings::GpuKernels::kOff) {
    kernels::use(worker.device(), nullptr, "gpu_kernels is \"off\"");
  } else {
    kernels::prepare(worker.device());
  }
  if (!worker.communicator.alone()) agree_on_kernels(worker);
  if (!worker.placement.cuda) return;
  for (const kernels::Selected& operation : kernels::selected()) {
    if (operation.is_own) {
      spdlog::debug("{}: computed by our own kernel", operation.name);
    } else {
      spdlog::info("{}: computed by LibTorch's operations ({})", operation.name, operation.reason);
    }
  }
}

void end_on_stop_signals(bool trains) {
  // Shells start background processes with SIGINT ignored, but a signal that is sent is meant.
  for (const int signal : launch::stop_signals()) std::signal(signal, SIG_DFL);
  // No handler may run in a thread that computes, and later threads inherit the mask: while oneDNN
  // multiplies, the stack pointer is on the heap, where the frame of a handler destroys memory.
  const sigset_t signals = set_of_stop_signals();
  ::pthread_sigmask(SIG_SETMASK, &signals, nullptr);
  start_thread([trains] { take_stop_signals(trains); }).detach();
}

void record_stop_signals() { recording = true; }

int stop_signal() { return recorded_signal; }

ExitCode stopped_exit_code() {
  return static_cast<ExitCode>(launch::stopped_exit_code(recorded_signal));
}

void requeue_if_asked(Worker& worker) {
  const auto signals = worker.communicator.gather_text(std::to_string(stop_signal()));
  const auto job = environment_variable("SLURM_JOB_ID");
  if (!worker.is_rank0() || !job) return;
  const std::string asked = std::to_string(SIGUSR1);
  if (std::ranges::find(signals, asked) == signals.end()) return;
  const int status = scontrol_requeue(*job);
  if (status == 0) {
    spdlog::info("Slurm job {} is back in the queue", *job);
  } else {
    spdlog::error("scontrol requeue {} failed (exit {}): requeue the job by hand", *job, status);
  }
}

}  // namespace mnist_train::app
