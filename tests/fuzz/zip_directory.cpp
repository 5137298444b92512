// The central directory of a .pt file, which is a zip archive.

#include <stdexcept>

#include "checkpoint/tensor_file.h"
#include "fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    (void)mnist_train::checkpoint::zip_checksums({data, size});
  } catch (const std::runtime_error&) {
  }
  return 0;
}
