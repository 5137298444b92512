#include "support/fake_gpu/message.h"

#include <unistd.h>

#include <mutex>
#include <set>

namespace mnist_train::fake_gpu {

void write_line(const std::string& text) {
  const std::string line = "[fake_gpu " + std::to_string(::getpid()) + "] " + text + "\n";
  // Failing to write a message must not affect the program.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

int not_implemented(const char* function, int error) {
  static std::mutex mutex;
  static auto& said = *new std::set<std::string, std::less<>>();
  const std::lock_guard lock(mutex);
  if (said.emplace(function).second) say_misuse(function, "is not implemented by the mock");
  return error;
}

}  // namespace mnist_train::fake_gpu
