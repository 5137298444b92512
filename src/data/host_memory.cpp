#include "data/host_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

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

}  // namespace mnist_train::data
