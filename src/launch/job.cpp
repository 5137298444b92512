#include "launch/job.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <utility>

#include "base/cpu.h"
#include "base/print.h"
#include "base/system.h"
#include "network/network.h"

namespace mnist_train::launch {

namespace fs = std::filesystem;

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Job, command, config, config_path, run_folder, resume,
                                   after_restart, checkpoint, dataset_record, export_format,
                                   export_input, export_path, scale, as_json, images, predicts_test,
                                   log_level, quiet, progress_bar, started_s, attempt_s, restarts,
                                   saves_snapshot, has_table_head, program, created_folders,
                                   positions, refusal_code, refusal)

namespace {

/// Returns the command that starts a run in the folder `output` with the config of `run_folder`.
std::string run_command(const fs::path& run_folder, const std::string& program,
                        const fs::path& output) {
  return shell_word(program) + " --config " +
         shell_word((run_folder / settings::run_files::kConfig).string()) + " --output " +
         shell_word(output.string());
}

constexpr int kDefaultCpuProcesses = 2;

[[noreturn]] void refuse_nccl(const std::string& reason, const std::string& remedy) {
  refuse(
      "backend \"nccl\" needs a separate GPU for every process: {}; {}, or set backend to \"gloo\"",
      reason, remedy);
}

void require_gpu(const settings::RunConfig& config, const Machine& machine) {
  const bool nccl = config.train.backend == settings::BackendName::kNccl;
  const auto is_gpu = [](const std::string& device) { return device.starts_with("cuda"); };
  const bool wants_gpu = nccl || config.train.device == settings::DeviceName::kCuda ||
                         std::ranges::any_of(config.launch.devices, is_gpu);
  if (!wants_gpu || machine.gpus > 0) return;
  const char* requested = nccl ? "backend \"nccl\"" : "device \"cuda\"";
  if (machine.lacks_module) {
    refuse(
        "the config asks for {}, but this build has no {}: run scripts/setup --cuda, which "
        "installs LibTorch's CUDA parts and builds it",
        requested, kCudaModule);
  }
  refuse(
      "the config asks for {}, but no GPU is visible: use a machine with one, check its NVIDIA "
      "driver and CUDA_VISIBLE_DEVICES, or set backend to \"gloo\" and device to \"cpu\"",
      requested);
}

bool use_cuda(const settings::RunConfig& config, const Machine& machine) {
  return config.train.device != settings::DeviceName::kCpu && machine.gpus > 0;
}

/// Returns the GPU of a local rank, from `launch.devices` or else round-robin; nothing for the CPU.
std::optional<int> gpu_of(const settings::RunConfig& config, const Machine& machine,
                          int local_rank) {
  constexpr std::string_view kIndexPrefix = "cuda:";
  const auto& devices = config.launch.devices;
  const std::string device = devices.empty()
                                 ? (use_cuda(config, machine) ? "cuda" : "cpu")
                                 : devices[static_cast<std::size_t>(local_rank) % devices.size()];
  if (device == "cpu") return std::nullopt;
  if (!device.starts_with(kIndexPrefix)) return local_rank % std::max(1, machine.gpus);
  const int index = std::stoi(device.substr(kIndexPrefix.size()));
  if (index >= machine.gpus) {
    refuse("launch.devices names \"{}\", but this machine has {}", device,
           counted(machine.gpus, "visible GPU"));
  }
  return index;
}

bool gpu_per_rank(const settings::RunConfig& config, const Machine& machine, int local_world_size) {
  std::set<int> taken;
  for (int rank = 0; rank < local_world_size; ++rank) {
    const auto gpu = gpu_of(config, machine, rank);
    if (!gpu || (!taken.insert(*gpu).second && machine.same_for_all)) return false;
  }
  return true;
}

std::string choose_backend(const settings::RunConfig& config, const Machine& machine,
                           int local_world_size) {
  const auto requested = config.train.backend;
  const bool nccl_can_work = gpu_per_rank(config, machine, local_world_size);
  if (requested == settings::BackendName::kNccl && !nccl_can_work) {
    if (!config.launch.devices.empty()) refuse_nccl("launch.devices repeats one", "change it");
    refuse_nccl(fmt::format("{} share {}", counted(local_world_size, "process"),
                            counted(machine.gpus, "GPU")),
                "lower launch.processes_per_node");
  }
  return nccl_can_work && requested != settings::BackendName::kGloo ? "nccl" : "gloo";
}

/// Returns the first number in OMP_NUM_THREADS, such as "4" or "4,2" (nesting levels); nothing if
/// the variable is not set or its value is invalid or too large.
std::optional<int> openmp_threads() {
  constexpr int kMaxThreads = 1024;  // as in launch.threads_per_process
  const char* text = std::getenv("OMP_NUM_THREADS");
  if (text == nullptr) return std::nullopt;
  int threads = 0;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), threads);
  const bool is_valid = error == std::errc() && (*end == '\0' || *end == ',') && threads >= 1 &&
                        threads <= kMaxThreads;
  return is_valid ? std::optional(threads) : std::nullopt;
}

