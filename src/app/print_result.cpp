#include "app/print_result.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/file.h"

namespace mnist_train::app {

void print_result(const nlohmann::ordered_json& json) {
  const std::string line =
      json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  if (write_all(STDOUT_FILENO, line.data(), line.size())) return;
  throw Error(ExitCode::kRunFailed,
              std::string("cannot write to standard output: ") + std::strerror(errno));
}

}  // namespace mnist_train::app
