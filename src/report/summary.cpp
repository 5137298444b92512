#include "report/summary.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <fstream>

#include "base/file.h"
#include "base/json.h"
#include "base/system.h"
#include "base/version.h"
#include "report/run_folder.h"
#include "report/sink.h"

namespace mnist_train::report {

namespace {

template <class Number>
OrderedJson value_or_null(const std::optional<Number>& value) {
  return value ? OrderedJson(*value) : OrderedJson();
}

OrderedJson versions() {
  const BuildInfo& build = build_info();
  return {{"mnist_train", build.version}, {"commit", build.commit}, {"compiler", build.compiler},
          {"libtorch", build.torch},      {"cuda", build.cuda},     {"nccl", build.nccl}};
}

/// The part of the summary that is known when a run starts.
OrderedJson identity_of(const Summary& summary) {
  return {{"world_size", summary.world_size},
          {"launcher", summary.launcher},
          {"backend", summary.backend},
          {"device", summary.device},
          {"device_model", summary.device_model},
          {"precision", summary.precision},
          {"gradient_averaging", summary.averaging},
          {"execution", summary.execution},
          {"gpu_kernels", summary.gpu_kernels},
          {"rejected_gpu_kernels", summary.rejected_gpu_kernels},
          {"threads_per_process", summary.threads_per_process},
          {"parameters", summary.parameters},
          {"multiply_adds", value_or_null(summary.multiply_adds)},
          {"restarts", summary.restarts},
          {"versions", versions()},
          {"config_hash", summary.config_hash},
          {"data_hash", summary.data_hash}};
}

OrderedJson to_json(const Summary& summary) {
  OrderedJson json = {
      {"status", summary.status}, {"epochs", summary.epochs}, {"steps", summary.steps}};
  json.update(identity_of(summary));
  json.update({{"startup_seconds", summary.startup_seconds},
               {"train_seconds", summary.train_seconds},
               {"test_seconds", summary.test_seconds},
               {"wall_seconds", summary.wall_seconds},
               {"checkpoint_seconds", summary.checkpoint_seconds},
               {"report_seconds", summary.report_seconds},
               {"samples_per_second", summary.samples_per_second},
               {"test_loss", value_or_null(summary.test_loss)},
               {"test_accuracy", value_or_null(summary.test_accuracy)},
               {"best_test_accuracy", value_or_null(summary.best_test_accuracy)},
               {"best_epoch", value_or_null(summary.best_epoch)},
               {"samples_seen", summary.samples_seen},
               {"peak_memory_bytes", summary.peak_memory_bytes}});
  if (summary.best_validation_accuracy) {
    json["validation_accuracy"] = value_or_null(summary.validation_accuracy);
    json["best_validation_accuracy"] = *summary.best_validation_accuracy;
  }
  if (!summary.ended_by.empty()) json["ended_by"] = summary.ended_by;
  if (!summary.error.empty()) json["error"] = summary.error;
  return json;
}

/// Returns a discarded value if the file is missing or not JSON.
OrderedJson read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  return OrderedJson::parse(file, nullptr, /*allow_exceptions=*/false);
}

void write_json(const std::filesystem::path& path, const OrderedJson& json) {
  write_file_atomically(path,
                        json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n",
                        ExitCode::kRunFailed);
}

bool has_status(const OrderedJson& summary, const char* status) {
  return summary.is_object() && summary.contains("status") && summary["status"] == status;
}

void no_longer_running(const std::filesystem::path& path, const OrderedJson& changes) try {
  OrderedJson summary = read_json(path);
  if (!has_status(summary, "running")) return;
  summary.update(changes);
  write_json(path, summary);
} catch (const Error&) {
}

OrderedJson to_json(const RunStart& start, const Summary& summary) {
  OrderedJson json = {
      {"time", wall_clock_seconds()},
      {"host", start.host},
      {"resumed_from",
       start.resumed_from.empty() ? OrderedJson() : OrderedJson(start.resumed_from)},
      {"epoch", start.epoch},
      {"step", start.step},
      {"samples_seen", start.samples_seen},
      {"steps_per_epoch", start.steps_per_epoch},
      {"data",
       {{"train", start.train_images},
        {"validation", start.validation_images},
        {"test", start.test_images},
        {"channels", start.image_channels},
        {"height", start.image_height},
        {"width", start.image_width},
        {"classes", start.classes}}}};
  if (!start.class_names.empty()) json["data"]["class_names"] = start.class_names;
  json.update(identity_of(summary));
  return json;
}

class SummarySink : public Sink {
 public:
  explicit SummarySink(const std::filesystem::path& run_folder)
      : path_(run_folder / files::kSummary), lineage_path_(run_folder / files::kLineage) {}

