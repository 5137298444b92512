#include "comm/failures.h"

#include <c10/util/Exception.h>

#include <new>
#include <string_view>

namespace mnist_train::comm {

bool is_timeout(const std::exception& error) {
  const std::string_view text = error.what();
  return text.find("imed out") != std::string_view::npos ||
         text.find("timeout") != std::string_view::npos;  // NCCL's watchdog
}

bool is_own_fault(const std::exception& error) {
  return is_out_of_memory(error) || dynamic_cast<const c10::AcceleratorError*>(&error) != nullptr;
}

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  const std::string_view text = error.what();
  return dynamic_cast<const c10::Error*>(&error) != nullptr &&
         text.substr(0, text.find('\n')).find("DefaultCPUAllocator: ") != std::string_view::npos;
}

}  // namespace mnist_train::comm
