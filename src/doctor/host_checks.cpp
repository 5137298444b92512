#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <spdlog/fmt/fmt.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/timex.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>

#include "base/cgroups.h"
#include "base/limits.h"
#include "base/system.h"
#include "doctor/checks.h"
#include "launch/listen_socket.h"
#include "launch/placement.h"
#include "launch/worker_identity.h"

namespace mnist_train::doctor {

namespace {

constexpr double kMega = 1e6;

std::string limit_text(rlim_t limit) {
  return limit == RLIM_INFINITY ? "unlimited" : std::to_string(limit);
}

rlim_t soft_limit(int resource) {
  rlimit limit{};
  return ::getrlimit(static_cast<__rlimit_resource>(resource), &limit) == 0 ? limit.rlim_cur
                                                                            : RLIM_INFINITY;
}

Finding check_open_files() {
  constexpr rlim_t kLeast = 64;  // sockets, pipes, libraries and data of one rank
  constexpr rlim_t kComfortable = 1024;
  const rlim_t files = soft_limit(RLIMIT_NOFILE);
  Finding finding{"open files", Verdict::kGood, limit_text(files), "", {{"limit", files}}};
  if (files >= kComfortable) return finding;
  finding.verdict = files < kLeast ? Verdict::kProblem : Verdict::kWarning;
  finding.text += " for each process";
  finding.remedy = "raise the limit: ulimit -n 65536, or nofile in /etc/security/limits.conf";
  return finding;
}

Finding check_processes() {
  constexpr double kComfortable = 512;  // threads count as well
  for (const ProcessLimit& limit : process_limits()) {
    if (limit.most - limit.used >= kComfortable) continue;
    return {"processes", Verdict::kWarning,
            fmt::format("{} allows {:.0f}, threads included, and {:.0f} are in use", limit.name,
                        limit.most, limit.used),
            "raise ulimit -u, or the container's limit (docker run --pids-limit)"};
  }
  return {"processes", Verdict::kGood, "enough"};
}

Finding check_locked_memory() {
  const rlim_t bytes = soft_limit(RLIMIT_MEMLOCK);
  std::error_code ignored;
  const bool infiniband = std::filesystem::exists("/sys/class/infiniband", ignored) &&
                          !std::filesystem::is_empty("/sys/class/infiniband", ignored);
  Finding finding{"locked memory", Verdict::kGood, limit_text(bytes)};
  if (bytes != RLIM_INFINITY) finding.text = bytes_text(static_cast<double>(bytes));
  if (!infiniband || bytes == RLIM_INFINITY) return finding;
  finding.verdict = Verdict::kWarning;
  finding.text += ", but InfiniBand needs it to be unlimited";
  finding.remedy =
      "ulimit -l unlimited, memlock in /etc/security/limits.conf, or LimitMEMLOCK=infinity of "
      "slurmd";
  return finding;
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

/// Returns the first address of a name, or nothing when it does not resolve.
std::optional<std::string> resolve(const std::string& name) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (::getaddrinfo(name.c_str(), nullptr, &hints, &list) != 0) return std::nullopt;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
  return address_text(*list->ai_addr);
}

const Interface* find_by_address(const std::vector<Interface>& all, const std::string& address) {
  for (const Interface& candidate : all) {
    if (candidate.address == address) return &candidate;
  }
  return nullptr;
}

/// Checks the interface on which Gloo listens for other hosts: the one that a variable names, else
/// that of the host's name.
Finding check_interface(const std::vector<Interface>& all) {
  Finding finding{"network"};
  if (const auto named = environment_variable("GLOO_SOCKET_IFNAME")) {
    finding.text = "GLOO_SOCKET_IFNAME is " + *named;
    const auto has_name = [&](const Interface& each) { return each.name == *named; };
    if (std::any_of(all.begin(), all.end(), has_name)) return finding;
    finding.verdict = Verdict::kProblem;
    finding.text += ", but there is no such interface, or it is down";
    finding.remedy = "name one of those that `ip -brief address` lists";
    return finding;
  }
  const std::string host = host_name();
  const auto address = resolve(host);
  const Interface* interface = address ? find_by_address(all, *address) : nullptr;
  // Debian gives a host without a fixed address 127.0.1.1, which no interface has.
  const bool local = address && (address->starts_with("127.") || *address == "::1");
  if (interface != nullptr && !local) {
    finding.text = host + " is " + *address + " on " + interface->name;
    return finding;
  }
  finding.verdict = Verdict::kNote;
  finding.text = fmt::format("the host's name {} {}", host,
                             !address ? "does not resolve"
                             : local  ? "is " + *address + ", which other hosts cannot reach"
                                      : "is " + *address + ", which is on none of its interfaces");
  finding.remedy = "for runs on several hosts name the interface: GLOO_SOCKET_IFNAME=";
  std::string choice = "eth0";
  for (const Interface& candidate : all) {
    if (!candidate.loopback) choice = candidate.name;
  }
  finding.remedy += choice;
  return finding;
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

}  // namespace

Finding check_processor() {
  const std::string model = value_of("/proc/cpuinfo", "model name").value_or("unknown model");
  const std::string flags = " " + value_of("/proc/cpuinfo", "flags").value_or("") + " ";
  const auto has = [&](const char* flag) {
    return flags.find(" " + std::string(flag) + " ") != std::string::npos;
  };
  const int usable = usable_cores();
  const auto present = static_cast<int>(std::thread::hardware_concurrency());
  Finding finding{"processor", Verdict::kGood, "", "", {{"cores", usable}}};
  finding.text = fmt::format("{}, {} core{}{}, bf16 {}", model, usable, usable == 1 ? "" : "s",
                             usable < present ? fmt::format(" of {}", present) : "",
                             has("avx512_bf16") ? "native" : "not native");
#if defined(__x86_64__)
  if (!has("avx2")) {
    finding.verdict = Verdict::kWarning;
    finding.text += ", without AVX2";
    finding.remedy = "LibTorch is several times slower on it; use a processor from after 2013";
  }
#endif
  return finding;
}

Finding check_memory() {
  const SystemMemory memory = system_memory();
  Finding finding{"memory", Verdict::kGood, "", "", {{"available_bytes", memory.available}}};
  finding.text =
      fmt::format("{} of {} free{}", bytes_text(memory.available), bytes_text(memory.total),
                  memory.limited ? " (the limit of its cgroup)" : "");
  if (memory.available >= 2000 * kMega) return finding;
  finding.verdict = memory.available < 400 * kMega ? Verdict::kProblem : Verdict::kWarning;
  finding.remedy = "a process takes about 350 MB: free memory, or start fewer (--nproc-per-node 1)";
  return finding;
}

Findings check_limits() { return {check_open_files(), check_processes(), check_locked_memory()}; }

Finding check_clock() {
  constexpr std::time_t kDay_s = 86400;
  const std::time_t now = std::time(nullptr);
  struct stat program {};
  const bool known = ::stat("/proc/self/exe", &program) == 0;
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  Finding finding{"clock"};
  finding.text = fmt::format("{:04}-{:02}-{:02} {:02}:{:02} UTC", utc.tm_year + 1900,
                             utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min);
  if (known && now + kDay_s < program.st_mtime) {
    finding.verdict = Verdict::kWarning;
    finding.text += ", which is before this program was built";
    finding.remedy = "set the clock: names of runs and downloads over TLS depend on it";
    return finding;
  }
  timex state{};
  const int status = ::adjtimex(&state);  // modes 0: only asks
  const bool synchronised = status >= 0 && status != TIME_ERROR;
  finding.values["synchronised"] = synchronised;
  finding.text += synchronised ? ", synchronised" : ", not synchronised as far as the kernel knows";
  if (synchronised) return finding;
  finding.verdict = Verdict::kNote;
  finding.remedy = "timedatectl set-ntp true; logs of several hosts are compared by time";
  return finding;
}

Finding check_loopback() {
  return problem_if_throws("ports", "bring the loopback interface up: ip link set lo up", [] {
    const launch::ListenSocket socket = launch::listen_on_loopback();
    return Finding{"ports", Verdict::kGood, "can listen on 127.0.0.1"};
  });
}

Findings check_network() {
  Findings findings{check_interface(interfaces())};
  if (auto master = check_master()) findings.push_back(std::move(*master));
  return findings;
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

}  // namespace mnist_train::doctor
