#include "launch/failure_report.h"

#include <spdlog/spdlog.h>
#include <time.h>

#include <new>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/print.h"
#include "base/system.h"
#include "launch/worker_identity.h"

namespace mnist_train::launch {

namespace {

// JSON may need six bytes for one, and all of them must fit into a pipe of 64 KiB: the launcher
// reads the report only when the worker has ended.
constexpr std::size_t kMaxMessageBytes = 8192;

std::string shortened(const std::string& message) {
  if (message.size() <= kMaxMessageBytes) return message;
  return message.substr(0, kMaxMessageBytes) + " ... (" +
         std::to_string(message.size() - kMaxMessageBytes) + " bytes left out)";
}

bool is_failure(int code) {
  switch (static_cast<ExitCode>(code)) {
    case ExitCode::kRunFailed:
    case ExitCode::kConfig:
    case ExitCode::kData:
    case ExitCode::kDistributed:
    case ExitCode::kCheckpoint:
    case ExitCode::kInterrupted:
    case ExitCode::kTerminated:
      return true;
    default:
      return false;
  }
}

}  // namespace

std::string to_text(const FailureReport& failure) {
  return json_text(nlohmann::json{{"code", static_cast<int>(failure.code)},
                                  {"message", shortened(failure.message)},
                                  {"host", failure.host},
                                  {"is_victim", failure.is_victim}});
}

std::optional<FailureReport> failure_from_text(const std::string& text) try {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  FailureReport failure;
  const int code = json.value("code", 1);
  if (!is_failure(code)) return std::nullopt;
  failure.code = static_cast<ExitCode>(code);
  failure.message = json.value("message", "");
  failure.host = json.value("host", "");
  failure.is_victim = json.value("is_victim", false);
  return failure;
} catch (const nlohmann::json::type_error&) {
  return std::nullopt;
}

FailureReport report_for(const std::exception& error) {
  FailureReport failure{ExitCode::kRunFailed, error.what(), host_name(), false};
  if (const auto* own = dynamic_cast<const Error*>(&error)) failure.code = own->code();
  failure.is_victim = dynamic_cast<const PeerError*>(&error) != nullptr;
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) failure.message = kOutOfMemory;
  return failure;
}

bool is_users_mistake(ExitCode code, Phase phase) {
  if (code == ExitCode::kConfig || code == ExitCode::kData) return true;
  const bool writes_checkpoints = phase == Phase::kTraining || phase == Phase::kSaving;
  return code == ExitCode::kCheckpoint && !writes_checkpoints;
}

void write_elastic_error_file(const std::string& message) {
  const auto path = environment_variable("TORCHELASTIC_ERROR_FILE");
  if (!path || path->empty()) return;
  const auto timestamp = std::to_string(::time(nullptr));
  // A `py_callstack`, even an empty one, would be shown instead of the message.
  const nlohmann::json json = {
      {"message", {{"message", message}, {"extraInfo", {{"timestamp", timestamp}}}}}};
  try {
    write_file_atomically(*path, json_text(json), ExitCode::kRunFailed);
  } catch (const Error& error) {
    spdlog::warn("{}", error.what());
  }
}

}  // namespace mnist_train::launch
