#include "app/report_failure.h"

#include <time.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/log.h"
#include "launch/failure_report.h"
#include "launch/worker_process.h"

namespace mnist_train::app {

namespace {

/// The form that torchrun reads back into its own report. A `py_callstack`, even an empty one,
/// would be shown instead of the message.
void write_elastic_error_file(const std::string& message) {
  const auto path = launch::environment_variable("TORCHELASTIC_ERROR_FILE");
  if (!path || path->empty()) return;
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

std::string where(Worker* worker) {
  return worker == nullptr ? "while starting" : "in " + launch::describe(worker->status());
}

}  // namespace

ExitCode report_failure(const std::exception& error, Worker* worker) {
  const launch::FailureReport report = launch::report_for(error);
  if (launch::was_handed_over("failure")) {
    const std::string text = launch::to_text(report);
    (void)write_all(launch::kFailureFd, text.data(), text.size());
    return report.code;
  }
  const std::string rank = launch::environment_variable("RANK").value_or("0");
  const std::string line = "mnist-train failed: rank " + rank + " on " + report.host + " " +
                           where(worker) + ": " + as_block(report.message) + "\n";
  (void)write_all(STDERR_FILENO, line.data(), line.size());
  write_elastic_error_file(report.message);
  return report.code;
}

}  // namespace mnist_train::app
