#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <spdlog/fmt/fmt.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/cpu.h"
#include "base/file.h"
#include "base/system.h"
#include "data/dataset.h"
#include "data/image_decoder.h"
#include "data/sources.h"
#include "doctor/doctor.h"
#include "launch/placement.h"
#include "launch/worker_identity.h"
#include "launch/worker_process.h"
#include "report/run_folder.h"

namespace mnist_train::doctor {

namespace fs = std::filesystem;

namespace {

constexpr double kMega = 1e6;

Finding check_open_files() {
  constexpr rlim_t kLeast = 64;  // sockets, pipes, libraries and data of one rank
  constexpr rlim_t kComfortable = 1024;
  rlimit limit{};
  const rlim_t files = ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
  Finding finding{"open files", Verdict::kGood, "unlimited", "", {{"limit", files}}};
  if (files != RLIM_INFINITY) finding.text = std::to_string(files);
  if (files >= kComfortable) return finding;
  return finding.with(files < kLeast ? Verdict::kProblem : Verdict::kWarning, " for each process",
                      "raise the limit: ulimit -n 65536, or nofile in /etc/security/limits.conf");
}

Finding check_processor() {
  const std::string model = value_of("/proc/cpuinfo", "model name").value_or("unknown model");
  const int usable = usable_cores();
  const auto present = static_cast<int>(std::thread::hardware_concurrency());
  Finding finding{"processor", Verdict::kGood, "", "", {{"cores", usable}}};
  finding.text = fmt::format("{}, {} core{}{}, bf16 {}", model, usable, usable == 1 ? "" : "s",
                             usable < present ? fmt::format(" of {}", present) : "",
                             cpu_features().avx512_bf16 ? "native" : "not native");
  return finding;
}

Finding check_memory() {
  const SystemMemory memory = system_memory();
  Finding finding{"memory", Verdict::kGood, "", "", {{"available_bytes", memory.available}}};
  finding.text =
      fmt::format("{} of {} free{}", memory_text(memory.available), memory_text(memory.total),
                  memory.limited ? " (the limit of its cgroup)" : "");
  if (memory.available >= 2000 * kMega) return finding;
  return finding.with(
      memory.available < 400 * kMega ? Verdict::kProblem : Verdict::kWarning, "",
      "a process takes about 350 MB: free memory, or start fewer (--nproc-per-node 1)");
}

struct Interface {
  std::string name;
  std::string address;
  bool loopback = false;
};

std::string address_text(const sockaddr& address) {
  std::array<char, NI_MAXHOST> text{};
  const socklen_t size = address.sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (::getnameinfo(&address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) {
    return "";
  }
  return text.data();
}

/// Returns the interfaces that are up, one entry for each address.
std::vector<Interface> interfaces() {
  ifaddrs* list = nullptr;
  std::vector<Interface> found;
  if (::getifaddrs(&list) != 0) return found;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const bool is_ip = entry->ifa_addr != nullptr && (entry->ifa_addr->sa_family == AF_INET ||
                                                      entry->ifa_addr->sa_family == AF_INET6);
    if (!is_ip || (entry->ifa_flags & IFF_UP) == 0) continue;
    found.push_back(
        {entry->ifa_name, address_text(*entry->ifa_addr), (entry->ifa_flags & IFF_LOOPBACK) != 0});
  }
  return found;
}

/// Returns the first address of a name, or nothing if it does not resolve.
std::optional<std::string> resolve(const std::string& name) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (::getaddrinfo(name.c_str(), nullptr, &hints, &list) != 0) return std::nullopt;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
  return address_text(*list->ai_addr);
}

/// Checks the interface on which Gloo listens for other hosts: the one in a variable, by default
/// that of the host's name.
Finding check_interface() {
  const std::vector<Interface> all = interfaces();
  Finding finding{"network"};
  if (const auto named = environment_variable("GLOO_SOCKET_IFNAME")) {
    finding.text = "GLOO_SOCKET_IFNAME is " + *named;
    const auto has_name = [&](const Interface& each) { return each.name == *named; };
    if (std::any_of(all.begin(), all.end(), has_name)) return finding;
    return finding.with(Verdict::kProblem, ", but there is no such interface, or it is down",
                        "name one of those that `ip -brief address` lists");
  }
  const std::string host = host_name();
  const auto address = resolve(host);
  const auto interface = std::find_if(all.begin(), all.end(), [&](const Interface& each) {
    return address && each.address == *address;
  });
  // Debian gives a host without a fixed address 127.0.1.1, which no interface has.
  const bool local = address && (address->starts_with("127.") || *address == "::1");
  if (interface != all.end() && !local) {
    finding.text = host + " is " + *address + " on " + interface->name;
    return finding;
  }
  std::string choice = "eth0";
  for (const Interface& candidate : all) {
    if (!candidate.loopback) choice = candidate.name;
  }
  return finding.with(
      Verdict::kNote,
      fmt::format("the host's name {} {}", host,
                  !address ? "does not resolve"
                  : local  ? "is " + *address + ", which other hosts cannot reach"
                           : "is " + *address + ", which is on none of its interfaces"),
      "for runs on several hosts name the interface: GLOO_SOCKET_IFNAME=" + choice);
}

std::optional<Finding> check_master() {
  const auto address = environment_variable("MASTER_ADDR");
  if (!address) return std::nullopt;
  if (const auto resolved = resolve(*address)) {
    return Finding{"MASTER_ADDR", Verdict::kGood, *address + " is " + *resolved};
  }
  return Finding{"MASTER_ADDR", Verdict::kProblem, *address + " does not resolve",
                 "set it to an address or name of the first host that every host resolves"};
}

Finding check_loopback() {
  return problem_if_throws("ports", "bring the loopback interface up: ip link set lo up", [] {
    const launch::ListenSocket socket = launch::listen_on_loopback();
    return Finding{"ports", Verdict::kGood, "can listen on 127.0.0.1"};
  });
}

Finding check_launcher() {
  constexpr const char* kRemedy =
      "unset these variables, or start it with the launcher that sets all of them";
  return problem_if_throws("launcher", kRemedy, [] {
    const auto identity = launch::identity_from_environment();
    if (!identity) return Finding{"launcher", Verdict::kGood, "its own"};
    return Finding{"launcher", Verdict::kGood,
                   fmt::format("{}: rank {} of {} (from {})", launch::name_of(identity->launcher),
                               identity->rank, identity->world_size, identity->decided_by)};
  });
}

constexpr const char* kSeeAbove = "the message above says what to do";

fs::path nearest_existing(fs::path folder) {
  std::error_code ignored;
  while (!fs::is_directory(folder, ignored) && folder.has_relative_path()) {
    folder = folder.parent_path();
  }
  return folder;
}

fs::path output_of(const settings::RunConfig& config) {
  return config.output.value_or(fs::current_path() / "runs");
}

/// Makes a file in the folder that is removed when it is closed. Sets errno on failure.
UniqueFd scratch_file(const fs::path& folder) {
  std::string name = (folder / ".mnist-train-doctor-XXXXXX").string();
  UniqueFd file(::mkostemp(name.data(), O_CLOEXEC));
  if (file.valid()) ::unlink(name.c_str());
  return file;
}

/// Names the features that the file system of a folder lacks, "" if none; nothing if no file can be
/// made there.
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
    return {topic, Verdict::kGood, data::find_named_dataset(row, config.data.root).string()};
  } catch (const Error& error) {
    if (is_needed) return {topic, Verdict::kProblem, error.what(), kSeeAbove};
    return {topic, Verdict::kNote, "not here",
            "only runs that name it need it: " + data::fetch_command(row)};
  }
}