int choose_threads(const settings::RunConfig& config, const Machine& machine,
                   int local_world_size) {
  if (config.launch.threads_per_process) {
    return static_cast<int>(*config.launch.threads_per_process);
  }
  if (config.train.deterministic) return 1;
  if (const auto requested = openmp_threads()) return *requested;
  return std::max(1, machine.cores / local_world_size);
}

/// Returns why one process with a thread for each of two cores is faster than two processes; empty
/// if it is not, or if the config requires other numbers. Our engine computes in blocks of 32
/// images, so half of a small batch takes as long as all of it. A network with many weights, all in
/// linear layers, is limited by memory bandwidth: each process would read and write all weights.
std::string reason_for_threads(const settings::RunConfig& config, const Machine& machine) {
  const settings::LaunchOptions& options = config.launch;
  const bool sets_processes =
      options.processes_per_node || !options.devices.empty() ||
      !config.data.train_per_process.empty() || config.train.batch_size_per_process ||
      settings::mixing_scope(config.data.augment) == settings::MixupScope::kGlobal;
  // Not measured with more than two cores.
  if (sets_processes || use_cuda(config, machine) || machine.cores != kDefaultCpuProcesses ||
      choose_threads(config, machine, 1) != machine.cores || !config.model.has_layers()) {
    return "";
  }
  constexpr std::int64_t kBlock = 32;  // images
  if (config.train.batch_size.value_or(kBlock + 1) <= kBlock && cpu_features().avx512) {
    return "half of a batch this small takes as long as the whole batch";
  }
  // If the size is unknown, assume MNIST's; larger images only give linear layers more weights.
  const auto images = network::known_images(config.data);
  try {
    const network::Network layers = network::make_network(
        config.model, network::model_input(config.data, images.value_or(network::ImageShape{})));
    if (layers.parameters > 1'000'000 && layers.multiply_adds <= layers.parameters) {
      return "each of several processes would read all weights of this network";
    }
  } catch (const Error&) {  // images of this size do not fit the network
    if (images) throw;
  }
  return "";
}

}  // namespace

std::string predict_command(const fs::path& weights, const std::string& program) {
  return shell_word(program) + " predict --checkpoint " +
         shell_word(path_as_typed(weights).string()) + " IMAGE.png";
}

std::string message_of(const std::exception& error,
                       const std::map<std::string, std::string>& positions) {
  if (dynamic_cast<const ConfigKeyError*>(&error) == nullptr) return error.what();
  std::istringstream lines(error.what());
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    const std::size_t end = line.starts_with('/') ? line.find(": ") : std::string::npos;
    std::string pointer = end == std::string::npos ? "" : line.substr(0, end);
    while (!pointer.empty() && !positions.contains(pointer)) {
      pointer.resize(pointer.rfind('/'));
    }
    text +=
        (text.empty() ? "" : "\n") + (pointer.empty() ? "" : positions.at(pointer) + ": ") + line;
  }
  return text;
}

std::string resume_command(const fs::path& run_folder, const std::string& program,
                           const std::string& resume) {
  return run_command(run_folder, program, run_folder) + " --resume " + shell_word(resume);
}

std::string recovery_advice(const fs::path& run_folder, const std::string& program, ExitCode code,
                            bool is_mistake) try {
  const bool is_refused = is_mistake && code == ExitCode::kCheckpoint;
  const fs::path folder = run_folder / settings::run_files::kCheckpoints;
  if (const auto newest = newest_intact_checkpoint(folder)) {
    const bool is_best = newest->filename() == kBestCheckpoint;
    std::string text = "  newest checkpoint: " + newest->string() + "\n";
    if (is_refused && !is_best) return text;
    return text + "  continue with: " +
           resume_command(run_folder, program, is_best ? newest->string() : "auto") + "\n";
  }
  const std::string restart = "  start again with: ";
  if (!saved_steps(folder).empty()) {
    const fs::path output =
        first_numbered((run_folder / "").parent_path(),  // without a trailing slash
                       [](const fs::path& path) { return !path_exists(path); });
    return "  none of the run's checkpoints can be read\n" + restart +
           run_command(run_folder, program, output) + "\n";
  }
  const bool recurs = is_refused || code == ExitCode::kRunFailed;
  return "  no checkpoint was written\n" +
         (recurs || !path_exists(run_folder / settings::run_files::kConfig)
              ? ""
              : restart + resume_command(run_folder, program) + "\n");
} catch (const Error& error) {  // shown in addition to the failure, not instead of it
  return "  checkpoints: " + std::string(error.what()) + "\n";
}

UniqueFd publish_job(const Job& job) {
  UniqueFd fd(::memfd_create("mnist-train-job", MFD_CLOEXEC));
  // CBOR, because paths need not be UTF-8.
  const std::vector<std::uint8_t> bytes = nlohmann::json::to_cbor(job);
  if (!fd.valid() || !write_all(fd.get(), bytes.data(), bytes.size())) {
    throw_errno("hand the job to the workers");
  }
  return fd;
}

