#include <spdlog/fmt/fmt.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/timex.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <thread>

#include "base/system.h"
#include "doctor/checks.h"
#include "launch/machine.h"

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
  double most = static_cast<double>(soft_limit(RLIMIT_NPROC));
  if (const auto pids = number_in(first_line("/sys/fs/cgroup/pids.max"))) {
    most = std::min(most, *pids);
  }
  if (most >= kComfortable) return {"processes", Verdict::kGood, "enough"};
  return {"processes", Verdict::kWarning, fmt::format("at most {:.0f}, threads included", most),
          "raise ulimit -u, or the container's limit (docker run --pids-limit)"};
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

}  // namespace

Finding check_processor() {
  const std::string model = value_of("/proc/cpuinfo", "model name").value_or("unknown model");
  const std::string flags = " " + value_of("/proc/cpuinfo", "flags").value_or("") + " ";
  const auto has = [&](const char* flag) {
    return flags.find(" " + std::string(flag) + " ") != std::string::npos;
  };
  const int usable = launch::usable_cores();
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

}  // namespace mnist_train::doctor
