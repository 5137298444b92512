#include "doctor/doctor.h"

#include <spdlog/fmt/fmt.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <thread>

#include "base/cpu.h"
#include "base/file.h"
#include "base/print.h"
#include "base/system.h"
#include "launch/job.h"
#include "launch/supervisor.h"

namespace mnist_train::doctor {

namespace fs = std::filesystem;

namespace {

/// Returns the result of `check`, or a problem with this topic and remedy if it throws an Error
/// that is not due to a stop signal.
template <class Check>
Finding problem_if_throws(const char* topic, const char* remedy, const Check& check) {
  try {
    return check();
  } catch (const Error& error) {
    if (error.code() == ExitCode::kInterrupted || error.code() == ExitCode::kTerminated) throw;
    return {topic, Verdict::kProblem, error.what(), remedy};
  }
}

constexpr double kMega = 1e6;

Finding check_processor() {
  const std::string model = value_of("/proc/cpuinfo", "model name").value_or("unknown model");
  const int usable = usable_cores();
  const auto installed = static_cast<int>(std::thread::hardware_concurrency());
  return good("processor", fmt::format("{}, {}{}, bf16 {}", model, counted(usable, "core"),
                                       usable < installed ? fmt::format(" of {}", installed) : "",
                                       cpu_features().avx512_bf16 ? "native" : "not native"));
}

Finding check_memory() {
  const SystemMemory memory = system_memory();
  Finding finding = good("memory", fmt::format("{} of {} free{}", memory_text(memory.available),
                                               memory_text(memory.total),
                                               memory.limited ? " (limited by a cgroup)" : ""));
  if (memory.available >= 2000 * kMega) return finding;
  return finding.with(memory.available < 400 * kMega ? Verdict::kProblem : Verdict::kWarning, "",
                      "a process needs about 350 MB: free some memory, or start fewer processes "
                      "(--nproc-per-node 1)");
}

/// Checks that a process can listen on 127.0.0.1, through which ranks on this host connect.
Finding check_loopback() {
  return problem_if_throws("ports", "bring the loopback interface up: ip link set lo up", [] {
    const launch::ListenSocket socket = launch::listen_on_loopback();
    return good("ports", "can listen on 127.0.0.1");
  });
}

const char* name_of(Verdict verdict) {
  static constexpr std::array kNames{"ok", "note", "warning", "problem"};
  return enum_name(kNames, verdict);
}

Finding describe_program() {
  const BuildInfo& build = build_info();
  const std::string commit = *build.commit == '\0' ? "" : fmt::format(" ({})", build.commit);
  return good("program", fmt::format("mnist-train {}{}", build.version, commit));
}

/// Reports which processes a run with this config would start here.
Finding check_plan(const settings::RunConfig& config) {
  return problem_if_throws("a run here", "change the config", [&] {
    const launch::Machine machine = launch::this_machine();
    const int processes = launch::choose_process_count(config, machine);
    settings::require_set_per_process(config.data, processes);
    launch::Placement placement;  // in the end, that of rank 0
    for (int rank = processes - 1; rank >= 0; --rank) {
      placement = launch::choose_placement(config, machine, rank, processes);
    }
    return good("a run here",
                fmt::format("{} on {}, backend {}, {}{}", counted(processes, "process"),
                            placement.cuda ? "cuda" : "cpu", placement.backend,
                            counted(placement.threads, "thread"), processes > 1 ? " each" : ""));
  });
}

void append(Findings& findings, Findings more) {
  std::move(more.begin(), more.end(), std::back_inserter(findings));
}

/// Indents every line after the first to `column`.
std::string indent_continuation_lines(const std::string& text, std::size_t column) {
  return replaced(escape_control_bytes(text), "\n", "\n" + std::string(column, ' '));
}

constexpr double kTimeout_s = 180;   // loading CUDA from a cold disk is slow
constexpr double kSlowSpeed = 50e6;  // bytes per second

/// Runs ranks on GPUs or CPUs and returns rank 0's output. Of the settings in `users`, takes over
/// only the number of threads: others may not suit this device or this number of processes. Throws
/// Error if the ranks fail, are stopped or print nothing.
OrderedJson diagnose(const settings::RunConfig& users, bool uses_gpus, int processes) {
  settings::RunConfig config;
  config.train.device = uses_gpus ? settings::DeviceName::kCuda : settings::DeviceName::kCpu;
  config.launch.threads_per_process = users.launch.threads_per_process;
  config.launch.processes_per_node = processes;
  config.launch.rendezvous_timeout_s = kTimeout_s;
  config.launch.hang_timeout_s = kTimeout_s;
  launch::Job job;
  job.command = launch::Command::kDiagnose;
  job.config = settings::write_run_config(config, /*has_output=*/false);
  job.quiet = true;
  job.started_s = monotonic_seconds();
  const auto board = launch::StatusBoard::create(processes);
  const launch::ListenSocket socket = launch::listen_on_loopback(processes > 1);
  const UniqueFd job_fd = launch::publish_job(job);
  const UniqueFd output(::memfd_create("mnist-train-diagnosis", MFD_CLOEXEC));
  launch::WorkerSetup setup;
  setup.executable = launch::worker_executable();
  setup.world_size = processes;
  setup.master_port = socket.port;
  setup.descriptors[launch::kJobFd] = job_fd.get();
  setup.descriptors[launch::kStatusFd] = board.fd();
  setup.descriptors[launch::kListenFd] = socket.fd.get();
  setup.output_fd = output.get();
  const auto result =
      launch::supervise(setup, board, config.launch.hang_timeout_s, launch::BackgroundTask{});
  if (result.stopped_by != 0) {
    throw Error(
        static_cast<ExitCode>(launch::stopped_exit_code(result.stopped_by)),
        std::string("mnist-train doctor: stopped by SIG") + ::sigabbrev_np(result.stopped_by));
  }
  if (result.failure) throw Error(ExitCode::kDistributed, result.failure->cause);
  OrderedJson json =
      OrderedJson::parse(content_of(output.get()), nullptr, /*allow_exceptions=*/false);
  if (json.is_object()) return json;
  throw Error(ExitCode::kDistributed, "the workers ended without a result");
}

Finding check_all_reduce(const OrderedJson& facts, int processes, const char* where) {
  const OrderedJson& measured = facts.at("all_reduce");
  const auto speed = measured.at("bytes_per_second").get<double>();
  Finding finding = good(
      "all-reduce", fmt::format("{} processes on {}: {}: {:.2f} ms, {}/s", processes, where,
                                measured.at("name").get<std::string>(),
                                measured.at("latency_s").get<double>() * 1e3, memory_text(speed)));
  if (speed >= kSlowSpeed) return finding;
  return finding.with(Verdict::kWarning, "",
                      fmt::format("below 50 MB/s: check whether other programs use the {}", where));
}

Finding check_libtorch(const OrderedJson& facts) {
  const auto version = facts.at("torch").get<std::string>();
  Finding finding = good("LibTorch", fmt::format("{} in {}, kernels for {}", version,
                                                 facts.at("torch_folder").get<std::string>(),
                                                 facts.at("cpu_capability").get<std::string>()));
  if (version.starts_with(build_info().torch)) return finding;
  return finding.with(Verdict::kWarning,
                      fmt::format("; this program was built against {}", build_info().torch),
                      "rebuild it (scripts/setup), or fix LD_LIBRARY_PATH");
}

/// Starts real workers: two on CPUs and, if this build has the CUDA module, one per GPU. They load
/// LibTorch, connect and time all-reduces. Call launch::block_supervised_signals first.
Findings check_workers(const settings::RunConfig& config, const Driver& driver) {
  constexpr int kProcesses = 2;
  constexpr const char* kSeeAbove =
      "a run would fail the same way: see the processes' output above and the other lines of this "
      "report";
  Findings findings;
  Finding cpu_all_reduce = problem_if_throws("all-reduce", kSeeAbove, [&] {
    const OrderedJson facts = diagnose(config, /*uses_gpus=*/false, kProcesses);
    findings.push_back(check_libtorch(facts));
    return check_all_reduce(facts, kProcesses, "CPUs");
  });
  findings.push_back(std::move(cpu_all_reduce));
  const int gpus = static_cast<int>(driver.gpus.size());
  if (gpus == 0 || *build_info().cuda == '\0') return findings;
  std::optional<Finding> all_reduce;
  findings.push_back(problem_if_throws(
      "CUDA",
      "set device to \"cpu\" to train without GPUs; scripts/setup --cuda installs LibTorch's CUDA "
      "parts",
      [&] {
        const OrderedJson facts = diagnose(config, /*uses_gpus=*/true, gpus);
        if (gpus > 1) all_reduce = check_all_reduce(facts, gpus, "GPUs");
        const OrderedJson& cuda = facts.at("cuda");
        return good("CUDA", fmt::format("runtime {}, NCCL {}; all GPUs work",
                                        cuda.at("runtime").get<std::string>(),
                                        cuda.at("nccl").get<std::string>()));
      }));
  if (all_reduce) findings.push_back(std::move(*all_reduce));
  return findings;
}

/// The driver's C functions. Each returns 0 on success.
class DriverLibrary : public SharedLibrary {
 public:
  DriverLibrary() : SharedLibrary("libcuda.so.1") {}