Job read_job(int fd) {
  if (::fcntl(fd, F_GETFD) < 0) {
    refuse("mnist-train-worker is started by mnist-train, not manually: no job was passed");
  }
  const auto json =
      nlohmann::json::from_cbor(content_of(fd), /*strict=*/true, /*allow_exceptions=*/false);
  if (json.is_object()) return json.get<Job>();
  throw Error(ExitCode::kRunFailed, "cannot read the job from the launcher");
}

Machine this_machine() {
  const int gpus = visible_gpus();
  const bool has_module = !find_program_file(kCudaModule).empty();
  return {.cores = usable_cores(),
          .gpus = has_module ? gpus : 0,
          .lacks_module = gpus > 0 && !has_module};
}

int visible_gpus() {
  const SharedLibrary driver("libcuda.so.1");
  // The driver's C API: int cuInit(unsigned flags); int cuDeviceGetCount(int* count). 0 is success.
  const auto init = driver.find<int(unsigned)>("cuInit");
  const auto device_count = driver.find<int(int*)>("cuDeviceGetCount");
  int count = 0;
  const bool works =
      init != nullptr && device_count != nullptr && init(0) == 0 && device_count(&count) == 0;
  return works ? count : 0;
}

void require_open_files() {
  constexpr rlim_t kNeeded = 512;
  constexpr rlim_t kEnough = 65536;  // for the most processes: sixteen for each
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kEnough) return;
  limit.rlim_max = std::max(limit.rlim_max, kNeeded);  // root may raise it
  const rlim_t before = std::exchange(limit.rlim_cur, std::min(limit.rlim_max, kEnough));
  if (::setrlimit(RLIMIT_NOFILE, &limit) == 0 || before >= kNeeded) return;
  throw Error(ExitCode::kRunFailed,
              fmt::format("mnist-train: only {0} files may be open at once, but {1} are needed: "
                          "raise the limit (ulimit -n {1})",
                          before, kNeeded));
}

std::string Placement::device_name() const {
  return cuda ? "cuda:" + std::to_string(device_index) : "cpu";
}

int choose_process_count(const settings::RunConfig& config, const Machine& machine) {
  require_gpu(config, machine);
  if (!config.launch.devices.empty()) return static_cast<int>(config.launch.devices.size());
  if (config.launch.processes_per_node) {
    return static_cast<int>(*config.launch.processes_per_node);
  }
  if (!config.data.train_per_process.empty()) {
    return static_cast<int>(config.data.train_per_process.size());
  }
  if (!reason_for_threads(config, machine).empty()) return 1;
  const int automatic =
      use_cuda(config, machine) ? machine.gpus : std::min(machine.cores, kDefaultCpuProcesses);
  return static_cast<int>(
      std::min<std::int64_t>(automatic, config.train.shards.value_or(automatic)));
}

std::string placement_note(const settings::RunConfig& config, const Machine& machine) {
  if (machine.lacks_module && config.train.device == settings::DeviceName::kAuto) {
    return std::string("there is a GPU, but this build has no ") + kCudaModule +
           ": using the CPU; scripts/setup --cuda builds it";
  }
  const std::string reason = reason_for_threads(config, machine);
  if (reason.empty()) return "";
  return "using one process with a thread for each core, because " + reason +
         "; launch.processes_per_node overrides that";
}

Placement choose_placement(const settings::RunConfig& config, const Machine& machine,
                           int local_rank, int local_world_size) {
  require_gpu(config, machine);
  const auto gpu = gpu_of(config, machine, local_rank);
  return {.cuda = gpu.has_value(),
          .device_index = gpu.value_or(0),
          .backend = choose_backend(config, machine, local_world_size),
          .threads = choose_threads(config, machine, local_world_size)};
}

GpuAssignment assign_gpus(const std::vector<std::vector<std::string>>& allowed) {
  GpuAssignment assignment;
  std::map<std::string, std::vector<int>> users;
  for (int rank = 0; const std::vector<std::string>& names : allowed) {
    const auto least_used = std::ranges::min_element(
        names, {}, [&](const std::string& name) { return users[name].size(); });
    assignment.indices.push_back(static_cast<std::size_t>(least_used - names.begin()));
    if (least_used != names.end()) {
      std::vector<int>& others = users[*least_used];
      if (!others.empty() && assignment.is_exclusive()) {
        assignment.first = others.front();
        assignment.second = rank;
      }
      others.push_back(rank);
    }
    ++rank;
  }
  return assignment;
}

std::string backend_for_shared_gpu(const settings::RunConfig& config, const GpuAssignment& gpus) {
  if (config.train.backend != settings::BackendName::kNccl) return "gloo";
  refuse_nccl(fmt::format("ranks {} and {} share one (NCCL treats slices of a GPU as one)",
                          gpus.first, gpus.second),
              "let the launcher give each rank its own GPU (CUDA_VISIBLE_DEVICES)");
}

}  // namespace mnist_train::launch
