// An IDX file, raw or compressed.

#include "base/error.h"
#include "data/idx_source.h"
#include "fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const InputFile file(data, size);
  try {
    const mnist_train::data::IdxFile content = mnist_train::data::IdxReader(file.path()).read();
    std::size_t product = 1;
    for (const std::int64_t dimension : content.shape) {
      product *= static_cast<std::size_t>(dimension);
    }
    if (product != content.values.size()) std::abort();
  } catch (const mnist_train::Error&) {
  }
  return 0;
}
