#include "launch/failure_report.h"

#include <new>
#include <nlohmann/json.hpp>

#include "base/system.h"

namespace mnist_train::launch {

namespace {

// The launcher reads when the worker has ended, which first has to get rid of its report: it must
// fit into an unread pipe (64 KiB), however much of it JSON has to escape.
constexpr std::size_t kMaxMessage_bytes = 8192;

std::string shortened(const std::string& message) {
  if (message.size() <= kMaxMessage_bytes) return message;
  return message.substr(0, kMaxMessage_bytes) + " ... (" +
         std::to_string(message.size() - kMaxMessage_bytes) + " bytes left out)";
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

std::string to_text(const FailureReport& report) {
  const nlohmann::json json = {{"code", static_cast<int>(report.code)},
                               {"message", shortened(report.message)},
                               {"host", report.host},
                               {"is_victim", report.is_victim}};
  // Messages can quote file names and data, which need not be UTF-8.
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::optional<FailureReport> failure_from_text(const std::string& text) try {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  FailureReport report;
  const int code = json.value("code", 1);
  if (!is_failure(code)) return std::nullopt;
  report.code = static_cast<ExitCode>(code);
  report.message = json.value("message", "");
  report.host = json.value("host", "");
  report.is_victim = json.value("is_victim", false);
  return report;
} catch (const nlohmann::json::type_error&) {
  return std::nullopt;
}

FailureReport report_for(const std::exception& error) {
  FailureReport report{ExitCode::kRunFailed, error.what(), host_name(), false};
  if (const auto* own = dynamic_cast<const Error*>(&error)) report.code = own->code();
  report.is_victim = dynamic_cast<const PeerError*>(&error) != nullptr;
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    report.message = kOutOfMemory;
  }
  return report;
}

}  // namespace mnist_train::launch
