// The pickle inside a .pt file.

#include <stdexcept>

#include "checkpoint/tensor_file.h"
#include "fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    for (const auto& [name, tensor] : mnist_train::checkpoint::unpickle_state_dict(
             {reinterpret_cast<const char*>(data), size})) {
      (void)tensor.required_elements();
    }
  } catch (const std::runtime_error&) {
  }
  return 0;
}
