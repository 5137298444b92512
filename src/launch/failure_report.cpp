#include "launch/failure_report.h"

#include <unistd.h>

#include <array>
#include <new>
#include <nlohmann/json.hpp>

namespace mnist_train::launch {

namespace {

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown host";
}

}  // namespace

std::string to_text(const FailureReport& report) {
  const nlohmann::json json = {{"code", static_cast<int>(report.code)},
                               {"message", report.message},
                               {"host", report.host},
                               {"is_victim", report.is_victim}};
  // Messages can quote file names and data, which need not be UTF-8.
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::optional<FailureReport> failure_from_text(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  FailureReport report;
  report.code = static_cast<ExitCode>(json.value("code", 1));
  report.message = json.value("message", "");
  report.host = json.value("host", "");
  report.is_victim = json.value("is_victim", false);
  return report;
}

FailureReport report_for(const std::exception& error) {
  FailureReport report{ExitCode::kRunFailed, error.what(), host_name(), false};
  if (const auto* own = dynamic_cast<const Error*>(&error)) report.code = own->code();
  report.is_victim = dynamic_cast<const PeerError*>(&error) != nullptr;
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    report.message = "out of memory: lower batch_size, test_batch_size or the number of processes";
  }
  return report;
}

}  // namespace mnist_train::launch
