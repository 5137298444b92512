#include "base/system.h"

#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <stdexcept>

#include "base/file.h"
#include "support/catch.h"
#include "support/file_size_limit.h"
#include "support/temp_folder.h"

namespace mnist_train {
namespace {

using namespace testing;

TEST_CASE("values are read from the kernel's files") {
  const testing::TempFolder folder;
  const auto file = folder.write("file", "model name\t: One \nMemFree:   12 kB\n");
  CHECK(value_of(file, "model name") == "One");
  CHECK(number_in(value_of(file, "MemFree")) == 12);
  CHECK_FALSE(value_of(file, "flags"));
  CHECK_FALSE(number_in("max"));
  CHECK_FALSE(first_line(folder.path() / "none"));
}

TEST_CASE("sizes are rounded up to whole cache lines") {
  CHECK(cache_aligned(0) == 0);
  CHECK(cache_aligned(1) == 64);
  CHECK(cache_aligned(64) == 64);
  CHECK(cache_aligned(65) == 128);
}

TEST_CASE("a started thread blocks all signals, and the calling thread's mask is unchanged") {
  sigset_t before;
  REQUIRE(::pthread_sigmask(SIG_SETMASK, nullptr, &before) == 0);
  sigset_t inside;
  ::sigemptyset(&inside);
  start_thread([&] { ::pthread_sigmask(SIG_SETMASK, nullptr, &inside); }).join();
  sigset_t after;
  REQUIRE(::pthread_sigmask(SIG_SETMASK, nullptr, &after) == 0);
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGCHLD}) {
    CHECK(::sigismember(&inside, signal) == 1);
    CHECK(::sigismember(&after, signal) == ::sigismember(&before, signal));
  }
}

TEST_CASE("a task rethrows its exception, and its destructor waits for the work") {
  auto failed = start_task([] { throw std::runtime_error("reason"); });
  CHECK_THROWS_AS(failed.get(), std::runtime_error);
  std::atomic<bool> is_done{false};
  (void)start_task([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    is_done = true;
  });
  CHECK(is_done);
}

TEST_CASE("the process state distinguishes running processes from zombies") {
  CHECK(process_state(::getpid()) == 'R');
  CHECK_FALSE(process_is_exiting(::getpid()));
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(0);
  REQUIRE(pid > 0);
  siginfo_t info{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT) == 0);
  CHECK(process_state(pid) == 'Z');
  CHECK(process_is_exiting(pid));
  ::waitpid(pid, nullptr, 0);
  CHECK_FALSE(process_state(pid));
}

constexpr double kMiB = 1 << 20;

/// The kernel's files that describe a process in the cgroup /job/task.
struct Kernel : TempFolder {
  explicit Kernel(int cgroups) : version(cgroups) {
    write("proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n");
    write("proc/vmstat", "pgfault 12\noom_kill 3\n");
    write("proc/self/cgroup",
          version == 2 ? "0::/job/task\n"
                       : "5:cpu,cpuacct:/job/task\n4:memory:/job/task\n1:name=systemd:/\n0::/\n");
    for (const char* group : {"", "job", "job/task"}) counts(group, 0, 0);
  }

  std::filesystem::path folder(const std::string& controller, const std::string& group) const {
    const std::filesystem::path top = "sys/fs/cgroup";
    return (version == 2 ? top : top / controller) / group;
  }
  void put(const std::string& group, const char* name, const std::string& text) const {
    const std::string file = name;
    write(folder(file.substr(0, file.find('.')), group) / name, text);
  }
  void limit(const std::string& group, const std::string& bytes) const {
    put(group, version == 2 ? "memory.max" : "memory.limit_in_bytes", bytes + "\n");
  }
  void counts(const std::string& group, int kills, int hits) const {
    const std::string kill_line = "oom_kill " + std::to_string(kills) + "\n";
    if (version == 2) {
      put(group, "memory.events", "max 9\noom " + std::to_string(hits) + "\n" + kill_line);
      put(group, "memory.events.local", "oom " + std::to_string(hits) + "\n" + kill_line);
    } else {
      put(group, "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n" + kill_line);
      put(group, "memory.failcnt", std::to_string(hits) + "\n");
    }
  }