/// Opens the data as a run would, but reads no images.
Finding check_format(const settings::DataOptions& options) {
  return problem_if_throws("data", kSeeAbove, [&options] {
    data::require_decoder(options.decode);
    const data::DatasetReader reader(options);
    Finding finding{"data"};
    finding.text =
        fmt::format("{} training and {} test images", reader.train_count(), reader.test_count());
    finding.values = {{"train", reader.train_count()}, {"test", reader.test_count()}};
    return finding;
  });
}

}  // namespace

Findings check_host() { return {check_processor(), check_memory(), check_open_files()}; }

Findings check_network() {
  Findings findings{check_loopback(), check_interface()};
  if (auto master = check_master()) findings.push_back(std::move(*master));
  findings.push_back(check_launcher());
  return findings;
}

Finding check_run_folder(const settings::RunConfig& config) {
  const fs::path output = output_of(config);
  const fs::path folder = nearest_existing(output);
  Finding finding{"run folder", Verdict::kGood, "", "", {{"folder", folder.string()}}};
  if (!scratch_file(folder).valid()) {
    return finding.with(Verdict::kProblem,
                        folder.string() + " cannot be written: " + std::strerror(errno),
                        "name another folder: --output DIR");
  }
  const double free = free_space(folder).value_or(0);
  finding.values["free_bytes"] = free;
  finding.text = fmt::format("{}: {} free", output.string(), memory_text(free));
  if (free >= 1000 * kMega) {
    if (!config.output) return finding;
    try {
      report::check_run_folder(config, /*config_name=*/"", /*resume=*/"");
      return finding;
    } catch (const Error& error) {  // as at a start: the folder holds a run or is in use
      return {"run folder", Verdict::kWarning, error.what(), kSeeAbove, finding.values};
    }
  }
  return finding.with(free < 50 * kMega ? Verdict::kProblem : Verdict::kWarning, "",
                      "a checkpoint takes up to 90 MB (resnet18 with momentum) and four are kept: "
                      "free some space, or lower checkpoint.keep");
}

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
  if (tested.empty()) return {"file locks", Verdict::kNote, "not tested: no folder can be written"};
  if (problems.empty()) return {"file locks", Verdict::kGood, tested};
  return {"file locks", Verdict::kWarning, problems,
          "runs work, but without locks nothing keeps two out of one folder (Lustre has them if it "
          "is mounted with -o flock), and without syncing a crash of the machine may cost the "
          "newest files"};
}

Findings check_data(const settings::RunConfig& config) {
  Findings findings;
  if (config.data.format) findings.push_back(check_format(config.data));
  for (const settings::NamedDataset& row : settings::named_datasets()) {
    findings.push_back(check_named_set(row, config));
  }
  return findings;
}

}  // namespace mnist_train::doctor
