#include "report/sink.h"

#include <fcntl.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/system.h"
#include "base/version.h"
#include "imaging/codec.h"
#include "report/records.h"
#include "report/run_folder.h"

namespace mnist_train::report {

namespace {

constexpr double kPaceInterval_s = 1;
constexpr double kFirstPaceInterval_s = 0.1;

class OptionalSink : public Sink {
 public:
  OptionalSink(const char* name, const std::function<std::unique_ptr<Sink>()>& make) : name_(name) {
    attempt([&] { sink_ = make(); });
  }

  void begin(const RunStart& start, const Summary& summary) override {
    call(&Sink::begin, start, summary);
  }
  void tick(const StepPosition& position) override { call(&Sink::tick, position); }
  void pace(const Pace& pace) override { call(&Sink::pace, pace); }
  void step(const StepRecord& record) override { call(&Sink::step, record); }
  void epoch(const EpochResult& result) override { call(&Sink::epoch, result); }
  void refresh(const Summary& summary) override { call(&Sink::refresh, summary); }
  void end(const Summary& summary) override { call(&Sink::end, summary); }
  std::filesystem::path page() const override {
    return sink_ ? sink_->page() : std::filesystem::path();
  }
  void add_position(LogPositions& positions) const override {
    if (sink_) sink_->add_position(positions);
  }

 private:
  template <class Method, class... Arguments>
  void call(Method method, const Arguments&... arguments) {
    if (sink_) attempt([&] { std::invoke(method, *sink_, arguments...); });
  }

  template <class Attempt>
  void attempt(const Attempt& action) try {
    action();
  } catch (const Error& error) {
    if (!warned_) spdlog::warn("{}; the run continues without {}", error.what(), name_);
    warned_ = true;
  }

  const char* name_;
  std::unique_ptr<Sink> sink_;  // null if making it failed
  bool warned_ = false;
};

using Json = nlohmann::ordered_json;

template <class Record>
void add_fields(Json& json, const Record& record) {
  Record::visit(record, [&](const char* key, const auto& value) {
    if constexpr (requires { value.has_value(); }) {
      if (value) json[key] = *value;
    } else {
      json[key] = value;
    }
  });
}

void add_details(Json& json, const EpochDetails& details) {
  add_fields(json["seconds"], details.seconds);
  json["rank_seconds"] = Json::array();
  for (const RankTimes& times : details.ranks) {
    add_fields(json["rank_seconds"].emplace_back(), times);
  }
  if (details.confusion.empty()) {
    if (!details.class_counts.samples.empty()) {
      add_fields(json["class_counts"], details.class_counts);
    }
    return;
  }
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

  void step(const StepRecord& record) override { write_line("step", record, nullptr); }

  void epoch(const EpochResult& result) override {
    // A repeated evaluation needs a record only if the file has just begun.
    if (result.is_repeated && bytes_ > 0) return;
    write_line("epoch", result.record, &result.details);
  }

  void add_position(LogPositions& positions) const override { positions.metrics_bytes = bytes_; }

 private:
  [[noreturn]] void fail(const char* action) const {
    throw_errno(ExitCode::kRunFailed, path_, action);
  }

  template <class Record>
  void write_line(const char* event, Record record, const EpochDetails* details) {
    Json json{{"event", event}};
    record.time = wall_clock_seconds();
    add_fields(json, record);
    if (details != nullptr) add_details(json, *details);
    const std::string line = json.dump() + "\n";
    if (!write_all(fd_.get(), line.data(), line.size())) fail("write");
    bytes_ += static_cast<std::int64_t>(line.size());
  }

  std::filesystem::path path_;
  UniqueFd fd_;
  std::int64_t bytes_ = 0;
};

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
  write_file_atomically(path, json_text(json, 2) + "\n", ExitCode::kRunFailed);
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
    const std::string line = (last == '\n' ? "" : "\n") + json_text(start) + "\n";
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

constexpr std::size_t kMistakePictureBytes = 2'000'000;

/// Returns the keys `id`, `file` (if there is one), `image`, `guess` and `truth` of a line, without
/// the closing brace.
template <class Row>
std::string begin_line(const Row& row, const std::string& image) {
  const std::string file =
      row.file.empty() ? "" : ",\"file\":" + json_text(nlohmann::json(row.file));
  return fmt::format(R"({{"id":{}{},"image":"{}","guess":{},"truth":{})", row.id, file, image,
                     row.guess, row.truth);
}

/// Returns the keys `guess_name` and `truth_name`, if classes have names, and the end of a line.
std::string end_line(const std::vector<std::string>& class_names, std::int64_t guess,
                     std::int64_t truth) {
  if (class_names.empty()) return "}\n";
  return fmt::format(R"(,"guess_name":{},"truth_name":{}}})",
                     json_text(nlohmann::json(class_names.at(static_cast<std::size_t>(guess)))),
                     json_text(nlohmann::json(class_names.at(static_cast<std::size_t>(truth))))) +
         "\n";
}

class PredictionFiles : public Sink {
 public:
  PredictionFiles(const std::filesystem::path& run_folder, std::vector<std::string> class_names)
      : folder_(run_folder), class_names_(std::move(class_names)) {}

