// A picture in any supported format.

#include "base/error.h"
#include "fuzz/input.h"
#include "imaging/codec.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    (void)mnist_train::imaging::decode({data, size}, "fuzz", {.max_pixels = 1 << 22});
  } catch (const mnist_train::Error&) {
  }
  return 0;
}
