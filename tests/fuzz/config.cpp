// An untrusted config: it is refused, or its effective config must survive a round trip.

#include "base/error.h"
#include "fuzz/input.h"
#include "settings/run_config.h"

namespace {

mnist_train::settings::RunConfig read(const std::string& text) {
  return mnist_train::settings::parse_run_config({"fuzz", text, "/"});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using mnist_train::settings::write_run_config;
  std::string effective;
  try {
    effective = write_run_config(read({reinterpret_cast<const char*>(data), size}), true);
  } catch (const mnist_train::Error&) {
    return 0;
  }
  if (write_run_config(read(effective), true) != effective) std::abort();
  return 0;
}