  void epoch(const EpochResult& result) override {
    if (result.predictions.empty()) return;  // report.predictions.batches is 0
    write_file_atomically(folder_ / files::kPredictions, prediction_lines(result),
                          ExitCode::kRunFailed);
    write_file_atomically(folder_ / files::kMistakes, mistake_lines(result), ExitCode::kRunFailed);
  }

 private:
  static std::string score_text(double score) {
    // A broken model can give NaN, which JSON lacks.
    return std::isfinite(score) ? fmt::format("{:.7g}", score) : "null";
  }

  static std::string all_scores(const Prediction& row) {
    std::string text;
    for (const auto& [label, score] : row.scores) {
      text += fmt::format(R"(,"score_{}":{})", label, score_text(score));
    }
    return text;
  }

  std::string top_scores(const Prediction& row) const {
    std::string text;
    for (const auto& [label, score] : row.scores) {
      text += fmt::format(R"({}{{"class":{},)", text.empty() ? "" : ",", label);
      if (!class_names_.empty()) {
        const std::string& name = class_names_.at(static_cast<std::size_t>(label));
        text += fmt::format(R"("name":{},)", json_text(nlohmann::json(name)));
      }
      text += fmt::format(R"("score":{}}})", score_text(score));
    }
    return ",\"top\":[" + text + "]";
  }

  std::string prediction_lines(const EpochResult& result) const {
    std::string text;
    for (const Prediction& row : result.predictions) {
      text += begin_line(row, row.image);
      const bool has_all = static_cast<std::int64_t>(row.scores.size()) >= result.details.classes;
      text += has_all ? all_scores(row) : top_scores(row);
      text += end_line(class_names_, row.guess, row.truth);
    }
    return text;
  }

  std::string mistake_lines(const EpochResult& result) {
    std::string text;
    std::map<std::int64_t, std::string> used;
    std::size_t bytes = 0;
    for (const Mistake& mistake : result.mistakes) {
      std::string& image = used[mistake.id];
      if (bytes < kMistakePictureBytes) image = picture(mistake.id, result);
      bytes += image.size();
      text += begin_line(mistake, image) +
              ",\"confidence\":" + nlohmann::json(mistake.confidence).dump() +
              end_line(class_names_, mistake.guess, mistake.truth);
    }
    pictures_ = std::move(used);
    return text;
  }

  /// Successive epochs share most mistakes, so pictures are kept.
  std::string picture(std::int64_t id, const EpochResult& result) const {
    const auto known = pictures_.find(id);
    return known != pictures_.end() && !known->second.empty() ? known->second
                                                              : result.thumbnail(id);
  }

