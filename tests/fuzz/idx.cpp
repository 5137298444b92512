// An IDX file, raw or compressed.

#include "base/error.h"
#include "data/sources.h"
#include "fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const InputFile file(data, size);
  try {
    const mnist_train::data::IdxFile read = mnist_train::data::read_idx_file(file.path());
    std::size_t product = 1;
    for (const std::int64_t dimension : read.shape) product *= static_cast<std::size_t>(dimension);
    const std::size_t bytes = read.values.size() / product;  // per element
    if (bytes * product != read.values.size() || (bytes != 1 && bytes != 2 && bytes != 4)) {
      std::abort();
    }
    (void)mnist_train::data::open_idx({file.path(), file.path()});
  } catch (const mnist_train::Error&) {
  }
  return 0;
}
