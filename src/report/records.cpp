#include "report/records.h"

#include <fcntl.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <ranges>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/system.h"
#include "base/version.h"
#include "imaging/codec.h"

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

/// Adds the fields of a record. An empty optional is omitted, or else null.
template <class Record>
void add_fields(OrderedJson& json, const Record& record, bool omits_empty = true) {
  Record::visit(record, [&](const std::string& key, const auto& value) {
    if constexpr (requires { value.has_value(); }) {
      if (value || !omits_empty) json[key] = value ? OrderedJson(*value) : OrderedJson();
    } else {
      json[key] = value;
    }
  });
}

void add_details(OrderedJson& json, const EpochDetails& details) {
  add_fields(json["seconds"], details.seconds);
  json["rank_seconds"] = OrderedJson::array();
  for (const RankTimes& times : details.ranks) {
    add_fields(json["rank_seconds"].emplace_back(), times);
  }
  if (details.confusion.empty()) {
    if (!details.class_counts.samples.empty()) {
      add_fields(json["class_counts"], details.class_counts);
    }
    return;
  }
  OrderedJson& rows = json["confusion"] = OrderedJson::array();
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
    OrderedJson json{{"event", event}};
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

OrderedJson to_json(const Summary& summary) {
  OrderedJson json = {
      {"status", summary.status}, {"epochs", summary.epochs}, {"steps", summary.steps}};
  add_fields<RunIdentity>(json, summary, /*omits_empty=*/false);
  add_fields<Summary>(json, summary, /*omits_empty=*/false);
  if (summary.best_validation_accuracy) {
    json["validation_accuracy"] = summary.validation_accuracy.value_or(kUnknown);
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
  add_fields<RunIdentity>(json, summary, /*omits_empty=*/false);
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
  const std::string& name(std::int64_t label) const {
    return class_names_.at(static_cast<std::size_t>(label));
  }

  /// Returns the line of a prediction, with its scores as `add_scores(json)` adds them.
  template <class AddScores>
  std::string line(const Prediction& row, const std::string& image,
                   const AddScores& add_scores) const {
    OrderedJson json{{"id", row.id}};
    if (!row.file.empty()) json["file"] = row.file;
    json["image"] = image;
    json["guess"] = row.guess;
    json["truth"] = row.truth;
    add_scores(json);
    if (!class_names_.empty()) {
      json["guess_name"] = name(row.guess);
      json["truth_name"] = name(row.truth);
    }
    return json_text(json) + "\n";
  }

  /// Rounds to seven digits. A broken model can give NaN, which becomes null.
  static OrderedJson score_of(double score) {
    const double rounded = std::strtod(fmt::format("{:.7g}", score).c_str(), nullptr);
    return rounded == 0 || rounded == 1 ? OrderedJson(static_cast<int>(rounded))
                                        : OrderedJson(rounded);
  }

  std::string prediction_lines(const EpochResult& result) const {
    std::string text;
    for (const Prediction& row : result.predictions) {
      const bool has_all = static_cast<std::int64_t>(row.scores.size()) >= result.details.classes;
      text += line(row, row.image, [&](OrderedJson& json) {
        for (const auto& [label, score] : row.scores) {
          if (has_all) {
            json[fmt::format("score_{}", label)] = score_of(score);
            continue;
          }
          OrderedJson& top = json["top"].emplace_back(OrderedJson{{"class", label}});
          if (!class_names_.empty()) top["name"] = name(label);
          top["score"] = score_of(score);
        }
      });
    }
    return text;
  }

  std::string mistake_lines(const EpochResult& result) {
    std::string text;
    std::map<std::int64_t, std::string> used;
    std::size_t bytes = 0;
    for (const Prediction& mistake : result.mistakes) {
      std::string& image = used[mistake.id];
      if (bytes < kMistakePictureBytes) image = picture(mistake.id, result);
      bytes += image.size();
      text += line(mistake, image,
                   [&](OrderedJson& json) { json["confidence"] = mistake.confidence(); });
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

OrderedJson RunIdentity::versions_of_build() {
  const BuildInfo& build = build_info();
  return {{"mnist_train", build.version}, {"commit", build.commit}, {"compiler", build.compiler},
          {"libtorch", build.torch},      {"cuda", build.cuda},     {"nccl", build.nccl}};
}

ClassCounts class_counts(const EpochDetails& details) {
  return details.confusion.empty() ? details.class_counts
                                   : count_by_class(details.confusion, details.classes);
}

bool are_unequal(const std::vector<std::int64_t>& class_sizes) {
  auto sizes = class_sizes | std::views::filter([](std::int64_t size) { return size > 0; });
  if (sizes.empty()) return false;
  const auto [least, most] = std::ranges::minmax(sizes);
  return 2 * most > 3 * least;
}

std::vector<std::int64_t> never_predicted(const ClassCounts& counts) {
  std::vector<std::int64_t> labels;
  for (std::size_t label = 0; label < counts.samples.size(); ++label) {
    if (counts.samples[label] > 0 && counts.predicted[label] == 0) {
      labels.push_back(static_cast<std::int64_t>(label));
    }
  }
  return labels;
}

std::string named_classes(const std::vector<std::int64_t>& labels,
                          const std::function<std::string(std::int64_t label)>& name) {
  constexpr std::size_t kMostNamed = 10;
  std::string text;
  for (std::size_t i = 0; i < std::min(labels.size(), kMostNamed); ++i) {
    text += (i == 0 ? "" : ", ") + name(labels[i]);
  }
  if (labels.size() > kMostNamed) text += fmt::format(" and {} more", labels.size() - kMostNamed);
  return text;
}

std::string advice_on_never_predicted(bool sizes_are_unequal, bool has_class_weights) {
  return sizes_are_unequal && !has_class_weights
             ? "class_weights \"balanced\" makes all classes count alike"
             : "more epochs or another learning_rate may help";
}

double selection_score(const EpochRecord& record, settings::BestBy best_by) {
  using settings::BestBy;
  if (best_by == BestBy::kAccuracy) {
    return record.validation_accuracy.value_or(record.test_accuracy);
  }
  if (best_by == BestBy::kBalancedAccuracy) {
    return record.validation_balanced_accuracy.value_or(record.test_balanced_accuracy);
  }
  const double loss = record.validation_loss.value_or(record.test_loss);
  return std::isfinite(loss) ? -loss : std::numeric_limits<double>::lowest();
}

const char* words_for(settings::BestBy best_by) {
  if (best_by == settings::BestBy::kLoss) return "loss";
  return best_by == settings::BestBy::kAccuracy ? "accuracy" : "balanced accuracy";
}

std::vector<Prediction> choose_mistakes(std::vector<Prediction> all, std::size_t most) {
  std::sort(all.begin(), all.end(), [](const Prediction& a, const Prediction& b) {
    return std::tuple(-a.confidence(), a.id) < std::tuple(-b.confidence(), b.id);
  });
  using Kind = std::pair<std::int64_t, std::int64_t>;
  const auto kind = [](const Prediction& mistake) { return Kind(mistake.truth, mistake.guess); };
  std::map<Kind, std::int64_t> images;
  std::vector<std::int64_t> round;  // rank of each mistake within its kind, by confidence
  round.reserve(all.size());
  for (const Prediction& mistake : all) round.push_back(images[kind(mistake)]++);
  std::vector<std::size_t> order(all.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const Kind of_a = kind(all[a]);
    const Kind of_b = kind(all[b]);
    return std::tuple(round[a], -images[of_a], of_a) < std::tuple(round[b], -images[of_b], of_b);
  });
  order.resize(std::min(order.size(), most));
  std::vector<Prediction> chosen;
  chosen.reserve(order.size());
  for (const std::size_t i : order) chosen.push_back(std::move(all[i]));
  return chosen;
}

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
