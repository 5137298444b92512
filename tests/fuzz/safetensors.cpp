// A weights file or checkpoint: header, offsets, seal.

#include "base/error.h"
#include "checkpoint/tensor_file.h"
#include "fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const InputFile file(data, size);
  for (const bool require_seal : {false, true}) {
    try {
      std::size_t bytes = 0;
      for (const auto& [name, tensor] :
           mnist_train::checkpoint::read_safetensors(file.path(), require_seal).tensors) {
        bytes += tensor.nbytes();
      }
      if (bytes > size) std::abort();
    } catch (const mnist_train::Error&) {
    }
  }
  return 0;
}
