#include "report/summary.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/version.h"

namespace mnist_train::report {

namespace {

using Json = nlohmann::ordered_json;

Json or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

Json versions() {
  const BuildInfo& build = build_info();
  return {{"mnist_train", build.version}, {"commit", build.commit}, {"compiler", build.compiler},
          {"libtorch", build.torch},      {"cuda", build.cuda},     {"nccl", build.nccl}};
}

Json to_json(const Summary& summary) {
  Json json = {{"status", summary.status}, {"epochs", summary.epochs}, {"steps", summary.steps}};
  json.update(identity_of(summary));
  json.update({{"startup_seconds", summary.startup_seconds},
               {"train_seconds", summary.train_seconds},
               {"test_seconds", summary.test_seconds},
               {"wall_seconds", summary.wall_seconds},
               {"checkpoint_seconds", summary.checkpoint_seconds},
               {"report_seconds", summary.report_seconds},
               {"samples_per_second", summary.samples_per_second},
               {"test_loss", or_null(summary.test_loss)},
               {"test_accuracy", or_null(summary.test_accuracy)},
               {"best_test_accuracy", or_null(summary.best_test_accuracy)},
               {"samples_seen", summary.samples_seen},
               {"peak_memory_bytes", summary.peak_memory_bytes}});
  if (summary.best_validation_accuracy) {
    json["validation_accuracy"] = or_null(summary.validation_accuracy);
    json["best_validation_accuracy"] = *summary.best_validation_accuracy;
  }
  if (!summary.error.empty()) json["error"] = summary.error;
  return json;
}

/// Returns a discarded value where the file is missing or not JSON.
Json read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  return Json::parse(file, nullptr, /*allow_exceptions=*/false);
}

void write_json(const std::filesystem::path& path, const Json& json) {
  write_file_atomically(path, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n",
                        ExitCode::kRunFailed);
}

bool has_status(const Json& summary, const char* status) {
  return summary.is_object() && summary.contains("status") && summary["status"] == status;
}

void no_longer_running(const std::filesystem::path& path, const Json& changes) try {
  Json summary = read_json(path);
  if (!has_status(summary, "running")) return;
  summary.update(changes);
  write_json(path, summary);
} catch (const Error&) {
}

}  // namespace

Json identity_of(const Summary& summary) {
  return {{"world_size", summary.world_size},
          {"launcher", summary.launcher},
          {"backend", summary.backend},
          {"device", summary.device},
          {"device_model", summary.device_model},
          {"precision", summary.precision},
          {"gradient_averaging", summary.averaging},
          {"execution", summary.execution},
          {"threads_per_process", summary.threads_per_process},
          {"restarts", summary.restarts},
          {"versions", versions()},
          {"config_hash", summary.config_hash},
          {"data_hash", summary.data_hash}};
}

void write_summary(const std::filesystem::path& path, const Summary& summary) {
  write_json(path, to_json(summary));
}

void record_failure(const std::filesystem::path& path, const std::string& error) {
  no_longer_running(path, {{"status", "failed"}, {"error", error}});
}

void record_stop(const std::filesystem::path& path) {
  no_longer_running(path, {{"status", "stopped"}});
}

bool says_finished(const std::filesystem::path& path) {
  return has_status(read_json(path), "finished");
}

void write_accuracies(const std::filesystem::path& path, const std::vector<double>& accuracies) {
  write_file_atomically(path, Json(accuracies).dump() + "\n", ExitCode::kRunFailed);
}

std::size_t count_accuracies(const std::filesystem::path& path) {
  const Json list = read_json(path);
  return list.is_array() ? list.size() : 0;
}

}  // namespace mnist_train::report