  int version;
};

TEST_CASE("a process is limited by its cgroup and its ancestors") {
  for (const int version : {1, 2}) {
    INFO("version " << version);
    const Kernel kernel(version);
    const auto groups = cgroups("memory", kernel.path());
    REQUIRE(groups.size() == 3);
    const auto top = kernel.path() / kernel.folder("memory", "");
    CHECK(groups[0].folder == top / "job/task");
    CHECK(groups[1].folder == top / "job");
    CHECK(groups[2].folder ==
          kernel.path() / (version == 2 ? "sys/fs/cgroup" : "sys/fs/cgroup/memory"));
    CHECK(groups[0].version == version);
  }
}

TEST_CASE("a container sees its cgroup as the root") {
  const TempFolder root;
  const auto top = root.write("sys/fs/cgroup/cpu/cpu.shares", "40\n").parent_path();
  for (const char* path : {"/docker/ab", "/docker/ab/", "/elsewhere", "/../../other", "/"}) {
    INFO(path);
    root.write("proc/self/cgroup", std::string("8:cpu:") + path + "\n");
    const auto groups = cgroups("cpu", root.path());
    REQUIRE(groups.size() == 1);
    CHECK(groups[0].folder == top);
  }
  CHECK(cgroups("memory", root.path()).empty());
}

TEST_CASE("the smallest CPU quota limits the usable cores") {
  cpu_set_t mask;
  REQUIRE(::sched_getaffinity(0, sizeof mask, &mask) == 0);
  const int all = CPU_COUNT(&mask);
  {
    const Kernel kernel(2);
    CHECK(usable_cores(kernel.path()) == all);
    kernel.put("job", "cpu.max", "100000 100000\n");
    kernel.put("job/task", "cpu.max", "max 100000\n");
    CHECK(usable_cores(kernel.path()) == 1);
    kernel.put("job", "cpu.max", "5000 100000\n");
    CHECK(usable_cores(kernel.path()) == 1);
    kernel.put("job", "cpu.max", std::to_string((all + 1) * 100000) + " 100000\n");
    CHECK(usable_cores(kernel.path()) == all);
  }
  const Kernel kernel(1);
  kernel.put("job", "cpu.cfs_quota_us", "-1\n");
  kernel.put("job", "cpu.cfs_period_us", "100000\n");
  CHECK(usable_cores(kernel.path()) == all);
  kernel.put("job", "cpu.cfs_quota_us", "150000\n");
  CHECK(usable_cores(kernel.path()) == 1);
}

TEST_CASE("a process bound to one CPU has one usable core") {
  cpu_set_t before;
  REQUIRE(::sched_getaffinity(0, sizeof before, &before) == 0);
  const int all = usable_cores();
  CHECK(all >= 1);
  CHECK(all <= CPU_COUNT(&before));
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &before)) continue;
    CPU_SET(core, &one);
    break;
  }
  REQUIRE(::sched_setaffinity(0, sizeof one, &one) == 0);
  const int bound = usable_cores();
  REQUIRE(::sched_setaffinity(0, sizeof before, &before) == 0);
  CHECK(bound == 1);
}

TEST_CASE("memory is limited by the cgroups, and file cache counts as available") {
  for (const int version : {1, 2}) {
    INFO("version " << version);
    const Kernel kernel(version);
    kernel.limit("job/task", version == 2 ? "max" : "9223372036854771712");
    const SystemMemory all = system_memory(kernel.path());
    CHECK_FALSE(all.limited);
    CHECK(all.total == 8192 * kMiB);
    CHECK(all.available == 4096 * kMiB);

    kernel.limit("job", "1073741824");
    kernel.put("job", version == 2 ? "memory.current" : "memory.usage_in_bytes", "943718400\n");
    kernel.put("job", "memory.stat",
               version == 2 ? "anon 5\ninactive_file 104857600\nactive_file 314572800\n"
                            : "total_inactive_file 104857600\ntotal_active_file 314572800\n");
    const SystemMemory memory = system_memory(kernel.path());
    CHECK(memory.limited);
    CHECK(memory.total == 1024 * kMiB);
    CHECK(memory.available == (1024 - 900 + 400) * kMiB);
  }
  CHECK(system_memory().available > 0);
  const TempFolder without_meminfo;
  CHECK(system_memory(without_meminfo.path()).available > 0);
}