  void begin(const RunStart& start, const Summary& summary) override {
    append_lineage(to_json(start, summary));
    write_summary(path_, summary);
  }
  void refresh(const Summary& summary) override { write_summary(path_, summary); }
  void end(const Summary& summary) override { write_summary(path_, summary); }

 private:
  void append_lineage(const OrderedJson& start) const {
    const auto fail = [&](const char* action) {
      throw_errno(ExitCode::kRunFailed, lineage_path_, action);
    };
    const UniqueFd fd(
        ::open(lineage_path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0644));
    struct stat status {};
    if (!fd.valid() || ::fstat(fd.get(), &status) != 0) fail("open");
    // Do not append to a line that a full disk has cut short.
    char last = '\n';
    if (status.st_size > 0 && ::pread(fd.get(), &last, 1, status.st_size - 1) != 1) fail("read");
    const std::string line = (last == '\n' ? "" : "\n") +
                             start.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) +
                             "\n";
    if (!write_all(fd.get(), line.data(), line.size())) fail("write");
  }

  std::filesystem::path path_;
  std::filesystem::path lineage_path_;
};

class AccuraciesSink : public Sink {
 public:
  explicit AccuraciesSink(std::filesystem::path path) : path_(std::move(path)) {}

  void epoch(const EpochResult& result) override {
    accuracies_ = result.accuracies;
    // Rewriting a long list after every epoch would take quadratic time.
    constexpr std::size_t kEachEpoch = 1000;
    if (accuracies_.size() - written_ > accuracies_.size() / kEachEpoch) write();
  }
  void refresh(const Summary& /*summary*/) override { write(); }
  void end(const Summary& /*summary*/) override { write(); }

 private:
  void write() {
    if (accuracies_.size() == written_) return;
    write_accuracies(path_, accuracies_);
    written_ = accuracies_.size();
  }

  std::filesystem::path path_;
  std::vector<double> accuracies_;
  std::size_t written_ = 0;  // number of accuracies in the file
};

}  // namespace

void write_summary(const std::filesystem::path& path, const Summary& summary) {
  write_json(path, to_json(summary));
}

void record_failure(const std::filesystem::path& path, const std::string& error) {
  no_longer_running(path, {{"status", "failed"}, {"error", error}});
}

void record_stop(const std::filesystem::path& path) {
  no_longer_running(path, {{"status", "stopped"}});
}

std::optional<std::int64_t> finished_steps(const std::filesystem::path& path) {
  const OrderedJson summary = read_json(path);
  if (!has_status(summary, "finished")) return std::nullopt;
  const auto steps = summary.find("steps");
  if (steps == summary.end() || !steps->is_number_integer()) return std::nullopt;
  return steps->get<std::int64_t>();
}

void write_accuracies(const std::filesystem::path& path, const std::vector<double>& accuracies) {
  write_file_atomically(path, OrderedJson(accuracies).dump() + "\n", ExitCode::kRunFailed);
}

std::size_t count_accuracies(const std::filesystem::path& path) {
  const OrderedJson list = read_json(path);
  return list.is_array() ? list.size() : 0;
}

std::unique_ptr<Sink> summary_sink(const std::filesystem::path& run_folder) {
  return std::make_unique<SummarySink>(run_folder);
}

std::unique_ptr<Sink> accuracies_sink(const std::filesystem::path& path) {
  return std::make_unique<AccuraciesSink>(path);
}

}  // namespace mnist_train::report