  std::filesystem::path folder_;
  std::vector<std::string> class_names_;
  std::map<std::int64_t, std::string> pictures_;  // of the last epoch's mistakes, by id
};

constexpr std::int64_t kMaxExactSide = 64;
constexpr std::int64_t kThumbnailSide = 96;
constexpr int kJpegQuality = 85;
constexpr const char* kPngPrefix = "data:image/png;base64,";

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t three = 0;
    for (std::size_t j = i; j < i + 3; ++j) {
      three = three << 8 | (j < bytes.size() ? static_cast<unsigned char>(bytes[j]) : 0U);
    }
    for (int shift = 18; shift >= 0; shift -= 6) text += kDigits[three >> shift & 63U];
  }
  for (std::size_t i = 0; i < (3 - bytes.size() % 3) % 3; ++i) text[text.size() - 1 - i] = '=';
  return text;
}

imaging::Image make_image(const std::uint8_t* pixels, std::int64_t channels, std::int64_t height,
                          std::int64_t width) {
  imaging::Image image;
  image.channels = channels == 3 ? 3 : 1;
  image.height = height;
  image.width = width;
  const std::int64_t plane = height * width;
  for (std::int64_t pixel = 0; pixel < plane; ++pixel) {
    for (std::int64_t channel = 0; channel < image.channels; ++channel) {
      image.pixels.push_back(pixels[channel * plane + pixel]);
    }
  }
  return image;
}

}  // namespace

std::unique_ptr<Sink> optional_sink(const char* name,
                                    const std::function<std::unique_ptr<Sink>()>& make) {
  return std::make_unique<OptionalSink>(name, make);
}

std::optional<Pace> PaceMeter::add(const PacedStep& step) {
  newest_s_ = step.finished_s;
  if (!last_) {
    last_ = step;
    return std::nullopt;
  }
  loss_ += step.loss;
  samples_ += step.samples;
  const double seconds = step.finished_s - last_->finished_s;
  if (seconds < (has_told_ ? kPaceInterval_s : kFirstPaceInterval_s)) return std::nullopt;
  const auto steps = static_cast<double>(step.number - last_->number);
  const auto samples = static_cast<double>(step.samples_seen - last_->samples_seen);
  const Pace pace{loss_ / samples_, samples / seconds, seconds / std::max(1.0, steps)};
  last_ = step;
  loss_ = samples_ = 0;
  has_told_ = true;
  return pace;
}

void PaceMeter::pause_until(double now_s) {
  if (last_) last_->finished_s += now_s - newest_s_;
  newest_s_ = now_s;
}

std::unique_ptr<Sink> metrics_sink(const std::filesystem::path& path, std::int64_t keep_bytes) {
  return std::make_unique<MetricsLog>(path, keep_bytes);
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

std::unique_ptr<Sink> predictions_sink(const std::filesystem::path& run_folder,
                                       const std::vector<std::string>& class_names) {
  return std::make_unique<PredictionFiles>(run_folder, class_names);
}

Picture make_picture(const std::uint8_t* pixels, std::int64_t channels, std::int64_t height,
                     std::int64_t width) {
  const imaging::Image image = make_image(pixels, channels, height, width);
  return {imaging::encode_png(image), height, width, image.channels};
}

std::string thumbnail_uri(const std::uint8_t* pixels, std::int64_t channels, std::int64_t height,
                          std::int64_t width) {
  const imaging::Image image = make_image(pixels, channels, height, width);
  const std::int64_t side = std::max(height, width);
  if (side <= kMaxExactSide) return kPngPrefix + base64(imaging::encode_png(image));
  const auto reduced = [&](std::int64_t size) {
    return std::max(std::int64_t{1}, size * std::min(side, kThumbnailSide) / side);
  };
  const imaging::Image small = imaging::resize(image, reduced(height), reduced(width));
  return "data:image/jpeg;base64," + base64(imaging::encode_jpeg(small, kJpegQuality));
}

std::string image_uri(const Picture& picture) { return kPngPrefix + base64(picture.png); }

}  // namespace mnist_train::report
