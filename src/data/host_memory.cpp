#include "data/host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <utility>

#include "base/error.h"

namespace mnist_train::data {

std::shared_ptr<std::uint8_t> reserve_memory(std::size_t bytes, const std::string& name) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw Error(ExitCode::kData, name + ": no memory for its " + std::to_string(bytes) +
                                     " bytes: " + std::strerror(errno));
  }
  // Fewer page faults; a kernel that cannot says so, and nothing is lost.
  ::madvise(memory, bytes, MADV_HUGEPAGE);
  return {static_cast<std::uint8_t*>(memory), [bytes](std::uint8_t* p) { ::munmap(p, bytes); }};
}

std::int64_t available_memory_bytes() {
  std::int64_t available = std::numeric_limits<std::int64_t>::max();
  std::ifstream facts("/proc/meminfo");
  for (std::string name, line; facts >> name && std::getline(facts, line);) {
    if (name == "MemAvailable:") available = std::stoll(line) * 1024;
  }
  const auto number_in = [](const char* path) {
    std::int64_t number = -1;
    std::ifstream(path) >> number;  // "max" leaves it
    return number;
  };
  // Version 2 and version 1 of control groups, as a container sees its own.
  for (const auto& [limit, usage] :
       {std::pair("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        std::pair("/sys/fs/cgroup/memory/memory.limit_in_bytes",
                  "/sys/fs/cgroup/memory/memory.usage_in_bytes")}) {
    const std::int64_t most = number_in(limit);
    const std::int64_t used = number_in(usage);
    if (most > 0 && used >= 0)
      available = std::min(available, std::max<std::int64_t>(most - used, 0));
  }
  return available;
}

}  // namespace mnist_train::data