  /// Returns the function's result, or -1 if the library does not have the function.
  template <typename... Arguments>
  int call(const char* name, Arguments... arguments) const {
    const auto function = find<int(Arguments...)>(name);
    return function == nullptr ? -1 : function(arguments...);
  }

  std::string error_text(int code) const {
    const char* text = nullptr;
    call("cuGetErrorString", code, &text);
    return text == nullptr ? "error " + std::to_string(code) : text;
  }
};

/// Returns the driver's version from NVML, which works even in sandboxes that hide the kernel's
/// files; empty if NVML is missing or fails.
std::string nvml_driver_version() {
  const SharedLibrary library("libnvidia-ml.so.1");
  const auto init = library.find<int()>("nvmlInit_v2");
  const auto version = library.find<int(char*, unsigned)>("nvmlSystemGetDriverVersion");
  std::array<char, 80> text{};
  if (init == nullptr || version == nullptr || init() != 0) return "";
  return version(text.data(), text.size()) == 0 ? text.data() : "";
}

int gpus_on_bus() {
  int count = 0;
  std::error_code error;
  for (const auto& device : fs::directory_iterator("/sys/bus/pci/devices", error)) {
    const std::string type = first_line(device.path() / "class").value_or("");
    if (first_line(device.path() / "vendor") == "0x10de" && type.starts_with("0x03")) ++count;
  }
  return count;
}

Gpu read_gpu(const DriverLibrary& library, int device) {
  constexpr int kComputeMajor = 75;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
  constexpr int kComputeMinor = 76;
  Gpu gpu;
  std::array<char, 256> name{};
  library.call("cuDeviceGetName", name.data(), static_cast<int>(name.size()), device);
  gpu.name = name.data();
  library.call("cuDeviceTotalMem_v2", &gpu.memory_bytes, device);
  library.call("cuDeviceGetAttribute", &gpu.compute_major, kComputeMajor, device);
  library.call("cuDeviceGetAttribute", &gpu.compute_minor, kComputeMinor, device);
  return gpu;
}

void read_devices(const DriverLibrary& library, Driver& driver) {
  int count = 0;
  if (const int code = library.call("cuDeviceGetCount", &count); code != 0) {
    driver.error = library.error_text(code);
    return;
  }
  for (int index = 0; index < count; ++index) {
    int device = 0;
    library.call("cuDeviceGet", &device, index);
    driver.gpus.push_back(read_gpu(library, device));
  }
}

Driver examine_driver() {
  Driver driver;
  driver.version = first_line("/sys/module/nvidia/version").value_or("");
  driver.gpus_on_bus = gpus_on_bus();
  const DriverLibrary library;
  driver.library = library.loaded();
  if (!driver.library) return driver;
  library.call("cuDriverGetVersion", &driver.cuda_version);
  if (const int code = library.call("cuInit", 0U); code != 0) {
    constexpr int kNoDevice = 100;  // not a fault if CUDA_VISIBLE_DEVICES hides the GPUs
    const bool is_hidden = code == kNoDevice && environment_variable("CUDA_VISIBLE_DEVICES");
    if (!is_hidden) driver.error = library.error_text(code);
    return driver;
  }
  if (driver.version.empty()) driver.version = nvml_driver_version();
  read_devices(library, driver);
  return driver;
}

/// Explains why the driver reports no GPU.
Finding explain_no_gpu(const Driver& driver) {
  const auto finding = [](Verdict verdict, const std::string& text, const char* remedy) {
    return Finding{"GPU", verdict, text + "; runs use the CPUs", remedy};
  };
  const auto hidden = environment_variable("CUDA_VISIBLE_DEVICES");
  if (!driver.error.empty() && (driver.gpus_on_bus > 0 || !driver.version.empty())) {
    return finding(Verdict::kWarning, "the NVIDIA driver does not work: " + driver.error,
                   "see dmesg and nvidia-smi; after a driver update, reboot");
  }
  if (driver.library && driver.error.empty() && hidden) {
    return finding(Verdict::kNote, "none visible with CUDA_VISIBLE_DEVICES=\"" + *hidden + '"', "");
  }
  if (!driver.version.empty() && !driver.library) {
    return finding(
        Verdict::kWarning, "driver " + driver.version + " is loaded, but libcuda.so.1 is not found",
        "in a container: start it with --gpus all (NVIDIA Container Toolkit); elsewhere: "
        "install the driver's user-space package (libcuda1)");
  }
  if (driver.gpus_on_bus > 0 && driver.version.empty()) {
    return finding(Verdict::kWarning,
                   std::to_string(driver.gpus_on_bus) + " on the PCI bus, but no NVIDIA driver",
                   "install NVIDIA's driver (580 or newer for CUDA 13) and reboot");
  }
  return finding(Verdict::kNote, "none", "");
}

Finding check_driver(const Driver& driver, const BuildInfo& build) {
  constexpr int kVersionStep = 1000;
  Finding finding{"driver"};
  finding.text =
      fmt::format("NVIDIA {}, for CUDA up to {}.{}",
                  driver.version.empty() ? "driver of unknown version" : driver.version,
                  driver.cuda_version / kVersionStep, driver.cuda_version % kVersionStep / 10);
  if (*build.cuda == '\0') {
    return finding.with(Verdict::kWarning, "; this build has no CUDA module: runs use the CPUs",
                        "scripts/setup --cuda builds it");
  }
  finding.text += fmt::format("; this build needs {}", build.cuda);
  // Within a major version, an older driver works with newer libraries.
  int needed = 0;
  std::from_chars(build.cuda, build.cuda + std::strlen(build.cuda), needed);  // "13.0"
  if (driver.cuda_version / kVersionStep >= needed) return finding;
  return finding.with(
      Verdict::kProblem, "",
      fmt::format("install a driver for CUDA {} (CUDA 13 needs 580 or newer), or set "
                  "device to \"cpu\"",
                  needed));
}

}  // namespace

Finding check_run_folder(const settings::RunConfig& config) {
  const fs::path output = config.output.value_or(fs::current_path() / "runs");
  fs::path folder = output;  // the nearest folder that exists
  while (!is_folder(folder) && folder.has_relative_path()) folder = folder.parent_path();
  const double free = free_space(folder).value_or(0);
  Finding finding =
      good("run folder", fmt::format("{}: {} free", output.string(), memory_text(free)));
  try {
    const AtomicFile probe(folder / ".mnist-train-doctor", ExitCode::kConfig);
  } catch (const Error& error) {
    return finding.with(Verdict::kProblem, fmt::format("; {}", error.what()),
                        "choose another folder: --output DIR");
  }
  if (free >= 1000 * kMega) return finding;
  return finding.with(free < 50 * kMega ? Verdict::kProblem : Verdict::kWarning, "",
                      "a checkpoint of resnet18 with momentum needs 90 MB, and by default four "
                      "are kept: free some space, or lower checkpoint.keep");
}

Findings check_gpus(const Driver& driver, const BuildInfo& build) {
  if (driver.gpus.empty()) return {explain_no_gpu(driver)};
  Findings findings;
  for (std::size_t index = 0; index < driver.gpus.size(); ++index) {
    const Gpu& gpu = driver.gpus[index];
    const std::string memory = memory_text(static_cast<double>(gpu.memory_bytes));
    findings.push_back(
        good(fmt::format("GPU {}", index), fmt::format("{}, {}, compute {}.{}", gpu.name, memory,
                                                       gpu.compute_major, gpu.compute_minor)));
  }
  findings.push_back(check_driver(driver, build));
  return findings;
}

Finding check_shared_memory(const Driver& driver, std::optional<double> free_bytes) {
  constexpr double kMinFree_bytes = 256e6;
  Finding finding{"shared memory", Verdict::kGood, "there is no /dev/shm"};
  if (free_bytes) finding.text = memory_text(*free_bytes) + " free in /dev/shm";
  if (driver.gpus.size() < 2) {
    return finding.with(Verdict::kGood, ", which is used only with several GPUs", "");
  }
  if (free_bytes.value_or(0) >= kMinFree_bytes) return finding;
  return finding.with(Verdict::kWarning, free_bytes ? ", too little for NCCL" : ", which NCCL uses",
                      "use docker run --shm-size=1g or mount -o remount,size=1g /dev/shm, or set "
                      "NCCL_SHM_DISABLE=1");
}

Finding check_nccl(const Driver& driver, const BuildInfo& build) {
  if (*build.nccl == '\0') return {"NCCL", Verdict::kNote, "not in this build"};
  return good("NCCL",
              std::string(build.nccl) + (driver.gpus.empty() ? ", not used without a GPU" : ""));
}

Findings examine(const settings::RunConfig& config) {
  launch::block_supervised_signals();
  const Driver driver = examine_driver();
  Findings findings{describe_program(), check_processor(), check_memory()};
  append(findings, check_gpus(driver, build_info()));
  append(findings,
         {check_shared_memory(driver, free_space("/dev/shm")), check_nccl(driver, build_info()),
          check_loopback(), check_run_folder(config), check_plan(config)});
  append(findings, check_workers(config, driver));
  return findings;
}

int count(const Findings& findings, Verdict verdict) {
  return static_cast<int>(std::ranges::count(findings, verdict, &Finding::verdict));
}

std::string to_text(const Findings& findings, bool colours) {
  static constexpr std::array kColours{"\x1b[32m", "\x1b[36m", "\x1b[33m", "\x1b[31m"};
  constexpr std::size_t kVerdictWidth = 9;
  std::size_t topic_width = 0;
  for (const Finding& finding : findings) {
    topic_width = std::max(topic_width, finding.topic.size() + 2);
  }
  const std::size_t column = kVerdictWidth + topic_width;
  std::string text;
  for (const Finding& finding : findings) {
    const std::string verdict = fmt::format("{:<{}}", name_of(finding.verdict), kVerdictWidth);
    text += colours ? enum_name(kColours, finding.verdict) + verdict + "\x1b[0m" : verdict;
    text += fmt::format("{:<{}}{}\n", finding.topic, topic_width,
                        indent_continuation_lines(finding.text, column));
    if (finding.remedy.empty()) continue;
    text += std::string(column, ' ') + "-> " +
            indent_continuation_lines(finding.remedy, column + 3) + "\n";
  }
  return text + host_name() + ": " + counted(count(findings, Verdict::kProblem), "problem") + ", " +
         counted(count(findings, Verdict::kWarning), "warning") + "\n";
}

std::string to_json(const Findings& findings) {
  OrderedJson json = {{"host", host_name()},
                      {"problems", count(findings, Verdict::kProblem)},
                      {"warnings", count(findings, Verdict::kWarning)},
                      {"findings", OrderedJson::array()}};
  for (const Finding& finding : findings) {
    json["findings"].push_back({{"topic", finding.topic},
                                {"verdict", name_of(finding.verdict)},
                                {"text", finding.text},
                                {"remedy", finding.remedy}});
  }
  return json_text(json, 2) + "\n";
}

}  // namespace mnist_train::doctor