TEST_CASE("an out-of-memory kill is reported once, with its limit") {
  for (const int version : {1, 2}) {
    INFO("version " << version);
    const Kernel kernel(version);
    kernel.limit("job", "536870912");
    kernel.limit("job/task", "1073741824");
    OomKills kills(kernel.path());
    kernel.counts("job/task", 0, version == 1 ? 7 : 0);  // memory was reclaimed without a kill
    CHECK_FALSE(kills.new_kill());
    kernel.counts("job/task", 1, version == 1 ? 7 : 0);
    kernel.counts("job", 1, 2);
    const auto limit = kills.new_kill();
    REQUIRE(limit);
    const char* file = version == 2 ? "memory.max" : "memory.limit_in_bytes";
    const auto group = kernel.path() / kernel.folder("memory", "job");
    CHECK(*limit ==
          "the 512 MiB that " + std::string(file) + " of cgroup " + group.string() + " allows");
    CHECK_FALSE(kills.new_kill());
    kernel.counts("job/task", 2, 9);
    CHECK_THAT(kills.new_kill().value_or(""), ContainsSubstring("the 1 GiB that"));
  }
}

TEST_CASE("an out-of-memory kill without a cgroup limit is due to the machine's memory") {
  const Kernel kernel(2);
  OomKills kills(kernel.path());
  kernel.write("proc/vmstat", "oom_kill 4\n");
  CHECK_FALSE(kills.new_kill());  // the kill was in another cgroup
  kernel.counts("job/task", 1, 0);
  CHECK_THAT(kills.new_kill().value_or(""), ContainsSubstring("the 8 GiB of this machine"));

  const TempFolder bare;  // the root cgroup of version 2 has no counters
  bare.write("proc/meminfo", "MemTotal: 8388608 kB\n");
  OomKills machine_kills(bare.path());
  CHECK_FALSE(machine_kills.new_kill());
  bare.write("proc/vmstat", "oom_kill 1\n");
  CHECK(machine_kills.new_kill());
}

TEST_CASE("memory sizes are written in binary units") {
  CHECK(memory_text(512) == "512 bytes");
  CHECK(memory_text(1023 * kMiB) == "1023 MiB");
  CHECK(memory_text(1536 * kMiB) == "1.5 GiB");
}

TEST_CASE("an error names the limit that caused it and how to raise it") {
  CHECK(error_text(ENOENT) == "No such file or directory");
  CHECK_THAT(error_text(ENOSPC), ContainsSubstring("free some space"));
  CHECK_THAT(error_text(EAGAIN), ContainsSubstring("a limit on processes and threads"));
  CHECK_THAT(error_text(EMFILE), ContainsSubstring("ulimit -n is "));
  CHECK(error_text(EFBIG) == "File too large");
  const FileSizeLimit limit(3 << 20);
  CHECK_THAT(error_text(EFBIG), ContainsSubstring("(ulimit -f is 3 MiB)"));
}

TEST_CASE("functions of a library are found by name") {
  const SharedLibrary library("libm.so.6");
  REQUIRE(library.loaded());
  CHECK(library.error().empty());
  const auto root = library.find<double(double)>("sqrt");
  REQUIRE(root != nullptr);
  CHECK(root(9) == 3);
  CHECK(library.find<void()>("mnist_train_no_such_function") == nullptr);
}

TEST_CASE("a missing library has an error message and no functions") {
  const SharedLibrary library("libmnist-train-nowhere.so");
  CHECK_FALSE(library.loaded());
  CHECK_THAT(library.error(), Catch::Matchers::ContainsSubstring("libmnist-train-nowhere.so"));
  CHECK(library.find<void()>("sqrt") == nullptr);
}

TEST_CASE("programs and modules are found next to the executable") {
  const auto name = std::filesystem::read_symlink("/proc/self/exe").filename();
  CHECK(find_program_file(name.string()) == executable_folder() / name);
  CHECK(find_program_file("mnist-train-nothing").empty());
}

}  // namespace
}  // namespace mnist_train
