#include "launch/elastic_error_file.h"

#include <spdlog/spdlog.h>
#include <time.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "launch/worker_identity.h"

namespace mnist_train::launch {

void write_elastic_error_file(const std::string& message) {
  const auto path = environment_variable("TORCHELASTIC_ERROR_FILE");
  if (!path || path->empty()) return;
  // A `py_callstack`, even an empty one, would be shown instead of the message.
  const nlohmann::json json = {
      {"message",
       {{"message", message}, {"extraInfo", {{"timestamp", std::to_string(::time(nullptr))}}}}}};
  try {
    write_file_atomically(*path,
                          json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
                          ExitCode::kRunFailed);
  } catch (const Error& error) {
    spdlog::warn("{}", error.what());
  }
}

}  // namespace mnist_train::launch
