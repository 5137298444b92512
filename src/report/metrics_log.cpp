#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/system.h"
#include "report/sink.h"

namespace mnist_train::report {

namespace {

using Json = nlohmann::ordered_json;

Json or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

Json to_json(const RankTimes& times) {
  return {{"rank", times.rank},
          {"steps", times.steps},
          {"input", times.input_s},
          {"compute", times.compute_s},
          {"communication", times.communication_s},
          {"median_step", times.median_step_s},
          {"p95_step", times.p95_step_s},
          {"longest_step", times.longest_step_s}};
}

void add_details(Json& json, const EpochDetails& details) {
  const TimeSplit& seconds = details.seconds;
  json["seconds"] = {{"input", or_null(seconds.input_s)},
                     {"compute", or_null(seconds.compute_s)},
                     {"communication", or_null(seconds.communication_s)},
                     {"evaluation", seconds.evaluation_s},
                     {"checkpoint", seconds.checkpoint_s},
                     {"report", seconds.report_s}};
  json["rank_seconds"] = Json::array();
  for (const RankTimes& times : details.ranks) json["rank_seconds"].push_back(to_json(times));
  if (details.confusion.empty()) return;
  Json& rows = json["confusion"] = Json::array();
  const auto classes = static_cast<std::ptrdiff_t>(details.classes);
  for (auto row = details.confusion.begin(); row != details.confusion.end(); row += classes) {
    rows.push_back(std::vector<std::int64_t>(row, row + classes));
  }
}

class MetricsLog : public Sink {
 public:
  MetricsLog(const std::filesystem::path& path, std::int64_t keep_bytes)
      : path_(path),
        fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0644)) {
    struct stat status {};
    if (!fd_.valid() || ::fstat(fd_.get(), &status) != 0) fail("open");
    bytes_ = std::min<std::int64_t>(keep_bytes, status.st_size);
    if (::ftruncate(fd_.get(), bytes_) != 0) fail("truncate");
  }

  void step(const StepRecord& record) override {
    write_line({{"event", "step"},
                {"epoch", record.epoch},
                {"step", record.step},
                {"loss", record.loss},
                {"learning_rate", record.learning_rate},
                {"samples_per_second", record.samples_per_second},
                {"accuracy", record.accuracy},
                {"time", wall_clock_seconds()}});
  }

  void epoch(const EpochResult& result) override {
    if (result.is_repeated && bytes_ > 0) return;  // only a file that begins lacks the record
    const EpochRecord& record = result.record;
    Json json = {{"event", "epoch"},
                 {"epoch", record.epoch},
                 {"step", record.step},
                 {"train_loss", record.train_loss},
                 {"train_accuracy", record.train_accuracy},
                 {"test_loss", record.test_loss},
                 {"test_accuracy", record.test_accuracy},
                 {"train_seconds", record.train_seconds},
                 {"test_seconds", record.test_seconds},
                 {"samples_per_second", record.samples_per_second},
                 {"time", wall_clock_seconds()}};
    if (record.validation_accuracy) {
      json["validation_loss"] = *record.validation_loss;
      json["validation_accuracy"] = *record.validation_accuracy;
    }
    add_details(json, result.details);
    write_line(json);
  }

  void add_position(LogPositions& positions) const override { positions.metrics_bytes = bytes_; }

 private:
  [[noreturn]] void fail(const char* action) const {
    throw_errno(ExitCode::kRunFailed, path_, action);
  }

  void write_line(const Json& json) {
    const std::string line = json.dump() + "\n";
    if (!write_all(fd_.get(), line.data(), line.size())) fail("write");
    bytes_ += static_cast<std::int64_t>(line.size());
  }

  std::filesystem::path path_;
  UniqueFd fd_;
  std::int64_t bytes_ = 0;
};

}  // namespace

std::unique_ptr<Sink> metrics_sink(const std::filesystem::path& path, std::int64_t keep_bytes) {
  return std::make_unique<MetricsLog>(path, keep_bytes);
}

}  // namespace mnist_train::report
