#include "doctor/doctor.h"

#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <thread>

#include "base/cpu.h"
#include "base/file.h"
#include "base/print.h"
#include "base/system.h"
#include "data/dataset.h"
#include "data/image_decoder.h"
#include "data/sources.h"
#include "launch/job.h"
#include "launch/supervisor.h"
#include "report/records.h"

namespace mnist_train::doctor {

namespace fs = std::filesystem;

namespace {

using Json = nlohmann::ordered_json;

// The machine.

/// Returns the result of `check`, or a problem with this topic and remedy if it throws an Error.
template <class Check>
Finding problem_if_throws(const char* topic, const char* remedy, const Check& check) {
  try {
    return check();
  } catch (const Error& error) {
    return {topic, Verdict::kProblem, error.what(), remedy};
  }
}

constexpr double kMega = 1e6;

Finding check_open_files() {
  constexpr rlim_t kLeast = 64;  // sockets, pipes, libraries and data files of one rank
  constexpr rlim_t kComfortable = 1024;
  rlimit limit{};
  const rlim_t files = ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
  Finding finding = good("open files", files == RLIM_INFINITY ? "unlimited" : std::to_string(files),
                         {{"limit", files}});
  if (files >= kComfortable) return finding;
  return finding.with(files < kLeast ? Verdict::kProblem : Verdict::kWarning, " for each process",
                      "raise the limit: ulimit -n 65536, or nofile in /etc/security/limits.conf");
}

Finding check_processor() {
  const std::string model = value_of("/proc/cpuinfo", "model name").value_or("unknown model");
  const int usable = usable_cores();
  const auto present = static_cast<int>(std::thread::hardware_concurrency());
  return good("processor",
              fmt::format("{}, {}{}, bf16 {}", model, counted(usable, "core"),
                          usable < present ? fmt::format(" of {}", present) : "",
                          cpu_features().avx512_bf16 ? "native" : "not native"),
              {{"cores", usable}});
}

Finding check_memory() {
  const SystemMemory memory = system_memory();
  Finding finding =
      good("memory",
           fmt::format("{} of {} free{}", memory_text(memory.available), memory_text(memory.total),
                       memory.limited ? " (the limit of its cgroup)" : ""),
           {{"available_bytes", memory.available}});
  if (memory.available >= 2000 * kMega) return finding;
  return finding.with(memory.available < 400 * kMega ? Verdict::kProblem : Verdict::kWarning, "",
                      "a process needs about 350 MB: free some memory, or start fewer processes "
                      "(--nproc-per-node 1)");
}

std::string address_text(const sockaddr& address) {
  std::array<char, NI_MAXHOST> text{};
  const socklen_t size = address.sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (::getnameinfo(&address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) {
    return "";
  }
  return text.data();
}

/// Returns the name and address of each interface that is up, one entry per address.
std::vector<std::pair<std::string, std::string>> interfaces() {
  ifaddrs* list = nullptr;
  std::vector<std::pair<std::string, std::string>> found;
  if (::getifaddrs(&list) != 0) return found;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const int family = entry->ifa_addr == nullptr ? AF_UNSPEC : entry->ifa_addr->sa_family;
    const bool is_ip = family == AF_INET || family == AF_INET6;
    if (is_ip && (entry->ifa_flags & IFF_UP) != 0) {
      found.emplace_back(entry->ifa_name, address_text(*entry->ifa_addr));
    }
  }
  return found;
}

/// Debian maps the name of a host without a fixed address to 127.0.1.1, which no interface has.
bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

/// Returns the first address of a host name, or nothing if it does not resolve.
std::optional<std::string> address_of(const std::string& name) {
  const launch::Host host = launch::resolve(name);
  return host.addresses ? std::optional(address_text(*host.addresses->ai_addr)) : std::nullopt;
}

/// Checks the interface on which Gloo listens for other hosts: the one in GLOO_SOCKET_IFNAME, or by
/// default the one with the host name's address.
Finding check_interface() {
  const auto all = interfaces();
  Finding finding{"network"};
  if (const auto named = environment_variable("GLOO_SOCKET_IFNAME")) {
    finding.text = "GLOO_SOCKET_IFNAME is " + *named;
    for (const auto& [name, address] : all) {
      if (name == *named) return finding;
    }
    return finding.with(Verdict::kProblem, ", but there is no such interface, or it is down",
                        "use one that `ip -brief address` lists");
  }
  const std::string host = host_name();
  const auto own = address_of(host);
  std::string choice = "eth0";
  for (const auto& [name, address] : all) {
    if (!is_loopback(address)) choice = name;
    if (address != own || is_loopback(address)) continue;
    finding.text = fmt::format("{} is {} on {}", host, address, name);
    return finding;
  }
  finding.text = "the host name " + host;
  finding.text += !own                ? " does not resolve"
                  : is_loopback(*own) ? " resolves to " + *own + ", which other hosts cannot reach"
                                      : " resolves to " + *own + ", which no interface has";
  return finding.with(Verdict::kNote, "",
                      "for runs on several hosts, set the interface: GLOO_SOCKET_IFNAME=" + choice);
}

/// Checks MASTER_ADDR, the address of the first host, if it is set.
Findings check_master() {
  const auto address = environment_variable("MASTER_ADDR");
  if (!address) return {};
  if (const auto resolved = address_of(*address)) {
    return {good("MASTER_ADDR", *address + " resolves to " + *resolved)};
  }
  return {{"MASTER_ADDR", Verdict::kProblem, *address + " does not resolve",
           "set it to an address or name of the first host that every host can resolve"}};
}

/// Checks that processes on this host can connect to each other.
Finding check_loopback() {
  return problem_if_throws("ports", "bring the loopback interface up: ip link set lo up", [] {
    const launch::ListenSocket socket = launch::listen_on_loopback();
    return good("ports", "can listen on 127.0.0.1");
  });
}

Finding check_launcher() {
  constexpr const char* kRemedy =
      "unset these variables, or start it with the launcher that sets all of them";
  return problem_if_throws("launcher", kRemedy, [] {
    const auto identity = launch::identity_from_environment();
    if (!identity) return good("launcher", "its own");
    return good("launcher",
                fmt::format("{}: rank {} of {} (from {})", launch::name_of(identity->launcher),
                            identity->rank, identity->world_size, identity->decided_by));
  });
}

constexpr const char* kSeeAbove = "see the message above";

fs::path nearest_existing(fs::path folder) {
  while (!is_folder(folder) && folder.has_relative_path()) folder = folder.parent_path();
  return folder;
}

fs::path output_of(const settings::RunConfig& config) {
  return config.output.value_or(fs::current_path() / "runs");
}

/// Creates an unnamed temporary file in the folder. Sets errno on failure.
UniqueFd scratch_file(const fs::path& folder) {
  std::string name = (folder / ".mnist-train-doctor-XXXXXX").string();
  UniqueFd file(::mkostemp(name.data(), O_CLOEXEC));
  if (file.valid()) ::unlink(name.c_str());
  return file;
}

/// Describes the features that the folder's file system lacks, "" if none; returns nothing if no
/// file can be created there.
std::optional<std::string> missing_in(const fs::path& folder) {
  std::string missing;
  const auto add = [&](const char* what) {
    missing += fmt::format("{}{} ({})", missing.empty() ? folder.string() + " has no " : ", no ",
                           what, std::strerror(errno));
  };
  const UniqueFd file = scratch_file(folder);
  if (!file.valid()) return std::nullopt;
  if (take_file_lock(file.get()) == FileLock::kUnsupported) add("file locks");
  const UniqueFd opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened.valid() || ::fsync(opened.get()) != 0) add("syncing of folders");
  return missing;
}

Finding check_named_set(const settings::NamedDataset& row, const settings::RunConfig& config) {
  const bool is_needed = !config.data.format && config.data.dataset == row.name;
  const std::string topic = "data: " + row.name;
  try {
    return good(topic, data::find_named_dataset(row, config.data.root).string());
  } catch (const Error& error) {
    if (is_needed) return {topic, Verdict::kProblem, error.what(), kSeeAbove};
    return {topic, Verdict::kNote, "not found",
            "needed only by runs that use it: " + data::fetch_command(row)};
  }
}

/// Opens the data as a run would, but reads no images.
Finding check_format(const settings::DataOptions& options) {
  return problem_if_throws("data", kSeeAbove, [&options] {
    data::require_decoder(options.decode);
    const data::DatasetReader reader(options);
    return good(
        "data",
        fmt::format("{} training and {} test images", reader.train_count(), reader.test_count()),
        {{"train", reader.train_count()}, {"test", reader.test_count()}});
  });
}

/// Checks, with a temporary file, whether the run folder and the user's cache support file locks
/// and folder syncs.
Finding check_file_locks(const settings::RunConfig& config) {
  std::set<fs::path> folders{nearest_existing(output_of(config))};
  if (const auto cache = user_cache_folder()) folders.insert(nearest_existing(*cache));
  std::string tested;
  std::string problems;
  for (const fs::path& folder : folders) {
    const auto missing = missing_in(folder);
    if (!missing) continue;
    tested += (tested.empty() ? "work in " : ", ") + folder.string();
    if (!missing->empty()) problems += (problems.empty() ? "" : "; ") + *missing;
  }
  if (tested.empty()) return {"file locks", Verdict::kNote, "not tested: no folder is writable"};
  if (problems.empty()) return good("file locks", tested);
  return {"file locks", Verdict::kWarning, problems,
          "runs work, but without locks two runs can write to one folder (Lustre supports locks if "
          "mounted with -o flock), and without syncing the newest files may be lost if the machine "
          "crashes"};
}

// Runs.

const char* name_of(Verdict verdict) {
  static constexpr std::array kNames{"ok", "note", "warning", "problem"};
  return enum_name(kNames, verdict);
}

Finding describe_program() {
  const BuildInfo& build = build_info();
  const std::string commit = *build.commit == '\0' ? "" : fmt::format(" ({})", build.commit);
  return good("program", fmt::format("mnist-train {}{}", build.version, commit),
              {{"version", build.version}});
}

/// Reports which processes a run with this config would start here.
Finding check_plan(const settings::RunConfig& config, const Driver& driver) {
  return problem_if_throws("a run here", "change the config", [&] {
    launch::Machine machine = launch::this_machine();
    machine.gpus = static_cast<int>(driver.gpus.size());
    const int processes = launch::choose_process_count(config, machine);
    const auto placement = launch::choose_placement(config, machine, 0, processes);
    return good("a run here",
                fmt::format("{} on {}, backend {}, {} each", counted(processes, "process"),
                            placement.cuda ? "cuda" : "cpu", placement.backend,
                            counted(placement.threads, "thread")),
                {{"processes", processes}});
  });
}

void append(Findings& findings, Findings more) {
  std::move(more.begin(), more.end(), std::back_inserter(findings));
}

/// Indents every line after the first to `column`.
std::string hanging(const std::string& text, std::size_t column) {
  return replaced(escape_control_bytes(text), "\n", "\n" + std::string(column, ' '));
}

constexpr double kTimeout_s = 180;  // loading CUDA from a cold disk is slow
constexpr double kSlow = 50e6;      // bytes per second

/// Rank 0's output, or the reason why there is none.
struct Diagnosis {
  Json result;
  std::string failure{};
};

Diagnosis run_workers(const settings::RunConfig& config, int processes) {
  launch::Job job;
  job.command = launch::Command::kDiagnose;
  job.config = settings::write_run_config(config, /*with_output=*/false);
  job.quiet = true;
  job.started_s = monotonic_seconds();
  const auto board = launch::StatusBoard::create(processes);
  const launch::ListenSocket socket = launch::listen_on_loopback();
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
  if (result.failure) return {nullptr, result.failure->cause};
  Json json = Json::parse(content_of(output.get()), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return {nullptr, "the workers ended without a result"};
  return {std::move(json)};
}

Diagnosis diagnose(settings::RunConfig config, bool on_gpus, int processes) {
  config.train.device = on_gpus ? settings::DeviceName::kCuda : settings::DeviceName::kCpu;
  config.train.backend = settings::BackendName::kAuto;
  config.launch.devices.clear();
  config.launch.processes_per_node = processes;
  config.launch.rendezvous_timeout_s = kTimeout_s;
  config.launch.hang_timeout_s = kTimeout_s;
  try {
    return run_workers(config, processes);
  } catch (const Error& error) {
    if (error.code() == ExitCode::kInterrupted || error.code() == ExitCode::kTerminated) throw;
    return {nullptr, error.what()};
  }
}

Finding check_all_reduce(const Diagnosis& diagnosis, int processes, const char* where) {
  if (!diagnosis.failure.empty()) {
    return {"all-reduce", Verdict::kProblem, diagnosis.failure,
            "a run would fail the same way: see the processes' output above and the other lines of "
            "this report"};
  }
  Finding finding{"all-reduce"};
  finding.values["measured"] = diagnosis.result.at("all_reduce");
  std::vector<std::string> texts;
  for (const Json& measured : diagnosis.result.at("all_reduce")) {
    const auto speed = measured.at("bytes_per_second").get<double>();
    texts.push_back(fmt::format("{}: {:.2f} ms, {}/s", measured.at("name").get<std::string>(),
                                measured.at("latency_s").get<double>() * 1e3, memory_text(speed)));
    if (speed >= kSlow) continue;
    finding.verdict = Verdict::kWarning;
    finding.remedy = "slower than 50 MB/s: check whether other programs use the cores";
  }
  finding.text = fmt::format("{} processes on {}: {}", processes, where, fmt::join(texts, "; "));
  return finding;
}

Finding check_libtorch(const Json& facts) {
  const auto version = facts.at("torch").get<std::string>();
  Finding finding = good(
      "LibTorch",
      fmt::format("{} in {}, kernels for {}", version, facts.at("torch_folder").get<std::string>(),
                  facts.at("cpu_capability").get<std::string>()),
      facts);
  finding.values.erase("all_reduce");
  if (version.starts_with(build_info().torch)) return finding;
  return finding.with(Verdict::kWarning,
                      fmt::format("; this program was built against {}", build_info().torch),
                      "rebuild it (scripts/setup), or fix LD_LIBRARY_PATH");
}

Finding check_cuda(const Diagnosis& diagnosis) {
  if (!diagnosis.failure.empty()) {
    return {"CUDA", Verdict::kProblem, diagnosis.failure,
            "set device to \"cpu\" to train without GPUs; scripts/setup --cuda installs LibTorch's "
            "CUDA parts"};
  }
  const Json& facts = diagnosis.result.at("cuda");
  return good(
      "CUDA",
      fmt::format("runtime {}, NCCL {}; all GPUs work", facts.at("runtime").get<std::string>(),
                  facts.at("nccl").get<std::string>()),
      facts);
}

/// Starts real workers as a run does: two on CPUs, and one per GPU. They load LibTorch, connect,
/// all-reduce tensors and report timings. Call launch::block_supervised_signals first.
Findings check_workers(const settings::RunConfig& config, const Driver& driver) {
  constexpr int kProcesses = 2;
  Findings findings;
  const Diagnosis on_cpus = diagnose(config, /*on_gpus=*/false, kProcesses);
  if (on_cpus.failure.empty()) findings.push_back(check_libtorch(on_cpus.result));
  findings.push_back(check_all_reduce(on_cpus, kProcesses, "CPUs"));
  const int gpus = static_cast<int>(driver.gpus.size());
  if (gpus == 0 || *build_info().cuda == '\0') return findings;
  const Diagnosis on_gpus = diagnose(config, /*on_gpus=*/true, gpus);
  findings.push_back(check_cuda(on_gpus));
  if (gpus > 1) findings.push_back(check_all_reduce(on_gpus, gpus, "GPUs"));
  return findings;
}

}  // namespace

Finding check_run_folder(const settings::RunConfig& config) {
  const fs::path output = output_of(config);
  const fs::path folder = nearest_existing(output);
  Finding finding = good("run folder", "", {{"folder", folder.string()}});
  if (!scratch_file(folder).valid()) {
    return finding.with(Verdict::kProblem,
                        folder.string() + " cannot be written: " + std::strerror(errno),
                        "choose another folder: --output DIR");
  }
  const double free = free_space(folder).value_or(0);
  finding.values["free_bytes"] = free;
  finding.text = fmt::format("{}: {} free", output.string(), memory_text(free));
  if (free >= 1000 * kMega) {
    if (!config.output) return finding;
    try {
      report::check_run_folder(config, /*config_name=*/"", /*resume=*/"");
      return finding;
    } catch (const Error& error) {  // as at startup: the folder contains a run or is in use
      return {"run folder", Verdict::kWarning, error.what(), kSeeAbove, finding.values};
    }
  }
  return finding.with(free < 50 * kMega ? Verdict::kProblem : Verdict::kWarning, "",
                      "a checkpoint needs up to 90 MB (resnet18 with momentum) and four are kept: "
                      "free some space, or lower checkpoint.keep");
}

Findings check_data(const settings::RunConfig& config) {
  Findings findings;
  if (config.data.format) findings.push_back(check_format(config.data));
  for (const settings::NamedDataset& row : settings::named_datasets()) {
    findings.push_back(check_named_set(row, config));
  }
  return findings;
}

Findings examine(const settings::RunConfig& config) {
  launch::block_supervised_signals();
  const Driver driver = examine_driver();
  Findings findings{describe_program(), check_processor(), check_memory(), check_open_files()};
  append(findings, check_gpus(driver, build_info()));
  append(findings, {check_shared_memory(driver, free_space("/dev/shm")),
                    check_nccl(driver, build_info()), check_loopback(), check_interface()});
  append(findings, check_master());
  append(findings, {check_launcher(), check_run_folder(config), check_file_locks(config)});
  append(findings, check_data(config));
  findings.push_back(check_plan(config, driver));
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
    text += fmt::format("{:<{}}{}\n", finding.topic, topic_width, hanging(finding.text, column));
    if (finding.remedy.empty()) continue;
    text += std::string(column, ' ') + "-> " + hanging(finding.remedy, column + 3) + "\n";
  }
  return text + host_name() + ": " + counted(count(findings, Verdict::kProblem), "problem") + ", " +
         counted(count(findings, Verdict::kWarning), "warning") + "\n";
}

std::string to_json(const Findings& findings) {
  nlohmann::ordered_json json = {{"host", host_name()},
                                 {"problems", count(findings, Verdict::kProblem)},
                                 {"warnings", count(findings, Verdict::kWarning)},
                                 {"findings", nlohmann::ordered_json::array()}};
  for (const Finding& finding : findings) {
    json["findings"].push_back({{"topic", finding.topic},
                                {"verdict", name_of(finding.verdict)},
                                {"text", finding.text},
                                {"remedy", finding.remedy},
                                {"values", finding.values}});
  }
  return json_text(json, 2) + "\n";
}

}  // namespace mnist_train::doctor
