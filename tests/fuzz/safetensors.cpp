// A weights file or checkpoint: header, offsets, seal, and facts about its run.

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "fuzz/input.h"

using namespace mnist_train::checkpoint;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const InputFile file(data, size);
  for (const bool require_seal : {false, true}) {
    try {
      const TensorFile content = read_safetensors(file.path(), require_seal);
      std::size_t bytes = 0;
      for (const auto& [name, tensor] : content.tensors) bytes += tensor.nbytes();
      if (bytes > size) std::abort();
      if (!is_checkpoint(content)) continue;
      (void)checkpoint_progress(content, "fuzz");
      (void)checkpoint_facts(content, "fuzz");
    } catch (const mnist_train::Error&) {
    }
  }
  return 0;
}
