// An IDX file, raw or compressed.

#include "base/error.h"
#include "data/pixel_files.h"
#include "fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const InputFile file(data, size);
  try {
    mnist_train::data::IdxReader reader(file.path());
    std::size_t product = 1;
    for (const std::int64_t dimension : reader.shape()) {
      product *= static_cast<std::size_t>(dimension);
    }
    constexpr std::int64_t kLimit = 65536;
    const std::size_t read = reader.holds_bytes()
                                 ? reader.read().values.size()
                                 : reader.read_numbers(/*stride=*/1, kLimit, "label").size();
    if (product != read) std::abort();
  } catch (const mnist_train::Error&) {
  }
  return 0;
}
