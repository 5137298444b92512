#include "report/metrics_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>

namespace mnist_train::report {

namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const char* action) {
  throw Error(ExitCode::kRunFailed,
              path.string() + ": cannot " + action + ": " + std::strerror(errno));
}

/// Seconds since 1970.
double wall_clock() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

}  // namespace

MetricsLog::MetricsLog(const std::filesystem::path& path, std::int64_t keep_bytes)
    : path_(path),
      fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0644)) {
  struct stat status {};
  if (!fd_.valid() || ::fstat(fd_.get(), &status) != 0) fail(path_, "open");
  bytes_ = std::min<std::int64_t>(keep_bytes, status.st_size);
  if (::ftruncate(fd_.get(), bytes_) != 0) fail(path_, "cut back");
}

void MetricsLog::write(const StepRecord& record) {
  const nlohmann::ordered_json json = {{"event", "step"},
                                       {"epoch", record.epoch},
                                       {"step", record.step},
                                       {"loss", record.loss},
                                       {"learning_rate", record.learning_rate},
                                       {"samples_per_second", record.samples_per_second},
                                       {"time", wall_clock()}};
  write_line(json.dump());
}

void MetricsLog::write(const EpochRecord& record) {
  nlohmann::ordered_json json = {{"event", "epoch"},
                                 {"epoch", record.epoch},
                                 {"step", record.step},
                                 {"train_loss", record.train_loss},
                                 {"train_accuracy", record.train_accuracy},
                                 {"test_loss", record.test_loss},
                                 {"test_accuracy", record.test_accuracy},
                                 {"train_seconds", record.train_seconds},
                                 {"test_seconds", record.test_seconds},
                                 {"samples_per_second", record.samples_per_second},
                                 {"time", wall_clock()}};
  if (record.validation_accuracy) {
    json["validation_loss"] = *record.validation_loss;
    json["validation_accuracy"] = *record.validation_accuracy;
  }
  write_line(json.dump());
}

void MetricsLog::write_line(const std::string& line) {
  const std::string text = line + "\n";
  if (!write_all(fd_.get(), text.data(), text.size())) fail(path_, "write");
  bytes_ += static_cast<std::int64_t>(text.size());
}

}  // namespace mnist_train::report
